# SPDX-License-Identifier: MIT
"""Two guests under Ringway, and other devices and addresses than the one that the rest of the tests use. Whatever rdma_cm resolves is taken."""
import json
import signal

import proof
import traffic
from guest import check

GUESTS, LIMIT = 2, 150
VLAN = '''[ -e /sys/class/net/rnic0.7 ] || ip link add link rnic0 name rnic0.7 type vlan id 7 &&
ip addr replace 10.9.7.{n}/24 dev rnic0.7 && ip addr replace fd09:7::{n}/64 dev rnic0.7 nodad && ip link set rnic0.7 up'''
SECOND = '''[ -e /sys/class/net/second0 ] || ip link add second0 type veth peer name second1 &&
ip addr replace 10.9.8.1/24 dev second0 && ip link set second1 up && ip link set second0 up && rdma link add rxe1 type rxe netdev second0'''

# One looks for the other when it is told to, and never stops; and makes a child, which has nothing to do with the connection and outlives all that is tried here.
SEEK_AND_FORK = '''
import os, signal, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
end = listener.accept()[0]
end.setblocking(False)
r, w = os.pipe()
def fork(*_):
    if not os.fork():
        end.close()
        os.close(w)
        os.read(r, 1)
        os._exit(0)
    print('forked', flush=True)
told = []
signal.signal(signal.SIGUSR1, fork)
signal.signal(signal.SIGUSR2, lambda *_: told.append(1))
print('ready', flush=True)
while not told:
    signal.pause()
while True:
    try:
        end.recv(1000)
    except BlockingIOError:
        os.sched_yield()
'''
BE_THERE = '''
import os, socket, sys
end = socket.create_connection((sys.argv[1], int(sys.argv[2])), source_address=(sys.argv[3], int(sys.argv[4])))
end.setblocking(False)
while True:
    try:
        end.recv(1000)
    except BlockingIOError:
        os.sched_yield()
'''


def packets(guest, device):
    return int(guest.run(f'cat /sys/class/infiniband/{device}/ports/1/hw_counters/rcvd_pkts'))


def until_addressed(guest, device, gid):
    """The device has taken note of an address, a part of which is GID."""
    guest.until(lambda: gid in guest.run(f'cat /sys/class/infiniband/{device}/ports/1/gids/*', None), f'{device} to have {gid}')


def test_a_vlan(one, two):
    """Its addresses belong to the device of the interface below."""
    for guest in (one, two):
        guest.run(VLAN.format(n=guest.number))
        for gid in (f'0a09:070{guest.number}', 'fd09:0007:'):
            until_addressed(guest, 'rxe0', gid)
    for at in ('10.9.7.1', 'fd09:7::1'):
        ends = traffic.netcat(traffic.ringway(one, at), traffic.ringway(two, at), watch=proof.until_moved)
        proof.prove(ends, 'verbs')
        proof.prove_same(*ends)


def test_a_device_for_each_connection(one, two):
    """One server, of which each client comes over another device; the second one leads nowhere but to this guest itself."""
    one.run(SECOND)
    until_addressed(one, 'rxe1', '0a09:0801')
    server = one.start(['redis-server', '--bind', one.address, '10.9.8.1', '--port', '6980', '--save', '', '--protected-mode', 'no'],
                       ringway={'after': 0, 'transports': 'verbs'})
    one.until_listening(6980, server)
    clients = []
    for guest, at, device in ((two, one.address, 'rxe0'), (one, '10.9.8.1', 'rxe1')):
        before = packets(one, device)
        client = guest.start(['redis-benchmark', '-h', at, '-p', '6980', '-q', '-t', 'set', '-c', '2', '-l'], ringway={'after': 0, 'transports': 'verbs'})
        clients.append(client)
        proof.until_moved(*((end, way, 2 * (len(clients) if end is server else 1)) for end in (client, server) for way in ('tx', 'rx')))
        check(packets(one, device) > before, f'nothing came to {device}')
    for client in clients:
        client.kill()
    server.kill(15)
    check(proof.counted(server)['verbs'] == 4, json.dumps(proof.counted(server)))
    one.run('rdma link delete rxe1')


def test_a_child_does_not_hold_the_device(one, two):
    """A soft-RoCE device that is removed waits until nobody has it open, or a queue of it mapped: here those of an attempt that was under way at the fork."""
    server = one.start(['python3', '-c', SEEK_AND_FORK, one.address, '6981'], ringway={'after': 0})
    one.until_listening(6981, server)
    client = two.start(['python3', '-c', BE_THERE, one.address, '6981', two.address, '6982'], ringway={'after': 0})
    server.until('ready')
    two.until_rdma_listening(6982, client)
    client.signal(signal.SIGSTOP)
    server.signal(signal.SIGUSR2)
    one.until(lambda: 'comm python3' in one.run(['rdma', 'resource', 'show', 'qp']), 'a queue pair of the attempt')
    server.signal(signal.SIGUSR1)
    server.until('forked')
    one.run('rdma link delete rxe0')
    check(server.running(), 'it has ended')
    client.signal(signal.SIGCONT)
