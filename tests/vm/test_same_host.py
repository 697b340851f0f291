# SPDX-License-Identifier: MIT
"""One guest: the shared-memory road on another kernel than this machine's. Unmodified programs, and a part of the
differential scripts, which compare each step with what that kernel's TCP does."""
import proof
import traffic
from conformance import compare
from guest import check, limit

LIMIT = 100
SCRIPTS = ('stream', 'half_close', 'vectors', 'peek_waitall', 'reset', 'poll', 'select', 'epoll_level', 'epoll_edge', 'fork_server')


def by_shm(one, program):
    for after in (0, 8):
        proof.carry('shm', program, one, one, settings={'after': after})


def test_netcat(one):
    by_shm(one, traffic.netcat)


def test_ncat(one):
    by_shm(one, traffic.ncat)


def test_socat(one):
    by_shm(one, traffic.socat)


def test_redis(one):
    by_shm(one, traffic.redis)


def test_iperf3(one):
    by_shm(one, traffic.iperf3)


def test_sockperf(one):
    by_shm(one, traffic.sockperf)


def test_nginx(one):
    by_shm(one, traffic.nginx)


def test_one_plain_side(one):
    """Whoever runs under Ringway finds out that the peer does not."""
    for server, client in ((traffic.ringway, traffic.plain), (traffic.plain, traffic.ringway)):
        ends = traffic.netcat(server(one), client(one), size=8000000)
        proof.prove_tcp(ends[0] if server is traffic.ringway else ends[1], 'peer-silent')


def test_the_kernel_leaves_nothing(one):
    """Programs killed in the middle: their rings go with them."""
    before = one.run('ls /dev/shm; cat /proc/net/unix | grep -c @ringway || true')
    server = one.start(['nc', '-l', one.address, '7000'], ringway={'after': 0}, stdout='/dev/null')
    one.until_listening(7000, server)
    client = one.start(['nc', one.address, '7000'], ringway={'after': 0}, stdin='/dev/zero')
    one.until(lambda: b'/memfd:ringway ' in one.read(f'/proc/{client.pid}/maps'), 'the client to have a ring')
    client.kill()
    server.wait(None)
    after = one.run('ls /dev/shm; cat /proc/net/unix | grep -c @ringway || true')
    check(before == after, f'before: {before}, afterwards: {after}')


@limit(150)
def test_conformance(one):
    compare(one, 'procs-v4-both-after-0-spin-*-warm', *SCRIPTS)
