# SPDX-License-Identifier: MIT
"""Two guests under Ringway, and something goes wrong: with the devices or their path the connections go on over TCP, and nothing is lost."""
import os

import proof
import traffic
from guest import check, limit

GUESTS, LIMIT = 2, 120
# Drops what RoCE sends and leaves TCP alone.
DROP_ROCE, LET_THROUGH = '''tc qdisc add dev rnic0 root handle 1: prio &&
tc filter add dev rnic0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff action drop''', 'tc qdisc del dev rnic0 root'


TOOL = os.environ['RINGWAY_TOOL']


def failures(guest):
    """How many requests its device has given up, which nobody acknowledged."""
    return int(guest.run('cat /sys/class/infiniband/rxe0/ports/1/hw_counters/retry_exceeded_err'))


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


def goes_on(running):
    check(running.ends_or_goes_on(), f'{running.caller}: did not go on: {running.caller.log()}')


def remove_device(guest):
    guest.run(['rdma', 'link', 'delete', 'rxe0'])


def test_the_device_of_the_client_is_removed(one, two):
    running = moved(one, two)
    remove_device(two)
    goes_on(running)


def test_the_device_of_the_server_is_removed(one, two):
    running = moved(one, two)
    remove_device(one)
    goes_on(running)


def losing(guest):
    """For traffic.py: what has left TCP loses its device, and comes back."""
    def watch(*lanes):
        proof.until_moved(*lanes)
        remove_device(guest)
        proof.until_back(*lanes)
    return watch


@limit(240)
def test_the_device_is_removed_under_netcat(one, two):
    ends = traffic.netcat(traffic.ringway(one), traffic.ringway(two), watch=losing(two))
    proof.prove(ends, 'verbs')


@limit(240)
def test_the_device_is_removed_under_iperf3(one, two):
    ends = traffic.iperf3(traffic.ringway(one), traffic.ringway(two), watch=losing(one))
    proof.prove(ends, 'verbs')


@limit(240)
def test_the_device_is_removed_under_redis_benchmark(one, two):
    ends = traffic.redis(traffic.ringway(one), traffic.ringway(two), watch=losing(two))
    proof.prove(ends[:1], 'verbs')


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


def path_dies(one, two, drops, record):
    """What one end's device sends is lost, or what both do: the sender hears no acknowledgement either way. Once it gets through again, the connection may
    move out again."""
    running = moved(one, two, patience=3000)
    before = failures(one), failures(two)
    for guest in drops:
        guest.run(DROP_ROCE)
    proof.until_back(*running.lanes)
    record(given_up=[failures(guest) - count for guest, count in zip((one, two), before)])
    for guest in drops:
        guest.run(LET_THROUGH)
    proof.until_moved(*((program, way, 2 * count) for program, way, count in running.lanes))
    goes_on(running)


@limit(300)
def test_the_path_of_the_client_dies(one, two, record):
    path_dies(one, two, (two,), record)


@limit(300)
def test_the_path_of_the_server_dies(one, two, record):
    path_dies(one, two, (one,), record)


@limit(300)
def test_both_paths_die(one, two, record):
    path_dies(one, two, (one, two), record)


def test_off_and_on(one, two):
    """`ringway off` reaches the peer by the end of the link, and both may move out again."""
    running = moved(one, two)
    two.run([TOOL, 'off', '--wait', '60', str(running.caller.pid)])
    proof.until_back(*running.lanes)
    two.run([TOOL, 'on', str(running.caller.pid)])
    proof.until_moved(*((program, way, 2 * count) for program, way, count in running.lanes))
    goes_on(running)
