# SPDX-License-Identifier: MIT
"""Two guests under Ringway: what a message costs, in work requests, doorbells and completions. Counted over what went by the ring."""
import proof
import traffic
from guest import check

GUESTS, LIMIT = 2, 180
SIZE, RING = 64, 256 << 10
SLACK = 64  # credits, words, and what flushing takes at the end


def cost(one, two, record, size, count, iterations):
    """[(counts, messages sent, messages received)] of server and client."""
    ends = traffic.rstream(traffic.ringway(one, after=0), traffic.ringway(two, after=0), size, count, iterations)
    proof.prove(ends, 'verbs', least=size * count * iterations // 2)
    proof.prove_same(*ends)
    rows = [proof.counted(end) for end in ends]
    for row in rows:
        record(**row)
    return [(row, row['ring_tx'] / size, row['ring_rx'] / size) for row in rows]


def test_a_quiet_ping_pong(one, two, record):
    """A work request and a doorbell a message; a completion for each that comes, and one for sixteen that go."""
    for row, sent, received in cost(one, two, record, SIZE, 1, 400):
        check(sent / 2 < row['wr'] <= sent + SLACK and row['doorbells'] <= sent + SLACK, f'of {sent} messages: {row}')
        check(row['cqes'] <= received + sent / 16 + SLACK, f'of {sent} messages: {row}')


def test_small_messages_one_way(one, two, record):
    for row, sent, received in cost(one, two, record, 8, 5000, 8):
        check(0 < row['wr'] <= 0.4 * max(sent, received) + SLACK, f'of {sent} messages: {row}')


def test_a_stream(one, two, record):
    """A work request for 16 KiB, one more where the ring wraps, and at most two credits a ring."""
    for row, *_ in cost(one, two, record, 65536, 40, 4):
        most = row['ring_tx'] / 16384 + row['ring_tx'] / RING + 2 * row['ring_rx'] / RING + SLACK
        check(0 < row['wr'] <= most, f'at most {most}: {row}')
