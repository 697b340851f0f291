# SPDX-License-Identifier: MIT
"""TCP, rsockets and Ringway side by side on the same soft-RoCE link between two guests, by the same program: rstream of
librdmacm, which can use plain sockets, too. Not a test: times under emulation are worth a comparison at most, and only of
what ran in turn. python3 tests/vm/run.py --out DIR --limit 3000 tests/vm/bench.py"""
import os
import statistics

import proof
import traffic
from guest import check

GUESTS, LIMIT = 2, 1500
WAYS = 'tcp', 'rsockets', 'ringway'


def processor_seconds(*guests):
    """What the emulators have taken so far. It tells more than the clock where the processors have other work, too."""
    ticks = 0
    for guest in guests:
        with open(f'/proc/{guest.process.pid}/stat', encoding='ascii') as f:
            ticks += sum(int(word) for word in f.read().rsplit(')', 1)[1].split()[11:13])
    return ticks / os.sysconf('SC_CLK_TCK')


def measure(way, one, two, size, count, iterations):
    """(seconds, processor seconds, Ringway's counts of client and server)"""
    end = (lambda guest: traffic.ringway(guest, after=0, patience=1000)) if way == 'ringway' else traffic.plain
    before = processor_seconds(one, two)
    ends = traffic.rstream(end(one), end(two), size, count, iterations, sockets=way != 'rsockets')
    spent = processor_seconds(one, two) - before
    return traffic.microseconds(ends[1]) * 2 * count * iterations / 1e6, spent, proof.counted(*ends) if way == 'ringway' else None


def steady(way, one, two, size, count, short, long):
    """Microseconds and processor microseconds a message, start-up taken out: what a long stream takes more than a short one."""
    brief, whole = (measure(way, one, two, size, count, iterations) for iterations in (short, long))
    messages = 2 * count * (long - short)
    if way == 'ringway':
        check(whole[2]['ring'] > 9 * whole[2]['tcp'], f'most of it went by TCP: {whole[2]}')
    counts = {name: round((whole[2][name] - brief[2][name]) / messages, 3) for name in proof.WORK_COUNTS} if whole[2] else None
    return [round((b - a) * 1e6 / messages, 1) for a, b in zip(brief[:2], whole[:2])], counts, [round(figure, 2) for figure in brief[:2]]


def compare(one, two, record, rounds, size, *shape):
    """In turn, so that whatever else the machine does meets all of them; the ratios are medians of each round's own."""
    rows = []
    for number in range(rounds):
        row = {}
        for way in (WAYS, WAYS[::-1])[number % 2]:
            row[way], counts, brief = steady(way, one, two, size, *shape)
            record(size=size, way=way, us_a_message=row[way], a_message=counts, short_one_s=brief)
        rows.append(row)
    for index, what in enumerate(('time', 'processor time')):
        record(size=size, what=what, us_a_message={way: statistics.median(row[way][index] for row in rows) for way in WAYS},
               **{f'{way}_by_ringway': sorted(round(row[way][index] / max(row['ringway'][index], 0.1), 2) for row in rows) for way in WAYS[:2]})


def test_latency(one, two, record):
    """Ping-pong of small messages."""
    compare(one, two, record, 7, 64, 1, 20, 220)


def test_small_messages_one_way(one, two, record):
    compare(one, two, record, 5, 64, 1000, 2, 12)


def test_large_messages_one_way(one, two, record):
    compare(one, two, record, 7, 65536, 40, 2, 22)
