# SPDX-License-Identifier: MIT
"""netcat-openbsd as a stream that never pauses, over a device that takes more than the user's patience to make a connection: the ends must meet,
and the stream must move to the ring in its full course, whichever end sends it."""
import json
import os
import subprocess

import harness as h

h.need('nc')
TOOL = os.environ['TESTS_TOOL']
# Of each of the four steps that a dial waits for; RINGWAY_PATIENCE is a second.
os.environ['VERBS_DOUBLE'] = 'cm-delay-ms=280'


def road(program):
    """On which road the program's connection sends."""
    shown = subprocess.run([TOOL, 'ps', '--json'], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=h.PATIENCE, check=True)
    for row in json.loads(shown.stdout):
        if row['pid'] == program.child.pid:
            for connection in row['connections']:
                # Nothing that keeps it there is told as not-busy, also once the ends have met and it has not moved yet.
                h.check(connection['reason'] in ('', 'not-busy', 'peer-silent'), f'it stays on TCP: {connection}')
                return connection['tx']
    return None


def stream(what, from_server):
    port = h.free_port()
    end = ['127.0.0.1', str(port)]
    server = h.Program(['nc', '-l', *([] if from_server else ['-d']), *end], True, '0', stdin='/dev/zero').ready(port)
    client = h.Program(['nc', *(['-d'] if from_server else []), *end], True, '0', stdin='/dev/zero')
    sender = server if from_server else client
    h.until(lambda: road(sender) == 'verbs', f'{what}: the stream moves to a ring')
    client.stop()
    server.wait(None)


stream('from the client', False)
stream('from the server', True)
