# SPDX-License-Identifier: MIT
"""socat: a file one way; then an echo through a server that forks for each connection and runs cat."""
import harness as h

h.need('socat')
DATA, ECHO = h.make_data('data', 48 << 20), h.make_data('echo', 48 << 20)


def one_way(what, server_on, client_on, after):
    port = h.free_port()
    server = h.Program(['socat', '-u', f'TCP4-LISTEN:{port},bind=127.0.0.1', 'CREATE:arrived'], server_on, after).ready(port)
    client = h.Program(['socat', '-u', f'FILE:{DATA}', f'TCP4:127.0.0.1:{port}'], client_on, after)
    client.wait()
    server.wait()
    h.same(DATA, h.path('arrived'), what)
    for program, on in ((server, server_on), (client, client_on)):
        if on:
            h.prove(program, server_on and client_on, 0.5, what)


def echo(what, server_on, client_on, after):
    port = h.free_port()
    server = h.Program(['socat', f'TCP4-LISTEN:{port},bind=127.0.0.1,fork', 'EXEC:cat'], server_on, after).ready(port)
    for _ in range(2):
        client = h.Program(['socat', '-t', '30', 'STDIO', f'TCP4:127.0.0.1:{port}'], client_on, after,
                           stdin=ECHO, stdout=h.path('echoed')).wait()
        h.same(ECHO, h.path('echoed'), what)
        if client_on:
            h.prove(client, server_on, 0.5, what)
    server.stop()
    if server_on:
        h.prove(server, client_on, 0.5, what)


for name, server_side, client_side, calls in h.cases():
    one_way(name + ', one way', server_side, client_side, calls)
    echo(name + ', echo', server_side, client_side, calls)
