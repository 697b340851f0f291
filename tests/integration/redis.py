# SPDX-License-Identifier: MIT
"""redis-server with redis-cli and redis-benchmark: values come back as they went; many connections; pipelining."""
import harness as h

h.need('redis-server', 'redis-cli', 'redis-benchmark')
VALUE = h.make_data('value', 3 << 20)

# Twenty thousand commands in the protocol's own form, for redis-cli --pipe.
with open(h.path('commands'), 'wb') as f:
    for i in range(20000):
        parts = [b'SET', b'key:%d' % i, b'value-%d' % (i * 7919)]
        f.write(b'*3\r\n' + b''.join(b'$%d\r\n%s\r\n' % (len(p), p) for p in parts))


def cli(port, on, after, words, stdin=None):
    out = h.path('cli.out')
    program = h.Program(['redis-cli', '-p', str(port), *words], on, after, stdin=stdin, stdout=out).wait()
    with open(out, 'rb') as f:
        return program, f.read()


for what, server_on, client_on, after in h.cases():
    port = h.free_port()
    both = server_on and client_on
    server = h.Program(['redis-server', '--bind', '127.0.0.1', '--port', str(port), '--save', '', '--appendonly', 'no',
                        '--daemonize', 'no', '--dir', h.temp], server_on, after).ready(port)

    program, said = cli(port, client_on, after, ['-x', 'SET', 'big'], stdin=VALUE)
    h.check(said.strip() == b'OK', f'{what}: SET said {said[:80]!r}')
    program, said = cli(port, client_on, after, ['--raw', 'GET', 'big'])
    with open(VALUE, 'rb') as f:
        h.check(said == f.read() + b'\n', f'{what}: GET gave other bytes ({len(said)} of them)')

    program, said = cli(port, client_on, after, ['--pipe'], stdin=h.path('commands'))
    h.check(b'errors: 0, replies: 20000' in said, f'{what}: pipe said {said[-200:]!r}')
    for i in (0, 4711, 19999):
        program, said = cli(port, client_on, after, ['GET', f'key:{i}'])
        h.check(said.strip() == b'value-%d' % (i * 7919), f'{what}: key {i} is {said!r}')

    for shape in (['-c', '1', '-n', '5000'], ['-c', '50', '-n', '20000'], ['-c', '50', '-n', '40000', '-P', '16']):
        bench = h.Program(['redis-benchmark', '-p', str(port), '-q', '-t', 'set,get', *shape], client_on, after).wait()
        if client_on:
            h.prove(bench, both, 0.5, f'{what}, benchmark {" ".join(shape)}')
    server.stop()
    if server_on:
        h.prove(server, both, 0.3, what)
