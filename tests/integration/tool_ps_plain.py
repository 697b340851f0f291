# SPDX-License-Identifier: MIT
"""ringway ps: a live connection that stays on TCP is shown, with the reason why and bytes that go on growing."""
import json
import os
import subprocess

import harness as h

h.need('nc')
TOOL = os.environ['TESTS_TOOL']
STEP, LAG = 4 << 20, 64 << 10


def row_of(pid):
    shown = subprocess.run([TOOL, 'ps', '--json'], stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=h.PATIENCE)
    rows = [row for process in json.loads(shown.stdout) if process['pid'] == pid for row in process['connections']]
    return rows[0] if rows else None


def case(what, server_on, client_on, options, reasons, field):
    port = h.free_port()
    server = h.Program(['nc', '-l', '-d', '127.0.0.1', str(port)], server_on, options=options).ready(port)
    ours, theirs = os.pipe()
    with os.fdopen(theirs, 'wb', buffering=0) as feed, os.fdopen(ours, 'rb') as end:
        client = h.Program(['nc', '-N', '127.0.0.1', str(port)], client_on, stdin=f'/dev/fd/{end.fileno()}', options=options)
        watched = server if server_on else client
        for step in (1, 2):
            left = memoryview(bytes(STEP))
            while left:
                left = left[feed.write(left):]

            def told(bytes_by_now=step * STEP - LAG):
                row = row_of(watched.child.pid)
                return row and row[field] >= bytes_by_now and row

            row = h.until(told, f'{what}: {step * STEP} bytes in ringway ps, which says {row_of(watched.child.pid)}')
            h.check(row['reason'] in reasons and (row['tx'], row['rx']) == ('tcp', 'tcp'), f'{what}: {row}')
    client.wait()
    server.wait()


case('a server with a plain client', True, False, [], ('peer-silent', 'no-peer', 'not-busy'), 'tcp_rx_bytes')
case('a client with a plain server', False, True, [], ('peer-silent', 'no-peer', 'not-busy'), 'tcp_tx_bytes')
case('a server that only watches', True, False, ['transports=none'], ('transports-none',), 'tcp_rx_bytes')
