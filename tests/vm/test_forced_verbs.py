# SPDX-License-Identifier: MIT
"""One guest, whose programs use the device even among themselves: unmodified programs over real verbs. The least that must hold at
each change; test_forced_programs.py and test_conformance.py have the rest."""
import proof
import traffic
from conformance import compare
from guest import limit

LIMIT = 120


def forced(one, program, six=False, **settings):
    return proof.carry('verbs', program, one, one, six, settings={'transports': 'verbs', **settings})


def test_netcat(one):
    forced(one, traffic.netcat, after=0)


@limit(150)
def test_redis(one):
    forced(one, traffic.redis)


def test_one_plain_side(one):
    """Whoever runs under Ringway finds out that the peer does not."""
    on, plain = traffic.ringway(one, transports='verbs'), traffic.plain(one)
    proof.prove_tcp(traffic.netcat(on, plain, size=8000000)[0], 'peer-silent')
    proof.prove_tcp(traffic.netcat(plain, on, size=8000000)[1], 'peer-silent')


def test_conformance(one):
    compare(one, 'procs-v4-both-after-0-spin-0-warm-verbs', 'vectors', 'reset', verbs=True)
