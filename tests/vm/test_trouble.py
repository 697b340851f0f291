# SPDX-License-Identifier: MIT
"""Two guests under Ringway, and something goes wrong. Whatever it is: both ends end by themselves, no byte is wrong, and an end of file
is only told where TCP would tell one."""
import proof
import traffic
from guest import check

GUESTS, LIMIT = 2, 120
# Drops what RoCE sends and leaves TCP alone.
DROP_ROCE = '''tc qdisc add dev rnic0 root handle 1: prio &&
tc filter add dev rnic0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff action drop'''


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


def test_the_device_of_the_server_is_removed(one, two):
    running = moved(one, two)
    one.run(['rdma', 'link', 'delete', 'rxe0'])
    running.ends_or_goes_on()


def test_a_device_is_removed_before_anybody_moves(one, two):
    """Between the calls of a rendezvous, or before it: the stream does not notice."""
    running = stream(one, two)
    removal = two.start(['rdma', 'link', 'delete', 'rxe0'])
    running.feed.until_lap(2, running.caller)
    removal.wait()
    running.ends_or_goes_on()


def test_without_a_device(one, two):
    for guest in (one, two):
        guest.run(['rdma', 'link', 'delete', 'rxe0'])
    for end in traffic.netcat(traffic.ringway(one), traffic.ringway(two), size=8000000):
        proof.prove_tcp(end, 'no-device')


def test_little_patience(one, two):
    """A second, which an emulated machine may stand still for: whatever it is taken for, no byte is lost."""
    running = stream(one, two, after=0, patience=1000)
    running.feed.until_lap(2, running.caller)
    running.ends_or_goes_on()


def test_a_path_that_never_was(one, two):
    """TCP lives, but what the devices send is lost: data flows all the time, and the connection stays where it is."""
    for guest in (one, two):
        guest.run(DROP_ROCE)
    for end in traffic.netcat(traffic.ringway(one), traffic.ringway(two), size=8000000):
        total = proof.counted(end)
        check(total['ring'] == 0, f'{end}: {total}')


def test_a_path_that_dies(one, two):
    """The last test: a dial soon afterwards may wait a minute for an answer that was lost."""
    running = moved(one, two, patience=2000)
    for guest in (one, two):
        guest.run(DROP_ROCE)
    running.ends_or_goes_on()
