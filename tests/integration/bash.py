# SPDX-License-Identifier: MIT
"""bash as a client: it reads lines of an answer itself, a byte at a time, and leaves the rest to a program that it runs with the
connection as its standard input."""
import os

import harness as h

h.need('bash', 'ncat')
LINES = 40
READING = f'exec 3<>/dev/tcp/127.0.0.1/$1; for i in {{1..{LINES}}}; do read -r -u 3 line; echo "$line"; done; '
REST = os.urandom(12 << 20)


def feed(fifo, arrived, rest):
    """A line when the one before has arrived; then all that is left, as fast as it goes."""
    said = b''
    for i in range(LINES):
        line = b'line %d of the answer\n' % i
        os.write(fifo, line)
        said += line
        h.until(lambda expected=len(said): os.path.getsize(arrived) == expected, f'line {i} is read')
    with os.fdopen(fifo, 'wb') as out:
        out.write(rest)
    return said + rest


for what, server_on, client_on, after in h.cases():
    for how, rest in (('exec cat <&3', REST), ('head -c 1000 <&3; cat <&3', REST), ('sleep 0.3; cat <&3', REST[:100000])):
        port = h.free_port()
        os.mkfifo(h.path('fifo'))
        fifo = os.open(h.path('fifo'), os.O_RDWR)
        arrived = h.path('arrived')
        open(arrived, 'wb').close()
        server = h.Program(['ncat', '-4', '--send-only', '-l', '127.0.0.1', str(port)], server_on, after, stdin=h.path('fifo')).ready(port)
        client = h.Program(['bash', '-c', READING + how, 'bash', str(port)], client_on, after, stdout=arrived)
        expected = feed(fifo, arrived, rest)
        client.wait()
        server.wait()
        os.unlink(h.path('fifo'))
        with open(arrived, 'rb') as f:
            h.check(f.read() == expected, f'{what}, {how}: {os.path.getsize(arrived)} bytes arrived of {len(expected)}, or wrong ones')
        if server_on and client_on:
            totals = server.totals()
            h.check(totals['ring'] > 0, f'{what}, {how}: no ring was used, so nothing is proved: {totals}')
