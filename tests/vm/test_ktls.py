# SPDX-License-Identifier: MIT
"""A connection that is on a ring, and then the kernel's to encrypt (TCP_ULP "tls"): what the ends set is the socket's, and it stays on TCP."""
import os
import re
import signal
import sys

import proof
import traffic
from guest import WORK, check

GUESTS, LIMIT = 2, 150
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'ktls.py')
PORT, GO = 6800, f'{WORK}/go'


def layered(server, client, road):
    """The layer is laid over a socket that has come back from a ring, at both ends, and what it carries arrives."""
    server_end, client_end = (traffic.ringway(guest) for guest in (server, client))
    words = [server.address, str(PORT), GO]
    listener = server_end.start([sys.executable, '-B', PROGRAM, 'serve', *words])
    server.until_listening(PORT, listener)
    caller = client_end.start([sys.executable, '-B', PROGRAM, 'call', *words])
    proof.until_moved(*((end, way, 1) for end in (caller, listener) for way in ('tx', 'rx')))
    client.run(['touch', GO])
    said = [re.search(r'^refused (\d+)\ndigest (\w+)\n\Z', end.wait().output()) for end in (caller, listener)]
    check(all(said) and said[0][2] == said[1][2], f'{caller}: {caller.output()}, {listener}: {listener.output()}')
    proof.prove([caller, listener], road)
    # The peer of the first has come back by then, for nothing that it has done itself.
    why = [set(proof.counted(end)['reasons']) for end in (caller, listener)]
    check(why[0] == {'ulp'} and why[1] in ({'ulp'}, {'retreat'}), f'{caller}: {why}')
    return [int(match[1]) for match in said]


def test_between_two_hosts(one, two, record):
    record(refused=layered(one, two, 'verbs'))


def test_on_one_host(one, record):
    record(refused=layered(one, one, 'shm'))


SERVES_TLS = 'ssl; ssl_certificate cert; ssl_certificate_key key; ssl_conf_command Options KTLS'


def test_nginx(one, two):
    """OpenSSL asks for the layer in the middle of the handshake, of which a part may have come by a ring. A plain client shows that it gets it."""
    one.run('openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=one -keyout key -out cert')
    _, sent = traffic.make_data(one, 'large', 1000000)
    text = traffic.NGINX.format(work=WORK, address=one.address, port=PORT).replace(f':{PORT};', f':{PORT} {SERVES_TLS};')
    one.run(f"cat >nginx.conf <<'.'\n{text}.\n")
    server = one.start(['nginx', '-p', WORK, '-e', 'stderr', '-c', f'{WORK}/nginx.conf'], ringway={'after': 0})
    one.until_listening(PORT, server)
    for client in (traffic.plain(two), traffic.ringway(two, after=0)):
        client.start(['curl', '-sSk', '--fail', '-o', f'{WORK}/fetched', f'https://{one.address}:{PORT}/large']).wait()
        check(traffic.checksum(two, f'{WORK}/fetched') == sent, f'{client.how}: the bytes that arrived are not the bytes that were sent')
        check(re.search(r'^TlsTxSw\s+[1-9]', one.read('/proc/net/tls_stat').decode(), re.M), 'the kernel has encrypted nothing')
    reasons = proof.counted(server.kill(signal.SIGQUIT))['reasons']
    check(reasons == {'ulp': 2}, f'{server}: {reasons}')
