# SPDX-License-Identifier: MIT
"""Two guests under Ringway, and something goes wrong. Whatever it is: both ends end by themselves, no byte is wrong, and an end of file
is only told where TCP would tell one."""
import proof
import traffic

GUESTS, LIMIT = 2, 120


def stream(one, two, **settings):
    return traffic.Stream(traffic.ringway(one, **settings), traffic.ringway(two, **settings))


def moved(one, two, **settings):
    running = stream(one, two, **settings)
    proof.until_moved(*running.lanes)
    return running


def test_a_wire_that_loses_packets(one, two):
    for guest in (one, two):
        guest.run('tc qdisc add dev rnic0 root netem loss 1% delay 1ms')
    proof.carry('verbs', traffic.netcat, one, two, size=300000)


def test_the_device_of_the_client_is_removed(one, two):
    running = moved(one, two)
    two.run(['rdma', 'link', 'delete', 'rxe0'])
    running.ends_or_goes_on()
