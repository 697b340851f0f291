# SPDX-License-Identifier: MIT
"""The verbs engine between two processes over the double: the program that tests it in the guests (tests/vm/far.c), and what a device can do to it."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'support'))
from ringway_support import Failed, check, die_with_parent  # noqa: E402

FAR, ENGINE, DOUBLE = (os.environ[name] for name in ('TESTS_FAR', 'TESTS_ENGINE', 'VERBS_DOUBLE_DIR'))
SECONDS = 50  # of the whole test
RING = 256 << 10


class End:
    """One end. Its output is read a line at a time, so that it never waits for us."""
    all = []

    def __init__(self, *words, double='', **more):
        env = {**os.environ, 'LD_LIBRARY_PATH': DOUBLE, 'VERBS_DOUBLE': double}
        self.child = subprocess.Popen([FAR, ENGINE, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env, text=True,
                                      preexec_fn=die_with_parent, **more)
        End.all.append(self)
        self.lines = []

    def until(self, word):
        while not self.lines or self.lines[-1] != word:
            line = self.child.stdout.readline()
            check(line, f'{self.child.args} ended before it said "{word}": {self.lines}')
            self.lines.append(line.strip())

    def said(self, status=0):
        """Its last line, at its end."""
        self.lines += self.child.stdout.read().split('\n')
        got = self.child.wait()
        lines = [line for line in self.lines if line.startswith('{')]
        check(got == status and len(lines) == 1, f'{self.child.args} ended with {got}: {self.lines}')
        return json.loads(lines[0])

    def kill(self):
        self.child.kill()
        self.child.wait()


def start(mode, number=0, address='127.0.0.1', offer_double='', dial_double=''):
    port = next(ports)
    offer = End('offer', address, port, mode, number, double=offer_double)
    offer.until('ready')
    return offer, End('dial', address, address, port, mode, number, double=dial_double)


def free_ports():
    """RDMA has ports of its own, by network namespace; tests that run at the same time keep apart by their pids."""
    port = 1024 + os.getpid() * 16 % 60000
    while True:
        port += 1
        yield port


ports = free_ports()


def ended(*ends, status=0):
    told = [end.said(status) for end in ends]
    check(not any(end['lost'] for end in told), f'a wake-up was lost: {told}')
    return told


def streams():
    for address in ('127.0.0.1', '127.0.0.9', '::1'):
        receiver, sender = ended(*start('stream', 4 << 20, address))
        check(receiver['received'] == sender['sent'] == (4 << 20) + 1, f'{receiver} {sender}')
        check(receiver['credits'] <= 2 * (4 << 20) / RING + 2, f'credits: {receiver}')


def both_ways():
    for mode in ('duplex', 'threads'):
        for end in ended(*start(mode, 4 << 20)):
            check(end['received'] == (4 << 20) + 1, str(end))


def without_immediates():
    for end in ended(*start('duplex', 1 << 20, offer_double='iwarp', dial_double='iwarp')):
        check(end['received'] == (1 << 20) + 1, str(end))


def without_inline():
    for end in ended(*start('duplex', 1 << 20, offer_double='inline=0', dial_double='inline=0')):
        check(end['received'] == (1 << 20) + 1, str(end))


def ping_pong():
    rounds = 2000
    for end in ended(*start('pingpong', rounds)):
        check(end['wr'] <= rounds + 4 and end['doorbells'] <= rounds + 4, str(end))
        check(end['send_cqes'] * 16 <= rounds + 32 and end['recv_posts'] * 8 <= end['recvs'], str(end))


def burst():
    for double in ('', 'iwarp'):
        receiver, sender = start('burst', offer_double=double, dial_double=double)
        sender.until('sent')
        check(receiver.said()['received'] == 1600, 'the end of a burst')
        sender.kill()


def killed():
    for victim in (0, 1):
        ends = start('forever')
        for end in ends:
            end.until('linked')
        ends[victim].kill()
        check(ends[1 - victim].said(3)['dead'] < 0, 'the peer of one that was killed')


def with_control(letter, double=''):
    """Both ends under load; then the file says the letter. What they say at their end."""
    with tempfile.NamedTemporaryFile() as control:
        control.write(b'u')
        control.flush()
        words = f'control={control.name},{double}'
        offer, dial = start('forever', offer_double=words, dial_double=words)
        offer.until('linked')
        dial.until('linked')
        os.pwrite(control.fileno(), letter, 0)
        return offer.said(3), dial.said(3)


def removed():
    for end in with_control(b'r'):
        check(end['dead'] < 0, str(end))
    for end in ended(*start('forever', dial_double='remove-at=100'), status=3):
        check(end['dead'] < 0, str(end))


def path_lost():
    """12 is IBV_WC_RETRY_EXC_ERR, 5 IBV_WC_WR_FLUSH_ERR: who finds out second is told by the first."""
    told = with_control(b'l', 'timeout-ms=20')
    check(any(end['status'] == 12 for end in told) and all(end['dead'] < 0 for end in told), str(told))


def posting_fails():
    for end in ended(*start('forever', offer_double='fail-post=50'), status=3):
        check(end['dead'] < 0, str(end))


def refused():
    """No link comes about, and the reason is told: the numbers are those of enum verbs_error."""
    def dial(double, listener='7'):
        return End('dial', '127.0.0.1', '127.0.0.1', listener, 'stream', double=double).said(1)

    check(dial('') == {'failed': 'rendezvous', 'code': 3}, 'nobody listens')
    check(dial('only=127.0.0.2') == {'failed': 'rendezvous', 'code': 1}, 'no device has the address')
    check(dial('no-device') == {'failed': 'dial', 'code': 1}, 'no device at all')
    check(dial('memlock=65536') == {'failed': 'equip', 'code': 5}, 'little lockable memory')
    check(dial('qps=0') == {'failed': 'equip', 'code': 6}, 'no queue pair is left')
    check(End('offer', '127.0.0.1', '7', 'stream', double='only=127.0.0.2').said(1) == {'failed': 'offer', 'code': 1}, 'an offer without a device')
    port = next(ports)
    first = End('offer', '127.0.0.1', port, 'stream')
    first.until('ready')
    check(End('offer', '127.0.0.1', port, 'stream').said(1) == {'failed': 'offer', 'code': 7}, 'two offers at one address')
    first.kill()


def time_is_up():
    print(f'FAILED: not done within {SECONDS} seconds', flush=True)
    for end in End.all:
        end.child.kill()
    os._exit(1)


def main():
    timer = threading.Timer(SECONDS, time_is_up)
    timer.daemon = True
    timer.start()
    bad = 0
    for test in (streams, both_ways, without_immediates, without_inline, ping_pong, burst, killed, removed, path_lost, posting_fails, refused):
        try:
            test()
            print(f'ok {test.__name__}', flush=True)
        except Failed as failure:
            bad += 1
            print(f'FAILED: {test.__name__}: {failure}', flush=True)
        for end in End.all:
            end.kill()
        End.all.clear()
    sys.exit(bad != 0)


main()
