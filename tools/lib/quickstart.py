# SPDX-License-Identifier: MIT
"""The demonstration of tools/quickstart: unmodified netcat and redis, first on plain TCP, then under Ringway.

usage: quickstart.py BEGAN
BEGAN is when tools/quickstart was started, in seconds since the epoch."""
import contextlib
import csv
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import programs

STEP_SECONDS = 40
# On a slow or busy machine what comes after this time, of the measuring or of the whole, is measured once and with fewer
# requests, so that the whole still ends within its limit.
UNHURRIED_SECONDS, UNHURRIED_SECONDS_IN_ALL = 50, 130
HURRIED_PART = 4
NETCAT_BYTES = 1 << 30
POOL_BYTES, PART_BYTES = 1 << 26, 1 << 22
# Words for redis-benchmark, requests.
REDIS_SHAPES = [('-c 1', 30000), ('-c 1 -P 16', 300000), ('-c 50', 100000), ('-c 50 -P 16', 500000)]


class Trouble(Exception):
    """A step that did not do what it should; its text is for the reader."""


class Pace:
    """Whether there is time for a thorough measurement. The user is told once when there is not."""

    def __init__(self, unhurried_seconds):
        self.until, self.told = time.monotonic() + unhurried_seconds, False

    def hurried(self):
        if time.monotonic() <= self.until:
            return False
        if not self.told:
            say('      from here on once and shorter: this machine is slow or busy, and these figures are rough')
        self.told = True
        return True


class Run:
    """Programs of one measurement, all of them plain or all under Ringway, and what they counted."""

    def __init__(self, directory, ringway):
        self.directory, self.ringway = directory, ringway
        self.summary = os.path.join(directory, 'summary')
        if os.path.exists(self.summary):
            os.unlink(self.summary)

    def start(self, argv, counted=True, **streams):
        settings = None
        if self.ringway:
            settings = [f'summary={self.summary}'] if counted else []
        return programs.start(argv, settings, cwd=self.directory, **streams)

    def share(self):
        """The share of the bytes that went through rings; None on plain TCP."""
        totals = programs.summary_totals(self.summary)
        everything = totals['ring'] + totals['tcp']
        return totals['ring'] / everything if everything else None


def finish(child, what):
    try:
        status = child.wait(STEP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        raise Trouble(f'{what} did not end within {STEP_SECONDS} seconds') from None
    if status != 0:
        raise Trouble(f'{what} ended with status {status}')


def serve(run, argv, port, **streams):
    child = run.start([*argv, str(port)], **streams)
    if not programs.wait_listening(port, child, 10):
        raise Trouble(f'{argv[0]} did not start')
    return child


def digest(path):
    whole = hashlib.sha256()
    with open(path, 'rb') as f:
        while part := f.read(1 << 20):
            whole.update(part)
    return whole.hexdigest()


def netcat(directory, ringway, data, expected):
    """({'netcat': GiB a second}, share)"""
    run, port, arrived = Run(directory, ringway), programs.free_port(), os.path.join(directory, 'arrived')
    server = serve(run, ['nc', '-l', '-d', '127.0.0.1'], port, stdout=arrived)
    started = time.monotonic()
    client = run.start(['nc', '-N', '127.0.0.1', str(port)], stdin=data)
    finish(client, 'the sending netcat')
    finish(server, 'the receiving netcat')
    took = time.monotonic() - started
    if digest(arrived) != expected:
        raise Trouble('netcat: the checksum of what arrived is wrong')
    os.unlink(arrived)
    return {'netcat': NETCAT_BYTES / took / (1 << 30)}, run.share()


def redis(directory, ringway, words, requests):
    """({'SET': requests a second, 'GET': ...}, share)"""
    run, port, out = Run(directory, ringway), programs.free_port(), os.path.join(directory, 'benchmark.csv')
    server = serve(run, ['redis-server', '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--daemonize', 'no',
                         '--port'], port)
    finish(run.start(['redis-benchmark', '-p', str(port), '-t', 'set,get', '--csv', *words.split(), '-n', str(requests)], stdout=out),
           'redis-benchmark')
    server.terminate()
    finish(server, 'redis-server')
    with open(out, encoding='utf-8', newline='') as f:
        figures = {row[0]: float(row[1]) for row in csv.reader(f) if len(row) > 1 and row[0] in ('SET', 'GET')}
    if len(figures) != 2:
        raise Trouble('redis-benchmark printed no figures')
    return figures, run.share()


def roomy_directory():
    """Memory rather than a disk where there is enough of it: two files of 1 GiB are needed at a time."""
    with open('/proc/meminfo', encoding='ascii') as f:
        free = {line.split(':')[0]: int(line.split()[1]) * 1024 for line in f}['MemAvailable']
    with contextlib.suppress(OSError):
        if free > 5 * NETCAT_BYTES and os.access('/dev/shm', os.W_OK) and shutil.disk_usage('/dev/shm').free > 3 * NETCAT_BYTES:
            return '/dev/shm'
    directory = tempfile.gettempdir()
    if shutil.disk_usage(directory).free < 2 * NETCAT_BYTES + POOL_BYTES:
        raise Trouble(f'two files of 1 GiB have no room in {directory}; TMPDIR may name another place')
    return directory


def make_data(path):
    """Pieces from random places of a random pool: as good at showing a byte lost or moved as 1 GiB from the kernel, whose making
    would take longer than sending it."""
    whole, pool = hashlib.sha256(), os.urandom(POOL_BYTES)
    with open(path, 'wb') as f:
        for _ in range(NETCAT_BYTES // PART_BYTES):
            start = random.randrange(POOL_BYTES - PART_BYTES)
            part = memoryview(pool)[start:start + PART_BYTES]
            f.write(part)
            whole.update(part)
    return whole.hexdigest()


def say(text):
    print(text, flush=True)


def both_ways(what, measure, pace):
    """The best figures of MEASURE(False) and of MEASURE(True), and the smallest share. Both run twice, in turn, so that
    neither of them alone pays for cold memory; where time is short once."""
    best, shares = ({}, {}), []
    for round_ in (1, 2):
        if round_ == 2 and pace.hurried():
            break
        for ringway in (False, True):
            say(f'      {what}, {"under Ringway" if ringway else "plain TCP"}, round {round_}')
            figures, share = measure(ringway)
            for name, value in figures.items():
                best[ringway][name] = max(value, best[ringway].get(name, 0))
            if ringway:
                shares.append(share)
    return *best, None if None in shares else min(shares)


def measure_all(directory, pace):
    """Rows of the table: (what, unit, figure on TCP, under Ringway, share)."""
    data = os.path.join(directory, 'data')
    say('      making 1 GiB of random data')
    expected = make_data(data)
    plain, ring, share = both_ways('netcat, 1 GiB', lambda on: netcat(directory, on, data, expected), pace)
    yield 'netcat 1 GiB, checksum equal', 'GiB/s', plain['netcat'], ring['netcat'], share
    os.unlink(data)
    for words, requests in REDIS_SHAPES:
        if pace.hurried():
            requests //= HURRIED_PART
        plain, ring, share = both_ways(f'redis-benchmark {words}', lambda on, w=words, n=requests: redis(directory, on, w, n), pace)
        for command in ('SET', 'GET'):
            yield f'redis {command} {words}', 'req/s', plain[command], ring[command], share


def figure(value):
    return f'{value:,.0f}' if value >= 100 else f'{value:.2f}'


def out_of_time(*_):
    """tools/quickstart's limit has passed: the table still shows what was measured."""
    raise Trouble('it took too long; this machine is too slow or too busy')


def interrupted(*_):
    raise Trouble('it was interrupted')


def show(rows):
    print(f'\n{"":30}{"plain TCP":>12}{"Ringway":>12}{"":7}{"ratio":>7}{"through rings":>16}')
    for what, unit, plain, ring, share in rows:
        part = 'no count' if share is None else f'{share:.1%}'
        print(f'{what:30}{figure(plain):>12}{figure(ring):>12} {unit:6}{ring / plain:>6.2f}x{part:>16}')
    print()


def main():
    rows, trouble, gone = [], None, time.time() - int(sys.argv[1])
    pace = Pace(min(UNHURRIED_SECONDS, UNHURRIED_SECONDS_IN_ALL - gone))
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    try:
        directory = programs.own_directory('ringway-quickstart.', roomy_directory())
        signal.signal(signal.SIGTERM, out_of_time)
        signal.signal(signal.SIGINT, interrupted)
        for row in measure_all(directory, pace):
            rows.append(row)
    except (Trouble, OSError) as error:
        trouble = str(error)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if rows:
        show(rows)
    if rows and load > cpus / 2:
        print(f'Other work ran here already (load {load:.1f} on {cpus} CPUs): these figures are rough.')
    if not trouble:
        slow = [what for what, _, _, _, share in rows if share is None or share < 0.5]
        if slow:
            trouble = f'most bytes of {", ".join(slow)} did not go through rings'
    if trouble:
        say(f'quickstart: FAILED: {trouble}')
        return 1
    say(f'quickstart: good: the data is right and went through rings ({time.time() - int(sys.argv[1]):.0f} s in all); '
        f'now try: {os.path.relpath(os.environ["TESTS_TOOL"])} run CMD')
    return 0


if __name__ == '__main__':
    sys.exit(main())
