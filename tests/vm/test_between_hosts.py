# SPDX-License-Identifier: MIT
"""Two guests under Ringway: unmodified programs over real verbs between them, over a good wire and a bad one."""
import proof
import traffic
from guest import limit

GUESTS, LIMIT = 2, 90


def test_netcat(one, two):
    proof.carry('verbs', traffic.netcat, one, two)


@limit(120)
def test_redis(one, two):
    proof.carry('verbs', traffic.redis, one, two)


def test_sockperf(one, two):
    proof.carry('verbs', traffic.sockperf, one, two, settings={'after': 0})


def test_one_plain_side(one, two):
    """Whoever runs under Ringway finds out that the peer does not."""
    for server, client, mine in ((traffic.ringway, traffic.plain, 0), (traffic.plain, traffic.ringway, 1)):
        proof.prove_tcp(traffic.netcat(server(one), client(two), size=8000000)[mine], 'peer-silent')


@limit(120)
def test_a_wire_that_loses_packets(one, two):
    for guest in (one, two):
        guest.run('tc qdisc add dev rnic0 root netem loss 1% delay 1ms')
    proof.carry('verbs', traffic.netcat, one, two, size=300000)


@limit(120)
def test_a_device_is_removed_under_load(one, two):
    stream = traffic.Stream(traffic.ringway(one), traffic.ringway(two))
    proof.until_moved(*stream.lanes)
    two.run(['rdma', 'link', 'delete', 'rxe0'])
    stream.ends_or_goes_on()
