# SPDX-License-Identifier: MIT
"""Two guests, no road between them but TCP: under Ringway programs stay on it, unharmed, and it is said why."""
import proof
import traffic
from guest import check, limit

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
                proof.prove_tcp(end, 'no-peer')


def test_netcat(one, two):
    both_ways(one, two, traffic.netcat, size=1000000, back=250000)


def test_socat(one, two):
    both_ways(one, two, traffic.socat, size=500000)


def test_redis(one, two):
    both_ways(one, two, traffic.redis, requests=500)


def test_at_once(one, two):
    """The peer is looked for with the first call."""
    ends = traffic.netcat(traffic.ringway(one, after=0, **SETTINGS), traffic.ringway(two, after=0, **SETTINGS), size=1000000, back=250000)
    for end in ends:
        proof.prove_tcp(end, 'no-peer')


def test_netcat_over_a_wire_that_loses_packets(one, two):
    for guest in (one, two):
        guest.run('tc qdisc add dev rnic0 root netem loss 1%')
    for end in traffic.netcat(traffic.ringway(one, **SETTINGS), traffic.ringway(two, **SETTINGS), size=1000000, back=250000):
        proof.prove_tcp(end, 'no-peer')


@limit(120)
def test_two_hundred_connections_whose_server_is_killed(one, two):
    """The clients' user may lock hardly any memory. The program must end by itself, as it does when a server dies."""
    server = one.start(['redis-server', '--bind', one.address, '--port', '6990', '--save', '', '--protected-mode', 'no'],
                       ringway={'after': 0, **SETTINGS})
    one.until_listening(6990, server)
    client = two.start(['redis-benchmark', '-h', one.address, '-p', '6990', '-c', '200', '-n', '1000000', '-t', 'set'],
                       ringway={'after': 0, **SETTINGS}, user=65534, memlock=65536)
    client.until('SET: rps=[1-9]')
    server.kill()
    client.wait(None)
    check(client.status > 0, f'{client}: ended with {client.status}: {client.output()[-300:]}')
    total = proof.counted(client)
    check(total['connections'] >= 200 and total['ring'] == 0, f'{client}: {total}')
