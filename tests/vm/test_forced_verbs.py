# SPDX-License-Identifier: MIT
"""One guest, whose programs use the device even among themselves: unmodified programs over real verbs."""
import proof
import traffic
from guest import limit

LIMIT = 90


def forced(one, program, six=False, **settings):
    return proof.carry('verbs', program, one, one, six, settings={'transports': 'verbs', **settings})


def test_netcat(one):
    forced(one, traffic.netcat, after=0)


def test_netcat_by_ipv6(one):
    forced(one, traffic.netcat, six=True)


def test_socat(one):
    forced(one, traffic.socat)


@limit(120)
def test_redis(one):
    forced(one, traffic.redis, after=0)


def test_sockperf(one):
    forced(one, traffic.sockperf)


def test_one_plain_side(one):
    """Whoever runs under Ringway finds out that the peer does not."""
    on, plain = traffic.ringway(one, transports='verbs'), traffic.plain(one)
    proof.prove_tcp(traffic.netcat(on, plain, size=8000000)[0], 'peer-silent')
    proof.prove_tcp(traffic.netcat(plain, on, size=8000000)[1], 'peer-silent')


def test_loopback_has_no_device(one):
    """127.0.0.1 belongs to none."""
    on = traffic.ringway(one, transports='verbs', at='127.0.0.1')
    for end in traffic.netcat(on, on, size=8000000):
        proof.prove_tcp(end, 'no-device')
