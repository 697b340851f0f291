# SPDX-License-Identifier: MIT
"""Tests the harness itself: tests that fail, hang, or bring the guest down are told as such, the rest go on; nothing
outlives a harness that is killed; a guest that dies at boot costs no test; a broken cache is made again, by one of those who need it."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import guest  # noqa: E402
import kernel  # noqa: E402
import run  # noqa: E402

PATIENCE = 350
EXPECTED = {
    'that_passes': None, 'that_fails': 'ended with 3, not 0: too bad', 'that_hangs': 'the end of guest 1: /bin/bash -c echo before',
    'after_the_hang': None, 'that_computes': 'computes without ever waiting', 'that_is_wrong': "no attribute 'no_such_thing'",
    'of_limits': None, 'that_panics': 'guest 1 is gone', 'after_the_panic': None,
}


def expect(good, text):
    if not good:
        print(f'FAILED: {text}', flush=True)
        sys.exit(1)


def runner(out, *words):
    return [sys.executable, os.path.join(HERE, 'run.py'), '--out', out, *words, os.path.join(HERE, 'samples.py')]


def results(said):
    """{test: (passed, what was said about it)}"""
    parts = re.split(r'^(not ok|ok) \d+ (\S+)\n', said, flags=re.M)[1:]
    return {name: (word == 'ok', text) for word, name, text in zip(parts[::3], parts[1::3], parts[2::3])}


def check_results(out):
    done = subprocess.run(runner(out), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False)
    print(done.stdout, done.stderr, flush=True)
    expect(done.returncode == 1, f'tests have failed, but the exit status is {done.returncode}')
    expect(done.stdout.startswith(f'1..{len(EXPECTED)}\n'), 'no plan')
    got = results(done.stdout)
    expect(list(got) == list(EXPECTED), f'other tests have run: {list(got)}')
    for name, reason in EXPECTED.items():
        passed, text = got[name]
        expect(passed == (reason is None), f'{name}: {"passed" if passed else "failed"}')
        expect(reason is None or reason in text, f'{name}: "{reason}" is not given as the reason')
    expect('before' in got['that_hangs'][1] and 'sleep 1000: hrtimer_nanosleep' in got['that_hangs'][1],
           'what hung, and where, is not told')
    expect('sysrq' in got['that_panics'][1] and 'its console ends' in got['that_panics'][1], 'the console is not shown')
    with open(os.path.join(out, 'records'), encoding='utf-8') as f:
        expect(json.loads(f.read()) == {'test': 'of_limits', 'limits': ['64', '77', '65534']}, 'the record')


def machines(out):
    """Pids of the emulators whose guests write below OUT."""
    found = []
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            with open(path, 'rb') as f:
                words = f.read().decode(errors='replace')
        except OSError:
            continue
        if words.startswith('qemu-system') and out in words:
            found.append(int(path.split('/')[2]))
    return found


def until(condition, what):
    deadline = time.monotonic() + PATIENCE / 3
    while not condition():
        expect(time.monotonic() < deadline, f'gave up waiting: {what}')
        time.sleep(0.05)


def check_killed(out, number):
    """No guest outlives the harness, even if that gets no chance to end it."""
    with open(os.path.join(out, 'said'), 'wb') as said:
        child = subprocess.Popen(runner(out, '--only', 'that_computes'), stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            until(lambda: machines(out) or child.poll() is not None, 'a guest')
            expect(child.poll() is None, 'the harness ended early')
        finally:
            child.send_signal(number)
            child.wait()
    until(lambda: not machines(out), f'the guest to end after signal {number}')


def check_cache(place):
    """With the package of the true cache, so that nothing is downloaded."""
    with kernel.prepared() as (vmlinuz, _):
        cache = os.path.dirname(os.path.dirname(vmlinuz))
        package, = glob.glob(os.path.join(cache, 'linux-image-*.deb'))
        os.symlink(package, os.path.join(place, os.path.basename(package)))
    env = {**os.environ, 'TESTS_VM_CACHE': place}
    prepare = [sys.executable, os.path.join(HERE, 'kernel.py')]

    def both():
        children = [subprocess.Popen(prepare, stdin=subprocess.DEVNULL, env=env) for _ in range(2)]
        expect([child.wait(PATIENCE) for child in children] == [0, 0], 'preparing at the same time')
        made, = glob.glob(place + '/*/initramfs')
        expect(not glob.glob(os.path.join(place, kernel.SCRATCH + '*')), 'scratch files are left')
        return made, os.stat(made).st_ino

    made, first = both()
    expect(both()[1] == first, 'a good cache was made again')
    with open(made, 'r+b') as f:
        f.truncate(os.path.getsize(made) - 1)
    os.mkdir(os.path.join(place, kernel.SCRATCH + 'left'))
    expect(both()[1] != first, 'a broken cache was kept')


def check_boots(out):
    """A guest that dies before it has run anything is started again, but not for ever."""
    for deaths, up in ((run.BOOTS - 1, True), (run.BOOTS, False)):
        started = []

        class Mortal(guest.Guest):
            def wait_up(self):
                started.append(self)
                if len(started) <= deaths:
                    self.process.kill()
                super().wait_up()

        with unittest.mock.patch.object(guest, 'Guest', Mortal):
            lab = run.Lab(out, types.SimpleNamespace())
            try:
                lab.ready()
                lived = True
            except guest.Lost:
                lived = False
            finally:
                lab.end()
        expect(lived == up and len(started) == run.BOOTS, f'of guests of which {deaths} die, {len(started)} were started')


def check_listed():
    """Every file of tests is in meson.build."""
    with open(os.path.join(HERE, 'meson.build'), encoding='utf-8') as f:
        listed = f.read()
    for path in glob.glob(os.path.join(HERE, 'test_*.py')):
        name = os.path.basename(path)[len('test_'):-len('.py')]
        expect(f"'{name}':" in listed, f'{name} is not in tests/vm/meson.build')


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    place = tempfile.mkdtemp(prefix='ringway-vm-selftest.')
    try:
        check_listed()
        for part in ('cache', 'killed', 'boots', 'results'):
            os.mkdir(os.path.join(place, part))
        check_cache(os.path.join(place, 'cache'))
        for number in (signal.SIGKILL, signal.SIGTERM):
            check_killed(os.path.join(place, 'killed'), number)
        check_boots(os.path.join(place, 'boots'))
        check_results(os.path.join(place, 'results'))
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == '__main__':
    main()
