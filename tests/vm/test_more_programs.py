# SPDX-License-Identifier: MIT
"""Two guests under Ringway: the rest of the programs that test_between_hosts.py begins with."""
import proof
import traffic

GUESTS, LIMIT = 2, 120


def test_sockperf(one, two):
    proof.carry('verbs', traffic.sockperf, one, two, settings={'after': 0})


def test_netcat_by_ipv6(one, two):
    proof.carry('verbs', traffic.netcat, one, two, six=True, settings={'after': 0})
