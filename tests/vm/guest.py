# SPDX-License-Identifier: MIT
"""One emulated guest, seen from outside: booting it, running programs in it, and being sure that it ends.

Everything is done from one thread of this process: qemu ends with it, and what a test does in two guests happens in the
order in which the test says it. Every wait ends at the running test's limit.
"""
import base64
import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PR_SET_PDEATHSIG = 1
BOOT_SECONDS, SLOWEST = 60, 8.0
CONSOLE_LINES = 45
WORK = '/run/work'
PATIENCE_MS = 10000  # an emulated machine that shares its processors can stand still for seconds
COMMAND_LINE = (
    'console=ttyS0', 'quiet', 'panic=-1', 'oops=panic', 'mitigations=off', 'nokaslr', 'apparmor=0', 'audit=0', 'cryptomgr.notests',
    # On a busy machine an emulator is not there for a while, and then everything seems late: no reason to complain. A clock
    # that is measured at such a moment goes wrong for ever, so that only those are used which qemu keeps.
    'tsc=unstable', 'no_timer_check', 'nowatchdog', 'rcupdate.rcu_cpu_stall_suppress=1',
    # When it begins to leave out ticks the kernel patches its timers' text, while the other processor runs it: a panic, at times.
    'nohz=off',
)
_libc = ctypes.CDLL(None)


class Failed(Exception):
    """A test has failed; the text says what was wrong."""


class Late(Failed):
    """Something did not happen before the test's limit."""


class Lost(Failed):
    """The guest is gone."""


def limit(seconds):
    """Before a test: how long it may take."""
    def mark(function):
        function.limit = seconds
        return function
    return mark


def check(good, text):
    if not good:
        raise Failed(text)


def slowness():
    """How many times slower than alone everything is here, because others use the processors too."""
    return min(SLOWEST, max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))))


class Clock:
    """How long the running test may take; shared by the guests and whoever runs the tests."""

    def __init__(self):
        self.start(BOOT_SECONDS)

    def start(self, seconds, most=float('inf')):
        """SECONDS are meant for a machine with nothing else to do; MOST are seconds whatever it has to do."""
        self.seconds = min(seconds * slowness(), most)
        self.deadline = time.monotonic() + self.seconds

    def left(self):
        return self.deadline - time.monotonic()

    @contextlib.contextmanager
    def within(self, seconds):
        """A shorter limit for a part of a test."""
        outer = self.seconds, self.deadline
        self.start(seconds, self.left())
        try:
            yield
        finally:
            self.seconds, self.deadline = outer

    def need(self, what):
        if self.left() <= 0:
            raise Late(f'{what}: not within the {self.seconds:.0f} s of this test')


class Program:
    """A program that was started in a guest."""

    def __init__(self, guest, number, argv, preload):
        name = re.sub(r'[^a-z0-9_-]+', '-', os.path.basename(argv[0]).lower())
        self.guest, self.argv, self.preload = guest, argv, preload
        self.output_name = f'{number:03}-{name}'
        self.summary_path, self.log_path = f'{WORK}/summary-{number}', f'{WORK}/log-{number}'
        self.pid, self.status = None, None

    def __str__(self):
        text = ' '.join(self.argv)
        return f'{self.guest}: {text if len(text) < 200 else text[:200] + "..."}'

    def output(self):
        """What it has written so far: standard output, unless that went into a file in the guest, and standard error."""
        path = os.path.join(self.guest.directory, self.output_name)
        with contextlib.suppress(FileNotFoundError), open(path, encoding='utf-8', errors='replace') as f:
            return f.read()
        return ''

    def running(self):
        self.guest.hear(0)
        return self.status is None

    def wait(self, status=0):
        """Wait for its own end, which must be STATUS (minus a signal's number; None: any)."""
        while self.status is None:
            self.guest.clock.need(f'the end of {self}')
            self.guest.hear(1)
        check(status is None or self.status == status, f'{self}: ended with {self.status}, not {status}: {self.output()[-2000:]}')
        return self

    def until(self, pattern):
        """Wait until its output matches the regular expression PATTERN; answers the match."""
        while True:
            ended = not self.running()
            found = re.search(pattern, self.output(), re.M)
            if found:
                return found
            check(not ended, f'{self}: ended with {self.status} and never said "{pattern}": {self.output()[-2000:]}')
            self.guest.clock.need(f'"{pattern}" from {self}')
            self.guest.hear(0.02)

    def kill(self, number=signal.SIGKILL, everything=False):
        """Send a signal to it, or to its whole process group, and wait for its end."""
        self.signal(number, everything)
        return self.wait(None)

    def signal(self, number, everything=False):
        self.guest.ask('kill', pid=self.pid, signal=int(number), all=everything)

    def summary(self):
        """The lines that it and its children have written to RINGWAY_SUMMARY."""
        return [json.loads(line) for line in self.guest.read(self.summary_path).decode().splitlines()]

    def log(self):
        """What Ringway has logged in it and its children so far."""
        return self.guest.read(self.log_path, b'').decode(errors='replace')


class Guest:
    """Number 1 or 2; DIRECTORY gets the console and the outputs; WIRE is this guest's end of what joins two."""

    def __init__(self, number, directory, clock, boot, wire=None, cpus=2, mib=1024):
        self.number, self.directory, self.clock = number, directory, clock
        self.address, self.address6 = f'10.9.0.{number}', f'fd09::{number}'
        self.console_path = os.path.join(directory, 'console')
        self.heard, self.answers, self.programs = b'', {}, {}
        self.started = []  # since the last test ended
        self.count, self.release, self.process = 0, None, None
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        shutil.copy(os.path.join(HERE, 'agent.py'), directory)
        self._start(*boot, wire, cpus, mib)

    def __str__(self):
        return f'guest {self.number}'

    # -- the machine

    def _start(self, kernel, initramfs, wire, cpus, mib):
        self.port, far = socket.socketpair()
        fds = [far.fileno()]
        argv = ['qemu-system-x86_64', '-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot',
                '-accel', 'tcg,thread=multi', '-cpu', 'max,-cx16', '-smp', str(cpus), '-m', str(mib),
                '-serial', 'file:' + self.console_path, '-kernel', kernel, '-initrd', initramfs,
                '-append', ' '.join(COMMAND_LINE),
                # The bits of a file's number that tell one file system from another would not fit otherwise.
                '-virtfs', 'local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap',
                '-virtfs', f'local,path={self.directory},mount_tag=out,security_model=none',
                '-device', 'virtio-serial-pci', '-chardev', f'socket,id=port,fd={far.fileno()}',
                '-device', 'virtserialport,chardev=port,name=ringway']
        if wire:
            fds.append(wire.fileno())
            argv += ['-netdev', f'stream,id=wire,server=off,addr.type=fd,addr.str={wire.fileno()}',
                     '-device', f'virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:09:00:{self.number:02x}']

        def in_child():
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

        with open(os.path.join(self.directory, 'qemu'), 'wb') as said:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=fds,
                                            start_new_session=True, preexec_fn=in_child)
        far.close()

    def wait_up(self):
        while self.release is None:
            self.clock.need(f'{self} to come up')
            self.hear(1)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def end(self):
        """Nothing in a guest is worth keeping, so that it is not asked."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
            self.port.close()
            self.process = None

    def console(self):
        """The end of what the kernel has said; qemu's own words if it has any."""
        text = []
        for name in ('qemu', 'console'):
            with contextlib.suppress(OSError), open(os.path.join(self.directory, name), encoding='utf-8', errors='replace') as f:
                text += [line.rstrip() for line in f.read().splitlines()[-CONSOLE_LINES:]]
        return text

    # -- talking to the agent

    def hear(self, seconds):
        """Take in what the agent says, waiting for at most SECONDS for the first word."""
        seconds = max(0, min(seconds, self.clock.left()))
        while select.select([self.port], [], [], seconds)[0]:
            try:
                got = self.port.recv(1 << 16)
            except ConnectionError:
                got = b''
            if not got:
                raise Lost(f'{self} is gone')
            *lines, self.heard = (self.heard + got).split(b'\n')
            for line in lines:
                self._take(json.loads(line))
            seconds = 0

    def _take(self, message):
        if 'hello' in message:
            self.release = message['hello']
        elif 'id' in message:
            self.answers[message['id']] = message
        else:
            self.programs.pop(message['ended']).status = message['status']

    def ask(self, do, **request):
        """Have the agent do something; its answer."""
        self.count += 1
        number = self.count
        try:
            self.port.sendall(json.dumps({'id': number, 'do': do, **request}).encode() + b'\n')
        except OSError as error:
            raise Lost(f'{self} is gone') from error
        while number not in self.answers:
            self.clock.need(f'{self} to answer "{do}"')
            self.hear(1)
        answer = self.answers.pop(number)
        check('error' not in answer, f'{self}: {do} {request}: {answer.get("error")}')
        return answer

    # -- what tests use

    def start(self, command, ringway=None, env=None, stdin=None, stdout=None, cwd=WORK, user=None, **limits):
        """Start COMMAND: a list of words, or text for bash. With RINGWAY, a dictionary of settings such as {'after': 0},
        it runs under Ringway. STDIN and STDOUT are files in the guest; output() has standard error, and without STDOUT both.
        LIMITS are resource limits: memlock=65536, nofile=64. USER is the number of a user other than root."""
        argv = ['/bin/bash', '-c', command] if isinstance(command, str) else list(command)
        number = self.count + 1  # which ask() is going to give it
        program = Program(self, number, argv, (env or {}).get('LD_PRELOAD'))
        if ringway is not None:
            settings = {'summary': program.summary_path, 'log': 'info', 'log_file': program.log_path, 'patience': PATIENCE_MS, **ringway}
            words = [word for name, value in settings.items() for word in ('-o', f'{name}={value}')]
            argv = [os.environ['TESTS_TOOL'], 'run', *words, '--', *argv]
        self.programs[number] = program
        try:
            program.pid = self.ask('start', argv=argv, env=env or {}, stdin=stdin, stdout=stdout, output=program.output_name,
                                   cwd=cwd, user=user, limits=limits)['pid']
        except Failed:
            del self.programs[number]
            raise
        self.started.append(program)
        return program

    def run(self, command, status=0, **how):
        """Start COMMAND, wait for its end, which must be STATUS (None: any), and answer what it wrote."""
        return self.start(command, **how).wait(status).output()

    def read(self, path, missing=None):
        """What is in a file of the guest; MISSING, if given, where there is none."""
        answer = self.ask('read', path=path)
        check('data' in answer or missing is not None, f'{self}: there is no {path}')
        return base64.b64decode(answer['data']) if 'data' in answer else missing

    def until(self, condition, what):
        """Wait until CONDITION() holds and answer its value. For what nothing tells of; looks again and again."""
        while True:
            value = condition()
            if value:
                return value
            self.clock.need(f'{self}: {what}')
            self.hear(0.05)

    def sockets(self, port, state):
        """How many have this local port and this state, as the kernel writes it."""
        rows = [line.split() for table in ('/proc/net/tcp', '/proc/net/tcp6') for line in self.read(table).decode().splitlines()]
        return sum(row[3] == state and int(row[1].rpartition(':')[2], 16) == port for row in rows if row[0] != 'sl')

    def until_listening(self, port, program=None):
        """Wait until somebody listens at PORT; looked up, not tried: a connection would be counted."""
        self._until_program(program, lambda: self.sockets(port, '0A'), port)

    def until_rdma_listening(self, port, program=None):
        """The same for who listens with rdma_cm."""
        def listening():
            said = self.run(['rdma', 'resource', 'show', 'cm_id'])
            return re.search(rf'state LISTEN .*src-addr \S+:{port}\s', said)
        self._until_program(program, listening, port)

    def _until_program(self, program, condition, port):
        def holds():
            check(not program or program.running(), f'{program}: ended with {program and program.status}')
            return condition()
        self.until(holds, f'somebody to listen at port {port}')
