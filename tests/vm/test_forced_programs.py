# SPDX-License-Identifier: MIT
"""One guest, whose programs use the device even among themselves: the rest of what test_forced_verbs.py begins with."""
import proof
import traffic
from test_forced_verbs import forced

LIMIT = 120


def test_netcat_by_ipv6(one):
    forced(one, traffic.netcat, six=True)


def test_socat(one):
    forced(one, traffic.socat)


def test_redis_at_once(one):
    forced(one, traffic.redis, after=0)


def test_sockperf(one):
    forced(one, traffic.sockperf)


def test_loopback_has_no_device(one):
    """127.0.0.1 belongs to none."""
    on = traffic.ringway(one, transports='verbs', at='127.0.0.1')
    for end in traffic.netcat(on, on, size=8000000):
        proof.prove_tcp(end, 'no-device')
