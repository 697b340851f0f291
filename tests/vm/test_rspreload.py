# SPDX-License-Identifier: MIT
"""Two guests: the same programs on plain TCP, under Ringway, and under librspreload of rdma-core. The first two must work, or
the third would say nothing. What happens under the third is recorded, not judged: a row with "works" and, where it does not, what
was said. Each has a short time of its own."""
import glob

import traffic
from guest import Failed, Lost, check

GUESTS, LIMIT = 2, 90
SECONDS = 12


def attempt(one, two, record, program, **size):
    preloads = glob.glob('/usr/lib/*/rsocket/librspreload.so')
    check(preloads, 'librspreload.so is not installed (Debian: librdmacm1)')
    for name, end in (('', traffic.plain), ('ringway', traffic.ringway)):
        program(end(one), end(two), **size)
        record(program=program.__name__, preload=name, works=True)

    works, why, roles = True, '', []
    try:
        with one.clock.within(SECONDS):
            program(*(traffic.End(guest, env={'LD_PRELOAD': preloads[0]}) for guest in (one, two)), **size)
    except Lost:  # of the guest, which must not be taken for the program's
        raise
    except Failed as error:
        works, why = False, str(error)[:400]
    for role, guest in (('server', one), ('client', two)):
        under = [p for p in guest.started if p.preload == preloads[0]]
        roles.append({'role': role, 'status': under[-1].status if under else None,
                      'said': ' / '.join(line for p in under for line in p.output().splitlines()[-2:])[:400]})
    record(program=program.__name__, preload='librspreload', works=works, why=why, ends=roles)


def test_netcat(one, two, record):
    attempt(one, two, record, traffic.netcat, size=250000, back=60000)


def test_iperf3(one, two, record):
    attempt(one, two, record, traffic.iperf3, mib=2)


def test_sockperf(one, two, record):
    attempt(one, two, record, traffic.sockperf, seconds=1)


def test_redis(one, two, record):
    attempt(one, two, record, traffic.redis, requests=100)


def test_ncat(one, two, record):
    attempt(one, two, record, traffic.ncat, size=250000)


def test_socat(one, two, record):
    attempt(one, two, record, traffic.socat, size=250000)


def test_nginx(one, two, record):
    attempt(one, two, record, traffic.nginx, size=250000)
