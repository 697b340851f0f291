# SPDX-License-Identifier: MIT
"""iperf3: one stream, four, the other way round, and both ways at once. It checks no bytes; its streams must all come to
their end. (A receiver stops counting when the sender says over the control connection that it is done, so less than was
sent is right.)"""
import json

import harness as h

h.need('iperf3')
SHAPES = {'one stream': [], 'four streams': ['-P', '4'], 'reverse': ['-R'], 'both ways': ['--bidir']}

for what, server_on, client_on, after in h.cases():
    for shape, words in SHAPES.items():
        port = h.free_port()
        server = h.Program(['iperf3', '-s', '-1', '-B', '127.0.0.1', '-p', str(port)], server_on, after).ready(port)
        client = h.Program(['iperf3', '-c', '127.0.0.1', '-p', str(port), '-n', '96M', '--json', *words], client_on, after,
                           stdout=h.path('result'))
        client.wait()
        server.wait()
        case = f'{what}, {shape}'
        with open(h.path('result'), encoding='utf-8') as f:
            result = json.load(f)
        h.check('error' not in result, f'{case}: {result.get("error")}')
        got = result['end']['sum_received']['bytes']
        # Of two streams that end together the slower one may have come to any part of it.
        least = 1 << 20 if shape == 'both ways' else 32 << 20
        h.check(least <= got <= 96 << 21, f'{case}: {got} bytes received')
        for program, on in ((server, server_on), (client, client_on)):
            if on:
                h.prove(program, server_on and client_on, 0.5, case)
