# SPDX-License-Identifier: MIT
"""netcat-openbsd: a file one way, then a file each way at the same time."""
import harness as h

h.need('nc')
DATA, BACK = h.make_data('data', 64 << 20), h.make_data('back', 8 << 20)


def transfer(what, server_on, client_on, after, client_gets):
    port = h.free_port()
    listen = ['nc', '-l', '-N', '127.0.0.1', str(port)] if client_gets else ['nc', '-l', '-d', '127.0.0.1', str(port)]
    server = h.Program(listen, server_on, after, stdin=BACK if client_gets else None, stdout=h.path('arrived')).ready(port)
    client = h.Program(['nc', '-N', '127.0.0.1', str(port)], client_on, after, stdin=DATA, stdout=h.path('answered'))
    client.wait()
    server.wait()
    h.same(DATA, h.path('arrived'), what)
    if client_gets:
        h.same(BACK, h.path('answered'), what)
    for program, on in ((server, server_on), (client, client_on)):
        if on:
            h.prove(program, server_on and client_on, 0.5, what)


for name, server_side, client_side, calls in h.cases():
    transfer(name + ', one way', server_side, client_side, calls, False)
    transfer(name + ', both ways', server_side, client_side, calls, True)
