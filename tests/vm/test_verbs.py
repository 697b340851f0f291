# SPDX-License-Identifier: MIT
"""The ground that the rest stands on: real verbs work in one guest, on the address of its own device."""
import rping
from guest import check


def test_there_is_a_device(one):
    said = one.run(['ibv_devices'])
    check('rxe0' in said, f'ibv_devices: {said}')
    said = one.run(['ibv_devinfo', '-d', 'rxe0'])
    check('PORT_ACTIVE' in said, f'ibv_devinfo: {said}')


def test_a_queue_pair_moves_data(one):
    server = one.start(['ibv_rc_pingpong', '-d', 'rxe0', '-g', '1', '-n', '200', '-c'])
    one.until_listening(18515, server)
    client = one.start(['ibv_rc_pingpong', '-d', 'rxe0', '-g', '1', '-n', '200', '-c', one.address])
    for end in (client.wait(), server.wait()):
        check('200 iters' in end.output(), f'{end}: {end.output()}')


def test_rdma_cm_connects_and_moves_data(one):
    for address in (one.address, one.address6):
        rping.ping(one, one, address, 50, size=4000)


def test_a_port_of_rdma_cm_may_be_that_of_a_live_tcp_connection(one):
    holder = one.start(['nc', '-l', one.address, '4900'])
    one.until_listening(4900, holder)
    caller = one.start(['nc', one.address, '4900'])
    rping.ping(one, one, one.address, 5, port=4900)
    check(holder.running() and caller.running(), 'the connection on TCP is gone')


def test_another_user_with_little_lockable_memory_can_use_it(one):
    """65534 is nobody, who unlike root is held to the limit."""
    rping.ping(one, one, one.address, 5, size=60000, user=65534, memlock=64 << 20)


def test_a_user_without_lockable_memory_cannot(one):
    server = one.start(['rping', '-s', '-a', one.address, '-S', '60000'])
    one.until_rdma_listening(rping.PORT, server)
    client = one.start(['rping', '-c', '-a', one.address, '-C', '5', '-S', '60000'], user=65534, memlock=4 << 10)
    client.until('(?i)alloc|memory')
    check(client.wait(None).status != 0, f'{client}: {client.output()}')
