# SPDX-License-Identifier: MIT
"""TCP, rsockets and Ringway side by side on the same soft-RoCE link between two guests, by the same program: rstream of
librdmacm, which can use plain sockets, too. Not a test: times under emulation are worth a comparison at most, and only of
what ran in turn. python3 tests/vm/run.py --out DIR --limit 3000 tests/vm/bench.py"""
import statistics

import proof
import traffic

GUESTS, LIMIT = 2, 900
ROUNDS = 3


def by_ringway(one, two, record, size, count, iterations):
    ends = traffic.rstream(traffic.ringway(one, after=0), traffic.ringway(two, after=0), size, count, iterations)
    proof.prove(ends, 'verbs', least=size * count * iterations)
    total = proof.counted(*ends)
    record(size=size, share_by_rings=round(total['ring'] / (total['ring'] + total['tcp']), 2))
    return traffic.microseconds(ends[1])


def others(one, two, *shape, sockets):
    return traffic.microseconds(traffic.rstream(traffic.plain(one), traffic.plain(two), *shape, sockets=sockets)[1])


def compare(one, two, record, *shape):
    """In turn, so that whatever else the machine does meets all of them; the ratios are medians of each round's own."""
    rows = [{'tcp': others(one, two, *shape, sockets=True), 'rsockets': others(one, two, *shape, sockets=False),
             'ringway': by_ringway(one, two, record, *shape)} for _ in range(ROUNDS)]
    record(size=shape[0], us_a_message={way: round(statistics.median(row[way] for row in rows), 1) for way in rows[0]},
           **{f'{way}_by_ringway': round(statistics.median(row[way] / row['ringway'] for row in rows), 2) for way in ('tcp', 'rsockets')})


def test_latency(one, two, record):
    """Ping-pong of small messages."""
    compare(one, two, record, 64, 1, 200)


def test_small_messages_one_way(one, two, record):
    compare(one, two, record, 64, 1000, 10)


def test_large_messages_one_way(one, two, record):
    compare(one, two, record, 65536, 40, 6)
