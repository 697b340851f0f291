# SPDX-License-Identifier: MIT
"""Two guests joined by a wire: verbs between them, a wire that loses packets, and a device that is taken away."""
import json

import rping
from guest import check, limit

GUESTS = 2


def test_rping(one, two):
    rping.ping(one, two, one.address, 50)


@limit(120)
def test_a_wire_that_loses_packets(one, two):
    for guest in (one, two):
        guest.run('tc qdisc add dev rnic0 root netem loss 4% delay 1ms')
    pings, count = rping.Pings(one, two, one.address), 0

    def lost():
        return sum(json.loads(guest.run('tc -s -j qdisc show dev rnic0'))[0]['drops'] for guest in (one, two))
    while not count or not lost():
        count += 20
        pings.until(count)
    pings.until(count + 20).kill()


def test_a_device_is_removed_under_load(one, two):
    """Whoever uses it is told, and it goes when he has let go of it."""
    pings = rping.Pings(one, two, one.address).until(20)
    removal = two.start(['rdma', 'link', 'delete', 'rxe0'])
    pings.client.until('device removal')
    pings.kill()
    removal.wait()
    check('rxe0' not in two.run(['rdma', 'link', 'show']), 'the device is still there')


def test_the_device_comes_back(one, two):
    """What one test does to the links is put right before the next."""
    for guest in (one, two):
        said = guest.run(['rdma', 'link', 'show', 'rxe0/1'])
        check('state ACTIVE' in said, said)
    rping.ping(one, two, one.address, 5)
