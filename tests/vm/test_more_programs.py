# SPDX-License-Identifier: MIT
"""Two guests under Ringway: the rest of the programs that test_between_hosts.py begins with."""
import proof
import traffic
from guest import limit

GUESTS, LIMIT = 2, 120


def test_netcat_by_ipv6(one, two):
    proof.carry('verbs', traffic.netcat, one, two, six=True, settings={'after': 0})


def test_sockperf(one, two):
    proof.carry('verbs', traffic.sockperf, one, two, settings={'after': 0})


def test_ncat(one, two):
    proof.carry('verbs', traffic.ncat, one, two)


def test_socat(one, two):
    proof.carry('verbs', traffic.socat, one, two)


def test_redis_at_once(one, two):
    proof.carry('verbs', traffic.redis, one, two, settings={'after': 0})


def test_iperf3(one, two):
    proof.carry('verbs', traffic.iperf3, one, two)


def test_iperf3_four_streams(one, two):
    proof.carry('verbs', traffic.iperf3, one, two, words=['-P', '4'])


def test_iperf3_reverse(one, two):
    proof.carry('verbs', traffic.iperf3, one, two, words=['-R'])


def test_iperf3_both_ways(one, two):
    proof.carry('verbs', traffic.iperf3, one, two, words=['--bidir'])


@limit(180)
def test_nginx(one, two):
    proof.carry('verbs', traffic.nginx, one, two)


def test_small_rings(one, two):
    proof.carry('verbs', traffic.netcat, one, two, settings={'ring': '4K'})


def test_asleep(one, two):
    proof.carry('verbs', traffic.sockperf, one, two, settings={'spin': 0})
    proof.carry('verbs', traffic.netcat, one, two, settings={'spin': 0})
