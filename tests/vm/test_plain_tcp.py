# SPDX-License-Identifier: MIT
"""Two guests, no road between them but TCP: under Ringway programs stay on it, unharmed, and it is said why."""
import traffic

GUESTS, LIMIT = 2, 90
# Whatever other roads are built in: this is about a peer that shared memory cannot reach.
SETTINGS = {'transports': 'shm'}


def both_ways(one, two, program, **size):
    """The server under Ringway, the client, and both."""
    for server, client in ((True, False), (False, True), (True, True)):
        ends = program(*(traffic.ringway(guest, **SETTINGS) if on else traffic.plain(guest)
                         for guest, on in ((one, server), (two, client))), **size)
        for end, on in zip(ends, (server, client)):
            if on:
                traffic.prove_tcp(end, 'no-peer')


def test_netcat(one, two):
    both_ways(one, two, traffic.netcat, kib=1024, back_kib=256)


def test_socat(one, two):
    both_ways(one, two, traffic.socat, kib=512)


def test_redis(one, two):
    both_ways(one, two, traffic.redis, requests=500)


def test_at_once(one, two):
    """The peer is looked for with the first call."""
    ends = traffic.netcat(traffic.ringway(one, after=0, **SETTINGS), traffic.ringway(two, after=0, **SETTINGS), kib=1024, back_kib=256)
    for end in ends:
        traffic.prove_tcp(end, 'no-peer')


def test_netcat_over_a_wire_that_loses_packets(one, two):
    for guest in (one, two):
        guest.run('tc qdisc add dev rnic0 root netem loss 1%')
    for end in traffic.netcat(traffic.ringway(one, **SETTINGS), traffic.ringway(two, **SETTINGS), kib=1024, back_kib=256):
        traffic.prove_tcp(end, 'no-peer')
