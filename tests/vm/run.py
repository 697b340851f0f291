# SPDX-License-Identifier: MIT
"""run.py [--out DIR] [--limit SECONDS] [--only GLOB] FILE: boots the guests that FILE asks for and runs its tests in them.

FILE is Python. Each function test_NAME is one test, run in the order of the file; its parameters say what it gets: "one"
and "two" are the guests, "record" notes a result. GUESTS, CPUS, MIB and LIMIT (seconds a test) may be set at its top, and
@limit(SECONDS) before a function. The output is TAP, so that meson tells each test's result. A guest that is lost, or that
does not answer any more, is booted again for the next test.
"""
import argparse
import contextlib
import fnmatch
import importlib.util
import inspect
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import guest as vm  # noqa: E402
import kernel  # noqa: E402

TEST_SECONDS, FILE_SECONDS, TIDY_SECONDS = 60, 280, 30
BOOTS = 3  # how often guests are started for one test that needs them

# Run before each test, so that whatever the one before has left is put right. Two guests are joined by a wire. In one
# alone the device stands on a veth pair, and peers use its address: 127.0.0.1 belongs to no RDMA device.
LINKS = '''
set -e
n=$0
if [ ! -e /sys/class/net/rnic0 ]; then
	hostname guest$n
	ip link set lo up
	if [ -e /sys/class/net/eth0 ]; then
		ip link set eth0 name rnic0
	else
		ip link add rnic0 type veth peer name rnic1
		ip link set rnic1 up
	fi
	ip addr add 10.9.0.$n/24 dev rnic0
	ip addr add fd09::$n/64 dev rnic0 nodad
	ip link set rnic0 up
else
	tc qdisc del dev rnic0 root 2>/dev/null || true
	tc qdisc del dev rnic0 ingress 2>/dev/null || true
fi
[ -e /sys/class/infiniband/rxe0 ] || rdma link add rxe0 type rxe netdev rnic0
'''


def say(text):
    """Something beside the results."""
    for line in text.splitlines():
        print('# ' + line, flush=True)


class Lab:
    """The guests of one file."""

    def __init__(self, out, module):
        self.out, self.count = out, getattr(module, 'GUESTS', 1)
        self.size = {'cpus': getattr(module, 'CPUS', 2), 'mib': getattr(module, 'MIB', 1024)}
        self.clock, self.guests = vm.Clock(), []
        self.missing = None  # why there is no kernel: not tried again for each test

    def boot(self):
        """A kernel may die under emulation, where it patches its own text while another processor runs it. A guest that is lost before it has run a
        program says nothing of any test, and is started again."""
        for left in reversed(range(BOOTS)):
            try:
                self._start()
                self._put_links_right()
                return
            except vm.Lost as error:
                if not left:
                    raise
                say(f'{error} before it has run anything, and is started again')
                for guest in self.guests:
                    if not guest.alive():
                        say(f'--- {guest}: its console ends')
                        say('\n'.join(guest.console()))

    def _start(self):
        self.end()
        if self.missing:
            raise self.missing
        started = time.monotonic()
        self.clock.start(vm.BOOT_SECONDS)
        wires = socket.socketpair() if self.count == 2 else (None,)
        try:
            with kernel.prepared() as files:
                for number, wire in enumerate(wires, 1):
                    self.guests.append(vm.Guest(number, os.path.join(self.out, str(number)), self.clock, files, wire, **self.size))
                for guest in self.guests:
                    guest.wait_up()
        except kernel.Unprepared as error:
            self.missing = error
            raise
        finally:
            for wire in wires:
                if wire:
                    wire.close()
        say(f'{self.count} guest(s) with Linux {self.guests[0].release}, up after {time.monotonic() - started:.0f} s')

    def ready(self):
        """Guests that are up and as they were at the beginning."""
        if self.guests and all(guest.alive() for guest in self.guests):
            self._put_links_right()
        else:
            self.boot()

    def _put_links_right(self):
        self.clock.start(TIDY_SECONDS)
        for guest in self.guests:
            guest.run(['/bin/bash', '-c', LINKS, str(guest.number)], cwd='/run')

    def tidy(self):
        """End whatever a test has left running; a guest that cannot do that is given up."""
        self.clock.start(TIDY_SECONDS)
        try:
            for guest in self.guests:
                guest.ask('tidy', remove=vm.WORK)
                guest.started = []
        except vm.Failed:
            self.end()

    def explain(self):
        """What there is to see when a test has failed."""
        self.clock.start(TIDY_SECONDS)
        for guest in self.guests:
            try:
                for p in guest.ask('look')['processes']:
                    say(f'{guest}: left: {p["pid"]} {p["state"]} {p["cmdline"][:120]}: {p["wchan"]}, system call {p["syscall"]}')
                    if p['state'] == 'D':
                        say(p['stack'])
                for program in guest.started:
                    if program.status is None and program.output():
                        say(f'--- {program}: so far\n{program.output()[-1500:]}')
                    if program.log():
                        say(f'--- {program}: logged\n{program.log()[-1500:]}')
                if 'TESTS_TOOL' in os.environ:
                    say(guest.run([os.environ['TESTS_TOOL'], 'ps'], None))
            except vm.Failed as error:
                say(f'{error}')
            if guest.console():
                say(f'--- {guest}: its console ends')
                say('\n'.join(guest.console()))

    def end(self):
        for guest in self.guests:
            guest.end()
        self.guests = []


class Records:
    """Results that are noted, not judged: one JSON object a line."""

    def __init__(self, path):
        self.path, self.test = path, None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def __call__(self, **row):
        line = json.dumps({'test': self.test, **row})
        with open(self.path, 'a', encoding='utf-8') as f:
            f.write(line + '\n')
        say('record: ' + line)


def load(path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix('.py'), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [(name.removeprefix('test_'), f) for name, f in vars(module).items() if name.startswith('test_') and callable(f)]
    return module, tests


def overdue(*_):
    raise vm.Late('this test computes without ever waiting for a guest')


def run_one(lab, function, gets, seconds, most):
    """None, or why it failed. It may take SECONDS, at most MOST on a busy machine, not counting that guests boot."""
    try:
        lab.ready()
        gets.update(zip(('one', 'two'), lab.guests))
        lab.clock.start(seconds, most)
        signal.setitimer(signal.ITIMER_REAL, lab.clock.seconds + 10)
        function(*[gets[name] for name in inspect.signature(function).parameters])
        return None
    except (vm.Failed, kernel.Unprepared) as error:
        return str(error)
    except Exception:  # a mistake in the test is a failure of this test alone
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_all(options, module, tests):
    deadline = time.monotonic() + options.limit
    records, failures = Records(os.path.join(options.out, 'records')), 0
    lab = Lab(options.out, module)
    try:
        for index, (name, function) in enumerate(tests, 1):
            records.test = name
            seconds = getattr(function, 'limit', getattr(module, 'LIMIT', TEST_SECONDS))
            started = time.monotonic()
            if started > deadline:
                reason = f'not run: the {options.limit:g} s of this file are over'
            else:
                reason = run_one(lab, function, {'record': records}, seconds, deadline - started)
            if reason:
                failures += 1
                print(f'not ok {index} {name}', flush=True)
                say(f'{reason}')
                lab.explain()
            else:
                print(f'ok {index} {name}', flush=True)
                say(f'{time.monotonic() - started:.1f} s')
            lab.tidy()
    finally:
        lab.end()
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
    parser.add_argument('--out', help='where consoles, outputs and records are kept')
    parser.add_argument('--limit', type=float, default=FILE_SECONDS, help='seconds for all tests together')
    parser.add_argument('--only', default='*', help='glob of the tests to run')
    parser.add_argument('file')
    options = parser.parse_args()
    module, tests = load(options.file)
    tests = [(name, function) for name, function in tests if fnmatch.fnmatchcase(name, options.only)]
    for program in ('qemu-system-x86_64', 'busybox'):
        if not shutil.which(program):
            print(f'1..0 # SKIP {program} is not installed')
            return 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    signal.signal(signal.SIGALRM, overdue)
    print(f'1..{len(tests)}', flush=True)
    with contextlib.ExitStack() as stack:
        if not options.out:
            options.out = stack.enter_context(tempfile.TemporaryDirectory(prefix='ringway-vm.'))
        options.out = os.path.abspath(options.out)
        os.makedirs(options.out, exist_ok=True)
        return 1 if run_all(options, module, tests) else 0


if __name__ == '__main__':
    sys.exit(main())
