# SPDX-License-Identifier: MIT
"""Two guests under Ringway: unmodified programs over real verbs between them. The least that must hold at each change;
test_more_programs.py has the rest, test_trouble.py what goes wrong."""
import proof
import traffic
from guest import limit

GUESTS, LIMIT = 2, 120


def test_netcat(one, two):
    proof.carry('verbs', traffic.netcat, one, two)


@limit(150)
def test_redis(one, two):
    proof.carry('verbs', traffic.redis, one, two)


def test_one_plain_side(one, two):
    """Whoever runs under Ringway finds out that the peer does not."""
    for server, client, mine in ((traffic.ringway, traffic.plain, 0), (traffic.plain, traffic.ringway, 1)):
        proof.prove_tcp(traffic.netcat(server(one), client(two), size=8000000)[mine], 'peer-silent')
