# SPDX-License-Identifier: MIT
"""Two guests joined by a wire: verbs between them, a wire that loses packets, and a device that is taken away."""
import json

from guest import check, limit

GUESTS = 2
RPING = ['stdbuf', '-oL', 'rping']


def rping(one, two, count, size=2000):
    """From the second guest to a server in the first; COUNT 0 goes on for ever."""
    server = one.start([*RPING, '-s', '-v', '-d', '-a', one.address, '-C', str(count), '-S', str(size)])
    one.until_rdma_listening(7174, server)
    return server, two.start([*RPING, '-c', '-v', '-V', '-a', one.address, '-C', str(count), '-S', str(size)])


def test_rping(one, two):
    server, client = rping(one, two, 50)
    client.wait()
    server.wait()
    check(server.output().count('server ping data: ') == 50, server.output()[-500:])


@limit(120)
def test_a_wire_that_loses_packets(one, two):
    for guest in (one, two):
        guest.run('tc qdisc add dev rnic0 root netem loss 4% delay 1ms')
    server, client = rping(one, two, 40)
    client.wait()
    server.wait()
    check(server.output().count('server ping data: ') == 40, server.output()[-500:])
    lost = 0
    for guest in (one, two):
        lost += json.loads(guest.run('tc -s -j qdisc show dev rnic0'))[0]['drops']
    check(lost > 0, 'the wire lost nothing')


def test_a_device_is_removed_under_load(one, two):
    """Both ends must end by themselves; what they say is theirs."""
    server, client = rping(one, two, 0)
    client.until('ping data: rdma-ping-20')
    two.run(['rdma', 'link', 'delete', 'rxe0'])
    check(client.wait(None).status != 0, f'{client}: ended well')
    server.wait(None)


def test_the_device_comes_back(one, two):
    """What one test does to the links is put right before the next."""
    for guest in (one, two):
        said = guest.run(['rdma', 'link', 'show', 'rxe0/1'])
        check('state ACTIVE' in said, said)
    server, client = rping(one, two, 5)
    client.wait()
    server.wait()
