# SPDX-License-Identifier: MIT
"""The part of tools/check that builds, runs the tests and sums up. Every step is bounded, see class Jail."""
import argparse
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILDS = os.path.join(TOP, 'build-check')
LOGS = os.path.join(BUILDS, 'logs')
INIT = os.path.join(TOP, 'tools', 'lib', 'phase_init.py')
RESULT_LINE = re.compile(r'^\s*(\d+)/(\d+) (.*?)\s+(OK|FAIL|SKIP|TIMEOUT|ERROR|EXPECTEDFAIL|UNEXPECTEDPASS|INTERRUPT)\s+([\d.]+)s')
GOOD = {'OK', 'EXPECTEDFAIL'}

BUILD_LIMIT = 900
APART = ('long', 'vm', 'vm-long')  # suites that have phases of their own
AGAIN_MOST, AGAIN_LIMIT = 3, 120
SANITIZER = {
    'ASAN_OPTIONS': 'verify_asan_link_order=0:detect_stack_use_after_return=0:abort_on_error=1:detect_leaks=0',
    'UBSAN_OPTIONS': 'halt_on_error=1:print_stacktrace=1',
}


def say(text):
    print(text, flush=True)


class Jail:
    """Runs commands so that nothing outlives them: in a PID namespace (with its own loopback when we are root), under
    timeout(1), stdin empty, output in a file. Without namespaces phase_init.py kills what it finds below itself."""

    def __init__(self, deadline, logs):
        self.deadline, self.logs = deadline, logs
        self.temp = tempfile.mkdtemp(prefix='ringway-check.')
        self.prefix, self.net = [], '0'
        pid = ['--pid', '--fork', '--kill-child', '--mount-proc']
        # In a plain chroot / is no mount point, and its propagation cannot be changed.
        pids = [pid, [*pid, '--propagation', 'unchanged']]
        ways = [(['unshare', *ids, *net], '1' if net else '0') for net in (['--net'], []) for ids in pids]
        if os.geteuid() != 0:
            ways = [(['unshare', '--user', '--map-current-user', *pid], '0')]
        for prefix, net in ways:
            if subprocess.run([*prefix, 'true'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=20, check=False).returncode == 0:
                self.prefix, self.net = prefix, net
                break
        else:
            say('check: no PID namespaces here; stray processes are looked for and killed instead')

    def left(self):
        return self.deadline - time.monotonic()

    def run(self, name, command, limit, env=None, on_line=None):
        """Run COMMAND; its report (see phase_init.py), or None when even that could not be written."""
        limit = max(1, int(min(limit, self.left())))
        tmp = os.path.join(self.temp, name)
        os.makedirs(tmp)
        report, log = os.path.join(self.temp, name + '.json'), os.path.join(self.logs, name + '.log')
        argv = ['timeout', '-k', '10', str(limit + 12), *self.prefix, '/usr/bin/python3', INIT, report, str(limit),
                self.net, *command]
        # Meson's own log is written late; unbuffered output is what tells how far a phase came.
        full = {**os.environ, 'TMPDIR': tmp, 'PYTHONUNBUFFERED': '1', 'LC_ALL': 'C.UTF-8', **(env or {})}
        with open(log, 'wb') as out, open(log, encoding='utf-8', errors='replace') as tail:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=full,
                                     cwd=TOP, start_new_session=True)
            start, partial = time.monotonic(), ''
            beat = start + 20
            try:
                while True:
                    ended, now = child.poll() is not None, time.monotonic()
                    *lines, partial = (partial + tail.read()).split('\n')
                    if on_line and any([on_line(line) for line in lines]):
                        beat = now + 20
                    if ended or now > start + limit + 30:
                        break
                    if now > beat:
                        say(f'  {name}: still at it, {int(now - start)} s of at most {limit} s')
                        beat = now + 20
                    time.sleep(0.1)
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait(10)
        try:
            with open(report, encoding='utf-8') as f:
                return json.load(f)
        except (OSError, ValueError):
            return None

    def close(self):
        shutil.rmtree(self.temp, ignore_errors=True)


class Tally:
    """The results so far."""

    def __init__(self):
        self.passed, self.failed, self.skipped, self.unsteady = 0, [], 0, []
        with open(os.path.join(TOP, 'tests', 'allowed-skips'), encoding='utf-8') as f:
            rows = [line.partition(':') for line in f if line.strip() and not line.startswith('#')]
        self.allowed = {name.strip() for name, _, reason in rows if reason.strip()}

    def check(self, good, name, why=''):
        if good:
            self.passed += 1
        else:
            self.failed.append(f'{name}: {why}')
            say(f'  FAILED {name}: {why}')

    def unsteady_pass(self, name, why):
        self.passed += 1
        self.unsteady.append(f'{name}: first {why}')
        say(f'  UNSTEADY {name}: first {why}; passed when tried again alone')

    def skip(self, phase, name):
        if name in self.allowed:
            self.skipped += 1
        else:
            self.check(False, f'{phase} {name}', 'skipped, and tests/allowed-skips does not name it')


def tail_of(path, lines):
    try:
        with open(path, encoding='utf-8', errors='replace') as f:
            return ''.join(f.readlines()[-lines:])
    except OSError:
        return ''


def build(jail, tally, what):
    """Configure and compile into build-check/NAME; true if that worked."""
    name, directory = what.name, os.path.join(BUILDS, what.name)
    say(f'== {name}: build')
    if not os.path.exists(os.path.join(directory, 'build.ninja')):
        shutil.rmtree(directory, ignore_errors=True)
        report = jail.run(f'{name}-setup', ['meson', 'setup', *what.setup, directory, TOP], 120, what.env)
        if not report or report['status'] != 0:
            say(tail_of(os.path.join(LOGS, f'{name}-setup.log'), 30))
            tally.check(False, f'{name} setup', 'timed out' if report and report['timed_out'] else 'meson setup failed')
            return False
    report = jail.run(f'{name}-build', ['ninja', '-C', directory], BUILD_LIMIT, what.env)
    good = bool(report) and report['status'] == 0
    if not good:
        say(tail_of(os.path.join(LOGS, f'{name}-build.log'), 60))
    tally.check(good, f'{name} build', 'timed out' if report and report['timed_out'] else 'did not compile')
    return good


def tests_of(directory, suites):
    """{name as meson prints it: suite/name} of the tests in these suites (None: all but those APART)."""
    out = subprocess.run(['meson', 'introspect', '--tests', directory], stdin=subprocess.DEVNULL, capture_output=True,
                         timeout=60, check=True).stdout
    names = {}
    for test in json.loads(out):
        suite = test['suite'][0].partition(':')[2] or test['suite'][0] if test['suite'] else ''
        if suite in suites if suites else suite not in APART:
            names[test['name']] = f'{suite}/{test["name"]}'
    return names


def plain_name(name):
    """Meson puts "project:suite / " before a name when there are several suites."""
    return name.rpartition(' / ')[2]


def read_results(directory, seen):
    """{name: (result, output)} from meson's log, completed by what its output told while it ran."""
    results = {name: (result, '') for name, result in seen.items()}
    try:
        with open(os.path.join(directory, 'meson-logs', 'testlog.json'), encoding='utf-8') as f:
            for line in f:
                row = json.loads(line)
                results[plain_name(row['name'])] = (row['result'], row['stdout'] + row.get('stderr', ''))
    except (OSError, ValueError):
        pass
    return results


def keep_output(phase, test, output):
    """The output of a test that failed, where a second try does not write over it; the name of the file."""
    path = os.path.join(LOGS, f'{phase}-{test}.failed.log')
    with open(path, 'w', encoding='utf-8') as f:
        f.write(output)
    return os.path.relpath(path, TOP)


def run_tests(jail, tally, phase):
    name, directory, env = phase.name, os.path.join(BUILDS, phase.build.name), phase.build.env
    expected = tests_of(directory, phase.suites)
    say(f'== {name}: {len(expected)} tests, at most {int(min(phase.limit, max(jail.left(), 0)))} s')
    if not expected:
        return
    command = ['meson', 'test', '-C', directory, '--no-rebuild', '-t', str(phase.multiplier)]
    for suite in phase.suites or []:
        if any(full.startswith(suite + '/') for full in expected.values()):
            command += ['--suite', suite]
    log = os.path.join(directory, 'meson-logs', 'testlog.json')
    if os.path.exists(log):
        os.unlink(log)
    seen = {}

    def on_line(line):
        match = RESULT_LINE.match(line)
        if not match:
            return False
        index, count, test, result, seconds = match.groups()
        test = plain_name(test)
        seen[test] = result
        say(f'  {name} {index}/{count} {result} {expected.get(test, test)} {seconds} s')
        return True

    report = jail.run(f'{name}-tests', command + ['--num-processes', '2'], phase.limit, env, on_line)
    results = read_results(directory, seen)
    unfinished = 'had not finished, or not begun, when its phase was stopped'
    if report and not report['timed_out']:
        unfinished = f'did not run: meson ended early, see {os.path.relpath(LOGS, TOP)}/{name}-tests.log'
    failed = []
    for test, full in expected.items():
        result, output = results.get(test, (None, ''))
        if result in GOOD:
            tally.passed += 1
        elif result == 'SKIP':
            say(f'  skipped {full}: {output.strip().splitlines()[-1] if output.strip() else "no reason given"}')
            tally.skip(name, full)
        elif result is None or result == 'INTERRUPT':
            tally.check(False, f'{name} {full}', unfinished)
        else:
            if output:
                say('\n'.join('    | ' + line for line in output.splitlines()[-40:]))
            failed.append((test, full, f'{result.lower()}, see {keep_output(name, test, output)}'))
    for i, (test, full, why) in enumerate(failed):
        # A few may owe it to other load on the machine: each gets one more try, alone, and is named at the end all the same.
        again = None
        if len(failed) <= AGAIN_MOST:
            again = jail.run(f'{name}-again-{i}', command + [test], AGAIN_LIMIT * phase.multiplier, env)
        if again and again['status'] == 0 and not again['timed_out']:
            tally.unsteady_pass(f'{name} {full}', why)
        else:
            tally.check(False, f'{name} {full}', why)
    if not report:
        tally.check(False, f'{name} tests', 'the phase had to be killed')
        return
    if report['timed_out']:
        tally.check(False, f'{name} tests', f'stopped after {phase.limit} s')
    left = [f'process {p}' for p in report['processes']] + report['files'] + [f'socket {s}' for s in report['sockets']]
    tally.check(not left or report['timed_out'], f'{name} leaves nothing behind', ', '.join(left))


# A build is a directory below build-check, meson's options, and an environment.
Build = collections.namedtuple('Build', 'name setup env')
# Its tests: suites (None: all but those APART), the limit of the phase in seconds, what meson multiplies time-outs by.
Phase = collections.namedtuple('Phase', 'name build suites limit multiplier')


def phases(options):
    gcc, clang = Build('gcc', [], {'CC': 'gcc'}), Build('clang', [], {'CC': 'clang'})
    asan = Build('asan', ['-Db_sanitize=address,undefined', '-Dbuildtype=debugoptimized'], {'CC': 'gcc', **SANITIZER})
    sanitized = ['unit', 'conformance', 'fault', 'soak']
    if options.quick:
        return [Phase('gcc', gcc, ['unit', 'surface', 'check'], 400, 1)]
    if not options.all:
        return [Phase('gcc', gcc, None, 1500, 1), Phase('clang', clang, ['unit', 'surface'], 600, 1),
                Phase('asan', asan, sanitized, 1200, 3), Phase('vm', gcc, ['vm'], 1500, 2)]
    return [Phase('gcc', gcc, None, 2400, 2), Phase('clang', clang, None, 2400, 2), Phase('asan', asan, sanitized, 2400, 4),
            Phase('gcc-long', gcc, ['long'], 2400, 3), Phase('clang-long', clang, ['long'], 2400, 3),
            Phase('asan-long', asan, ['long'], 3000, 5), Phase('vm', gcc, ['vm', 'vm-long'], 9000, 2)]


def main():
    parser = argparse.ArgumentParser(prog='tools/check', add_help=False, allow_abbrev=False)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument('--quick', action='store_true')
    extent.add_argument('--all', action='store_true')
    parser.add_argument('--budget', type=float, metavar='MINUTES')
    options = parser.parse_args()
    budget = options.budget or (240 if options.all else 45)
    # Told to end, it ends what it has started; tools/check prints the last line then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.monotonic()
    os.makedirs(LOGS, exist_ok=True)
    jail, tally = Jail(started + budget * 60, LOGS), Tally()
    try:
        built = {}
        for phase in phases(options):
            try:
                late = f'not run: the budget of {budget:g} minutes is used up'
                if jail.left() >= 10 and phase.build.name not in built:
                    built[phase.build.name] = False
                    built[phase.build.name] = build(jail, tally, phase.build)
                if jail.left() < 10:
                    tally.check(False, f'{phase.name} tests', late)
                elif built[phase.build.name]:
                    run_tests(jail, tally, phase)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                tally.check(False, phase.name, f'{type(error).__name__}: {error}')
    finally:
        jail.close()
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    say(f'== took {minutes} min {seconds} s; logs in {os.path.relpath(LOGS, TOP)}')
    for row in tally.failed:
        say(f'  FAILED {row}')
    for row in tally.unsteady:
        say(f'  UNSTEADY {row}')
    if tally.unsteady:
        say(f'{len(tally.unsteady)} of the passed failed at first, and passed when tried again alone: see UNSTEADY above')
    say(f'{tally.passed} passed, {len(tally.failed)} failed, {tally.skipped} skipped')
    return 1 if tally.failed else 0


if __name__ == '__main__':
    try:
        STATUS = main()
    except Exception:  # tools/check prints the last line for any other status
        traceback.print_exc()
        STATUS = 3
    sys.exit(STATUS)
