# SPDX-License-Identifier: MIT
"""The ground that the rest stands on: real verbs work in one guest, on the address of its own device."""
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
        server = one.start(['rping', '-s', '-v', '-d', '-a', address, '-C', '50', '-S', '4000'])
        one.until_rdma_listening(7174, server)
        client = one.start(['rping', '-c', '-V', '-a', address, '-C', '50', '-S', '4000']).wait()
        server.wait()
        check(server.output().count('server ping data: ') == 50, f'{server}: {server.output()[-500:]}')


def test_a_port_of_rdma_cm_may_be_that_of_a_live_tcp_connection(one):
    holder = one.start(['nc', '-l', one.address, '4900'])
    one.until_listening(4900, holder)
    caller = one.start(['nc', one.address, '4900'])
    server = one.start(['rping', '-s', '-d', '-a', one.address, '-p', '4900', '-C', '5'])
    one.until_rdma_listening(4900, server)
    one.run(['rping', '-c', '-a', one.address, '-p', '4900', '-C', '5'])
    server.wait()
    check(holder.running() and caller.running(), 'the connection on TCP is gone')


def test_another_user_with_little_lockable_memory_can_use_it(one):
    """65534 is nobody, who unlike root is held to the limit."""
    for memlock, fits in ((64 << 20, True), (4 << 10, False)):
        server = one.start(['rping', '-s', '-d', '-a', one.address, '-C', '5', '-S', '60000'], user=65534, memlock=memlock)
        if fits:
            one.until_rdma_listening(7174, server)
        client = one.start(['rping', '-c', '-a', one.address, '-C', '5', '-S', '60000'], user=65534, memlock=memlock).wait(None)
        check((client.status == 0) == fits, f'{client}: memlock {memlock}: {client.status}: {client.output()}')
        server.kill()
