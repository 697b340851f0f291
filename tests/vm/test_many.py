# SPDX-License-Identifier: MIT
"""Two guests under Ringway: many connections, and little memory."""
import collections
import re

import proof
import traffic
from guest import check, limit

GUESTS, LIMIT = 2, 120


def test_no_lockable_memory(one, two):
    """Of a user who may lock hardly any: everything stays on TCP, whole, and it is said why."""
    ends = traffic.netcat(traffic.ringway(one), traffic.limited(two, user=65534, memlock=65536), size=8000000)
    proof.prove_tcp(ends[1], 'memlock')


def benchmark(client, server, port, *words):
    return client.start(['redis-benchmark', '-h', server.address, '-p', str(port), '-q', '-c', '200', '-t', 'set', *words])


def redis(one, port, **settings):
    server = one.start(['redis-server', '--bind', one.address, '--port', str(port), '--save', '', '--protected-mode', 'no'],
                       ringway=settings)
    one.until_listening(port, server)
    return server


@limit(240)
def test_two_hundred_connections_at_once(one, two):
    settings = {'after': 0, 'ring': '64K'}
    server = redis(one, 6990, **settings)
    client = benchmark(traffic.ringway(two, **settings), one, 6990, '-n', '20000').wait()
    check('SET: ' in client.output(), client.output())
    total = proof.counted(client)
    check(total['connections'] >= 200 and total['verbs'] > 0, f'{client}: {total}')
    server.kill(15)


@limit(240)
def test_two_hundred_connections_without_lockable_memory(one, two):
    """So much patience that nobody is taken for silent. Whose turn did not come before the benchmark was done has not been refused anything: of those
    nothing was decided, and of the others one thing."""
    server = redis(one, 6992, after=0, patience=60000)
    client = benchmark(traffic.limited(two, user=65534, memlock=65536, after=0, patience=60000, log='debug'), one, 6992, '-n', '10000').wait()
    check('SET: ' in client.output(), client.output())
    decided = collections.Counter(re.findall(r'stays on TCP: (\S+)', client.log()))
    check(set(decided) == {'memlock'}, f'{client}: {decided}')
    total = proof.counted(client)
    check(total['ring'] == 0 and total['reasons']['memlock'] == decided['memlock'], f'{client}: {decided}, {total}')
    server.kill(15)
