# SPDX-License-Identifier: MIT
"""Two guests under Ringway, and something goes wrong: with the devices or their path the connections go on over TCP, and nothing is lost."""
import os
import re
import sys

import proof
import traffic
from guest import Failed, check, limit

GUESTS, LIMIT = 2, 120
# Drops what RoCE sends and leaves TCP alone.
ROCE = 'protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff'
DROP_ROCE, LET_THROUGH = f'tc qdisc add dev rnic0 root handle 1: prio && tc filter add dev rnic0 parent 1: {ROCE} action drop', 'tc qdisc del dev rnic0 root'
DROP_ROCE_THAT_COMES, LET_IN = f'tc qdisc add dev rnic0 ingress && tc filter add dev rnic0 parent ffff: {ROCE} action drop', 'tc qdisc del dev rnic0 ingress'
# Keeps it until long after everybody has given up.
HOLD_ROCE = f'''tc qdisc add dev rnic0 root handle 1: prio bands 4 && tc qdisc add dev rnic0 parent 1:4 handle 4: netem limit 20000 delay 8s &&
tc filter add dev rnic0 parent 1: {ROCE} flowid 1:4'''

# Seconds as the guest has them: beats of a program, which come late where everything does. Says how many there were between the end of the path and
# the first word of retreat in LOG. A link that has died before that, of a machine that stood still, says nothing of the path, which is left alone then.
BEATS = '''
import subprocess, sys, time
log, cut = sys.argv[1:]
def retreats():
    with open(log) as f:
        said = f.read()
    return any(word in said for word in ("the link has died", "has left its ring", "back on TCP"))
if retreats():
    sys.exit("retreats before the cut")
subprocess.run(cut, shell=True, check=True)
print("cut", flush=True)
for beat in range(1200):
    time.sleep(0.1)
    if retreats():
        print("retreats at beat", beat, flush=True)
        break
'''

TOOL = os.environ['TESTS_TOOL']


def failures(guest):
    """How many requests its device has given up, which nobody acknowledged."""
    return int(guest.run('cat /sys/class/infiniband/rxe0/ports/1/hw_counters/retry_exceeded_err'))


def with_new_devices(one, two):
    """At a test's end. What was lost on the way the kernel's connection manager asks for again, for minutes, and no dial of a later test gets through meanwhile."""
    for guest in (one, two):
        remove_device(guest)


def stream(one, two, **settings):
    return traffic.Stream(traffic.ringway(one, **settings), traffic.ringway(two, **settings))


def moved(one, two, **settings):
    running = stream(one, two, **settings)
    proof.until_moved(*running.lanes)
    return running


def moved_with_little_patience(one, two):
    """A second is how long a peer is looked for, too, and an emulated machine may stand still for longer: then another connection tries."""
    for _ in range(20):
        running = stream(one, two, patience=1000, log='debug')

        def decided():
            logs = [program.log() for program, *_ in running.lanes]
            return all('lane left TCP' in log for log in logs) or any('stays on TCP' in log for log in logs)
        two.until(decided, f'{running.caller} to move, or to stay')
        if all('lane left TCP' in program.log() for program, *_ in running.lanes):
            return running
        running.feed.stop()
        running.caller.wait()
        running.listener.wait()
    raise Failed('no peer was found in time')


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


def over(running, one, two, cuts):
    """The path lets through again, and the stream goes on."""
    for guest in cuts:
        guest.run(f'{LET_THROUGH} || {LET_IN} || true')
    goes_on(running)
    with_new_devices(one, two)


def cut_alive(one, two, cuts):
    """A stream whose link lived when its path was cut, and what watches the ends that the cut befell."""
    for _ in range(5):
        running = moved_with_little_patience(one, two)
        before = failures(one), failures(two)
        watching = [guest.start([sys.executable, '-c', BEATS, program.log_path, cut]) for guest, cut in cuts.items() for program, *_ in running.lanes if program.guest is guest]
        said = [program.until('.*cut$')[0] for program in watching]
        if said == ['cut'] * len(said):
            return running, before, watching
        over(running, one, two, cuts)
        for guest in (one, two):
            guest.run('rdma link add rxe0 type rxe netdev rnic0')
    raise Failed('no link lived until its path was cut')


def path_dies(one, two, cuts, record):
    """What one end's device sends or hears is lost, or what both do: the sender hears no acknowledgement either way. Both retreat within two seconds."""
    running, before, watching = cut_alive(one, two, cuts)
    proof.until_back(*running.lanes)
    beats = [int(program.until(r'retreats at beat (\d+)')[1]) for program in watching]
    record(given_up=[failures(guest) - count for guest, count in zip((one, two), before)], beats=beats)
    check(max(beats) <= 20, f'{running.caller}: a retreat began after {beats} tenths of a second')
    over(running, one, two, cuts)


@limit(300)
def test_the_path_of_the_client_dies(one, two, record):
    path_dies(one, two, {two: DROP_ROCE}, record)


@limit(300)
def test_the_path_of_the_server_dies(one, two, record):
    path_dies(one, two, {one: DROP_ROCE}, record)


@limit(300)
def test_both_paths_die(one, two, record):
    path_dies(one, two, {one: DROP_ROCE, two: DROP_ROCE}, record)


@limit(300)
def test_a_path_comes_back(one, two):
    """Once it gets through again, the connection may move out again."""
    running = moved(one, two, patience=3000, log='debug')
    for guest in (one, two):
        guest.run(DROP_ROCE)
    proof.until_back(*running.lanes)
    for guest in (one, two):
        guest.run(LET_THROUGH)
    proof.until_moved(*((program, way, 2 * count) for program, way, count in running.lanes))
    goes_on(running)
    with_new_devices(one, two)


@limit(300)
def test_the_path_to_the_client_dies(one, two, record):
    path_dies(one, two, {two: DROP_ROCE_THAT_COMES}, record)


@limit(300)
def test_the_path_to_the_server_dies(one, two, record):
    path_dies(one, two, {one: DROP_ROCE_THAT_COMES}, record)


def released(guest):
    """How many packets have left the queue in which they were held."""
    return int(re.search(r'qdisc netem 4:.*?Sent \d+ bytes (\d+) pkt', guest.run('tc -s qdisc show dev rnic0'), re.S)[1])


@limit(300)
def test_what_comes_late_lands_nowhere(one, two, record):
    """The requests of the client are not lost, but come when both ends have gone back to TCP, and what they would have written has come by it."""
    running = moved_with_little_patience(one, two)
    two.run(HOLD_ROCE)
    proof.until_back(*running.lanes)
    early = released(two)
    two.until(lambda: released(two) > early, 'what was held to be sent')
    lap = running.feed.laps() + 8
    running.feed.until_lap(lap, running.caller)
    record(late_packets=released(two) - early)
    two.run(LET_THROUGH)
    goes_on(running)
    with_new_devices(one, two)


def test_off_and_on(one, two):
    """`ringway off` reaches the peer by the end of the link, and both may move out again."""
    running = moved(one, two)
    two.run([TOOL, 'off', '--wait', '60', str(running.caller.pid)])
    proof.until_back(*running.lanes)
    two.run([TOOL, 'on', str(running.caller.pid)])
    proof.until_moved(*((program, way, 2 * count) for program, way, count in running.lanes))
    goes_on(running)
