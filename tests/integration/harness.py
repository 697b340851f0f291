# SPDX-License-Identifier: MIT
"""What the integration tests share: starting unmodified programs with or without Ringway, always ending them, and
reading what Ringway counted.

Each test is called with SIDES: "both", "client" or "server", the side or sides that run under Ringway. With one plain
side no byte may go through a ring, and the data must be right all the same.
"""
import contextlib
import hashlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'tools', 'lib'))
import programs  # noqa: E402
from programs import free_port  # noqa: E402, F401

# Waiting for an event that must come ends the test when it has not come after this long; no result depends on it.
PATIENCE = 40
# AFTER values every test runs with; None is the default.
AFTERS = ('0', None)

temp = programs.own_directory('ringway-test.')


def fail(text):
    print('FAILED: ' + text, flush=True)
    for name in sorted(os.listdir(temp)):
        if name.endswith('.err'):
            with open(path(name), encoding='utf-8', errors='replace') as f:
                said = f.read()[-3000:]
            if said:
                print(f'--- {name}\n{said}', flush=True)
    sys.exit(1)


def check(good, text):
    if not good:
        fail(text)


# Where Debian has nginx; an ordinary user does not look there.
os.environ['PATH'] += ':/usr/sbin'


def need(*programs):
    """Skip unless all of these can be run."""
    for program in programs:
        if not shutil.which(program):
            print(f'{program} is not installed')
            sys.exit(77)


def path(name):
    return os.path.join(temp, name)


def until(condition, what):
    """Wait until CONDITION() holds and return its value; the test fails when it never does."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            fail('gave up waiting: ' + what)
        time.sleep(0.01)


class Program:
    """One running program. stdin, stdout: a file to use, or None for /dev/null; stderr is kept for fail()."""

    _count = 0

    def __init__(self, argv, ringway, after=None, stdin=None, stdout=None, options=()):
        Program._count += 1
        self.name = f'{os.path.basename(argv[0])}-{Program._count}'
        self.summary_path = path(self.name + '.summary')
        self.argv = argv
        settings = [f'summary={self.summary_path}', *(['transports=verbs'] if programs.ROAD == 'verbs' else []), *options, *([f'after={after}'] if after is not None else [])]
        self.child = programs.start(argv, settings if ringway else None, stdin, stdout, path(self.name + '.err'), temp)

    def wait(self, status=0):
        """Wait for its own end, which must be STATUS (None: any)."""
        try:
            got = self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._where()
            fail(f'{self.name} does not end')
        check(status is None or got == status, f'{self.name} ended with {got}: {" ".join(self.argv)}')
        return self

    def stop(self, sig=signal.SIGTERM):
        self.child.send_signal(sig)
        return self.wait(None)

    def ready(self, port):
        check(programs.wait_listening(port, self.child, PATIENCE), f'{self.name} does not listen')
        return self

    def _where(self):
        for name in ('wchan', 'syscall', 'status'):
            with contextlib.suppress(OSError), open(f'/proc/{self.child.pid}/{name}', encoding='ascii', errors='replace') as f:
                print(f'{self.name} {name}: {f.read().strip()}')

    def totals(self):
        """The sum of its summary lines (one for each of its processes)."""
        return programs.summary_totals(self.summary_path)


class Told:
    """
    A program that is told lines of words, "end" the last, and answers each with a line of numbers. Through files, which are its first two words, since a pipe of ours could outlive
    us in a child.
    """

    _count = 0

    def __init__(self, code, *words, **how):
        Told._count += 1
        names = [path(f'told-{Told._count}.{end}') for end in ('in', 'out')]
        for name in names:
            os.mkfifo(name)
        self.to, self.back = (os.open(name, os.O_RDWR) for name in names)
        self.program = Program([sys.executable, '-c', code, *names, *map(str, words)], True, **how)
        self.pid = self.program.child.pid

    def say(self, *words):
        os.write(self.to, (' '.join(map(str, words)) + '\n').encode())
        return self.hear(words)

    def hear(self, words=()):
        until(lambda: select.select([self.back], [], [], 0.1)[0] or self.program.child.poll() is not None, f'{self.program.name} answers to {words}')
        check(self.program.child.poll() is None, f'{self.program.name} has ended')
        return [int(word) for word in os.read(self.back, 4096).split()]

    def end(self):
        os.write(self.to, b'end\n')
        self.program.wait()
        os.close(self.to)
        os.close(self.back)


# Sleeps in one call of the kind that is named after the other, on a connection that somebody else talks on, and says back what it has heard. Prints how many edges came
# without bytes.
SLEEPER = '''
import select, socket, sys
kind, port = sys.argv[1], int(sys.argv[2])
s = socket.create_connection(("127.0.0.1", port))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
epoll = select.epoll()
epoll.register(s, select.EPOLLIN | (select.EPOLLOUT | select.EPOLLET if kind == "edge" else 0))
outer = select.epoll()
outer.register(epoll, select.EPOLLIN)
poll = select.poll()
poll.register(s, select.POLLIN)
bare = 0
while True:
    if kind in ("epoll", "edge"):
        told = epoll.poll()
        if not told[0][1] & select.EPOLLIN:
            bare += 1
            continue
    elif kind == "nested":
        outer.poll()
    elif kind == "poll":
        poll.poll()
    elif kind == "select":
        select.select([s], [], [])
    said = s.recv(100)
    if not said:
        break
    s.sendall(said)
print(bare)
'''


def prove(program, accelerated, share, what):
    """
    Its counters: at least SHARE of its bytes went through rings, or, when the peer is plain, none at all. How far a stream by TCP gets while a rendezvous
    between hosts is under way is a matter of how busy the machine is: some of it will do.
    """
    share = share / 10 if programs.ROAD == 'verbs' else share
    totals = program.totals()
    everything = totals['ring'] + totals['tcp']
    check(totals['connections'] > 0 and everything > 0, f'{what}: {program.name} counted nothing: {totals}')
    part = totals['ring'] / everything
    print(f'{what}: {program.name}: {part:.1%} of {everything} bytes through rings, {totals["switched"]} of '
          f'{totals["connections"]} connections switched, {totals["reasons"]}', flush=True)
    if accelerated:
        check(part >= share, f'{what}: {program.name}: only {part:.1%} went through rings: {totals}')
    else:
        check(totals['ring'] == 0 and totals['switched'] == 0, f'{what}: rings used with a plain peer: {totals}')


def sides():
    """(server under Ringway?, client under Ringway?) from the command line."""
    word = sys.argv[1]
    check(word in ('both', 'client', 'server'), f'bad argument {word}')
    return word != 'client', word != 'server'


def cases():
    """Each case that a test runs: (what it is called, server under Ringway, client under Ringway, AFTER)."""
    server, client = sides()
    for after in AFTERS:
        yield f'{sys.argv[1]}, after={after or "default"}', server, client, after


def make_data(name, size):
    """A file of SIZE random bytes; its path."""
    with open(path(name), 'wb') as f:
        while size > 0:
            part = os.urandom(min(size, 1 << 20))
            f.write(part)
            size -= len(part)
    return path(name)


def digest(name):
    whole = hashlib.sha256()
    with open(name, 'rb') as f:
        while part := f.read(1 << 20):
            whole.update(part)
    return whole.hexdigest()


def same(expected, got, what):
    check(os.path.getsize(expected) == os.path.getsize(got),
          f'{what}: {os.path.getsize(got)} bytes arrived of {os.path.getsize(expected)}')
    check(digest(expected) == digest(got), f'{what}: the bytes that arrived are not the bytes that were sent')
