# SPDX-License-Identifier: MIT
"""A path between hosts that is cut and comes back, under plain programs over the double: the connection moves out again, and soon."""
import os
import pathlib
import re
import select
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'support'))
from ringway_support import Failed, check, die_with_parent, preload_env  # noqa: E402

SHIM, DOUBLE = (os.environ[name] for name in ('TESTS_SHIM', 'VERBS_DOUBLE_DIR'))
SECONDS = 100  # of the whole test
OFFERS = 4     # in vain, before the path comes back
SOON = 2500    # messages there and back, by which the connection has moved out again: few calls for so much time

# Not as fast as it could be: most programs have something else to do.
ACCEPTOR = """
import socket
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
s = listener.accept()[0]
while data := s.recv(100):
    s.sendall(data)
"""
CONNECTOR = """
import socket, sys, time
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
for n in range(1 << 30):
    s.sendall(n.to_bytes(100))
    got = s.recv(100, socket.MSG_WAITALL)
    assert int.from_bytes(got) == n, n
    print(n, flush=True)
    time.sleep(.004)
"""


class End:
    def __init__(self, work, name, program, *words, **options):
        self.name, self.log_path = name, work / name
        env = preload_env(SHIM, after=0, transports='verbs', patience=300, log='debug', log_file=self.log_path)
        self.child = subprocess.Popen([sys.executable, '-c', program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      env={**env, 'LD_LIBRARY_PATH': DOUBLE, **options}, preexec_fn=die_with_parent)
        self.said = b''

    def log(self):
        return self.log_path.read_text() if self.log_path.exists() else ''

    def last(self):
        """The last line that it has said."""
        while select.select([self.child.stdout], [], [], 0)[0] and (some := os.read(self.child.stdout.fileno(), 1 << 16)):
            self.said = (self.said + some)[-100:]
        lines = self.said.split(b'\n')
        return lines[-2].decode() if len(lines) > 1 else ''


def moved(ends, times):
    return all(len(re.findall(rf'{way} lane left TCP', end.log())) >= times for end in ends for way in ('tx', 'rx'))


def back(ends):
    return all(f'{way} lane is back on TCP' in end.log() for end in ends for way in ('tx', 'rx'))


def until(what, there, ends, deadline):
    while not there():
        ended = [end.name for end in ends if end.child.poll() is not None]
        check(not ended, f'{what}: {ended} ended: {ends[0].log()} {ends[1].log()}')
        check(time.monotonic() < deadline, f'{what}: not in time: {ends[0].log()} {ends[1].log()}')
        ends[1].last()
        time.sleep(.01)


def a_path_that_comes_back_is_used_soon():
    deadline, ends = time.monotonic() + SECONDS, []
    with tempfile.TemporaryDirectory(prefix='ringway-path-') as name:
        work = pathlib.Path(name)
        control = work / 'control'
        control.write_bytes(b'u')
        fd = os.open(control, os.O_WRONLY)
        try:
            ends.append(End(work, 'acceptor', ACCEPTOR, VERBS_DOUBLE=f'control={control}'))
            port = ends[0].child.stdout.readline().decode().strip()
            ends.append(End(work, 'connector', CONNECTOR, port, VERBS_DOUBLE=f'control={control}'))
            until('to move', lambda: moved(ends, 1), ends, deadline)
            os.pwrite(fd, b'l', 0)
            until('to come back', lambda: back(ends), ends, deadline)
            before = ends[1].log().count('tx: SEEK to TCP')
            until('to offer in vain', lambda: ends[1].log().count('tx: SEEK to TCP') >= before + OFFERS, ends, deadline)
            os.pwrite(fd, b'u', 0)
            ends[1].last()
            there = int(ends[1].last())
            until('to move again, or be late', lambda: moved(ends, 2) or int(ends[1].last()) > there + SOON, ends, deadline)
            check(moved(ends, 2), f'not on rings after {SOON} messages: {ends[0].log()} {ends[1].log()}')
        finally:
            os.close(fd)
            for end in ends:
                end.child.kill()
                end.child.communicate()


def main():
    try:
        a_path_that_comes_back_is_used_soon()
    except Failed as failure:
        print(f'FAILED: {failure}')
        sys.exit(1)


main()
