# SPDX-License-Identifier: MIT
"""The verbs engine on real verbs, without the shim: two ends in two guests, every byte checked by its position."""
import json
import os

from guest import check, limit

GUESTS = 2
BYTES, RING = 2 << 20, 256 << 10
ROUNDS = 60
FAR, ENGINE = os.environ['TESTS_FAR'], os.environ['TESTS_ENGINE']


def start(one, two, mode, number=0, port=7300, six=False):
    """The first guest offers, the second dials."""
    here, there = (one.address6, two.address6) if six else (one.address, two.address)
    offer = one.start([FAR, ENGINE, 'offer', here, str(port), mode, str(number)])
    offer.until('ready')
    return offer, two.start([FAR, ENGINE, 'dial', there, here, str(port), mode, str(number)])


def said(end):
    return json.loads(end.output().splitlines()[-1])


def ended(*ends, status=0):
    told = [said(end.wait(status)) for end in ends]
    check(not any(end['lost'] for end in told), f'a wake-up was lost: {told}')
    return told


@limit(120)
def test_a_stream(one, two, record):
    for six in (False, True):
        receiver, sender = ended(*start(one, two, 'stream', BYTES, six=six))
        check(receiver['received'] == sender['sent'] == BYTES + 1, f'{receiver} {sender}')
        check(receiver['credits'] <= 2 * BYTES / RING + 2, f'credits: {receiver}')
        record(stream=sender, receiver=receiver)


@limit(120)
def test_both_ways_at_once(one, two, record):
    for end in ended(*start(one, two, 'duplex', BYTES)):
        check(end['received'] == BYTES + 1, str(end))
        record(duplex=end)


@limit(120)
def test_a_thread_for_each_direction(one, two, record):
    for end in ended(*start(one, two, 'threads', BYTES)):
        check(end['received'] == BYTES + 1, str(end))
        record(threads=end)


@limit(120)
def test_ping_pong_is_one_request_and_one_doorbell(one, two, record):
    rounds = 500
    for end in ended(*start(one, two, 'pingpong', rounds)):
        # one for where held bytes are fetched, one to part, two for the flushes
        check(end['wr'] <= rounds + 4 and end['doorbells'] <= rounds + 4, str(end))
        check(end['send_cqes'] * 16 <= rounds + 32, str(end))
        check(end['recv_posts'] * 8 <= end['recvs'], str(end))
        record(pingpong=end)


def test_a_burst_is_fetched_from_a_sender_that_calls_no_more(one, two, record):
    receiver, sender = start(one, two, 'burst')
    sender.until('sent')
    said_by = said(receiver.wait())
    check(said_by['received'] == 1600, str(said_by))
    record(burst=said_by)
    sender.kill()


@limit(150)
def test_a_wire_that_loses_packets(one, two):
    for guest in (one, two):
        guest.run('tc qdisc add dev rnic0 root netem loss 2% delay 1ms')
    for end in ended(*start(one, two, 'duplex', RING)):
        check(end['received'] == RING + 1, str(end))


def rstream(one, two, size, count, rounds):
    """What rsockets say of ROUNDS times COUNT messages to and fro, on the same devices."""
    argv = ['rstream', '-p', '7400', '-S', str(size), '-C', str(count), '-I', str(rounds)]
    server = one.start([*argv, '-b', one.address])
    one.until_rdma_listening(7400, server)
    client = two.start([*argv, '-s', one.address])
    rows = client.wait().output().splitlines()
    server.wait()
    return rows[-1]


def bare(one, two, *more):
    """The same for bare verbs: one work request and one completion a message."""
    argv = ['ibv_rc_pingpong', '-d', 'rxe0', '-g', '1', '-n', str(ROUNDS), '-s', '8', *more]
    server = one.start(argv)
    one.until_listening(18515, server)
    client = two.start([*argv, one.address])
    rows = client.wait().output().splitlines()
    server.wait()
    return rows[-1]


@limit(240)
def test_beside_others(one, two, record):
    """Noted, not judged: times in an emulated machine are worth a comparison at most."""
    asleep = ended(*start(one, two, 'pingpong', ROUNDS))[1]
    spinning = ended(*start(one, two, 'pingspin', ROUNDS))[1]
    stream = ended(*start(one, two, 'stream', BYTES))[1]
    record(asleep_ms=asleep['ms'], bare_asleep=bare(one, two, '-e'), spinning_ms=spinning['ms'], bare_spinning=bare(one, two),
           rsockets=rstream(one, two, 8, 1, ROUNDS), stream_ms=stream['ms'],
           rsockets_stream=rstream(one, two, 65536, BYTES // 65536 // 2, 1))


@limit(120)
def test_a_device_is_removed_under_load(one, two, record):
    """Both ends find out, and what had come is whole."""
    offer, dial = start(one, two, 'forever')
    offer.until('linked')
    dial.until('linked')
    two.run(['rdma', 'link', 'delete', 'rxe0'])
    for end in ended(dial, offer, status=3):
        check(end['dead'] < 0, str(end))
        record(removed=end)


@limit(120)
def test_a_peer_is_killed_under_load(one, two, record):
    offer, dial = start(one, two, 'forever')
    offer.until('linked')
    dial.until('linked')
    dial.kill()
    end = said(offer.wait(3))
    check(end['dead'] < 0, str(end))
    record(killed=end)


def test_little_lockable_memory(one, two):
    end = one.start([FAR, ENGINE, 'dial', one.address, one.address, '7301', 'stream'], user=65534, memlock=65536)
    check(said(end.wait(1)) == {'failed': 'equip', 'code': 5}, end.output())


def test_nobody_listens(one, two):
    end = two.start([FAR, ENGINE, 'dial', two.address, one.address, '7302', 'stream']).wait(1)
    check(said(end) == {'failed': 'rendezvous', 'code': 3}, end.output())
    end = two.start([FAR, ENGINE, 'offer', '127.0.0.1', '7302', 'stream']).wait(1)
    check(said(end) == {'failed': 'offer', 'code': 1}, end.output())


@limit(120)
def test_a_path_dies_while_the_devices_live(one, two, record):
    """RoCE's packets are dropped: nobody says so. The last test: a dial soon after it may wait a minute for an answer that was lost."""
    offer, dial = start(one, two, 'forever')
    offer.until('linked')
    dial.until('linked')
    for guest in (one, two):
        guest.run('tc qdisc add dev rnic0 root netem loss 100%')
    for end in ended(dial, offer, status=3):
        check(end['dead'] < 0, str(end))
        record(path=end)
