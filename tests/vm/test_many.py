# SPDX-License-Identifier: MIT
"""Two guests under Ringway: many connections, and little memory."""
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


@limit(180)
def test_two_hundred_connections_without_lockable_memory(one, two):
    server = redis(one, 6992, after=0)
    client = benchmark(traffic.limited(two, user=65534, memlock=65536, after=0), one, 6992, '-n', '10000').wait()
    check('SET: ' in client.output(), client.output())
    total = proof.counted(client)
    # Whose turn did not come before the benchmark was done, had not been refused anything yet.
    check(total['ring'] == 0 and 'memlock' in total['reasons'] and not set(total['reasons']) - {'memlock', 'peer-silent', 'not-busy'}, f'{client}: {total}')
    server.kill(15)
