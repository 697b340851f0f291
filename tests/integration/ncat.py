# SPDX-License-Identifier: MIT
"""ncat (non-blocking connect, its own event loop): a file to the server, then a file from it. The receiver shuts its own
direction down before anything has come."""
import harness as h

h.need('ncat')
DATA = h.make_data('data', 48 << 20)

for what, server_on, client_on, after in h.cases():
    for up in (True, False):
        port = h.free_port()
        send, receive = ['--send-only'], ['--recv-only']
        server = h.Program(['ncat', '-4', *(receive if up else send), '-l', '127.0.0.1', str(port)], server_on, after,
                           stdin=None if up else DATA, stdout=h.path('arrived') if up else None).ready(port)
        client = h.Program(['ncat', '-4', *(send if up else receive), '127.0.0.1', str(port)], client_on, after,
                           stdin=DATA if up else None, stdout=None if up else h.path('arrived'))
        client.wait()
        server.wait()
        case = f'{what}, {"to" if up else "from"} the server'
        h.same(DATA, h.path('arrived'), case)
        for program, on in ((server, server_on), (client, client_on)):
            if on:
                h.prove(program, server_on and client_on, 0.5, case)
