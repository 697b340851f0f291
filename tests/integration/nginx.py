# SPDX-License-Identifier: MIT
"""nginx with two workers: curl fetches a large file, ab and wrk many small ones; then nginx behind an unbuffered nginx."""
import os
import re

import harness as h

h.need('nginx', 'curl', 'ab', 'wrk')
BIG = 100 << 20
os.makedirs(h.path('www'))
FILE = h.make_data('www/big', BIG)
h.make_data('www/small', 600)

CONFIG = """
daemon off; master_process on; worker_processes 2; error_log stderr warn; pid {name}.pid;
{user}
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile {sendfile}; keepalive_requests 100000;
  client_body_temp_path t-body; proxy_temp_path t-proxy; fastcgi_temp_path t-fcgi; uwsgi_temp_path t-uwsgi; scgi_temp_path t-scgi;
  server {{ listen 127.0.0.1:{port}; root {root}; {location} }}
}}
"""


def start(name, on, after, location='', sendfile='on'):
    port = h.free_port()
    config = h.path(name + '.conf')
    with open(config, 'w', encoding='ascii') as f:
        # As root the workers would change to another user, who cannot read the files of this test.
        f.write(CONFIG.format(name=h.path(name), port=port, root=h.path('www'), location=location, sendfile=sendfile,
                              user='user root;' if os.geteuid() == 0 else ''))
    return h.Program(['nginx', '-p', h.temp, '-e', 'stderr', '-c', config], on, after).ready(port), port


def fetch(port, on, after, what, name='big'):
    client = h.Program(['curl', '-sS', '--fail', '-o', h.path('fetched'), f'http://127.0.0.1:{port}/{name}'], on, after).wait()
    h.same(h.path('www/' + name), h.path('fetched'), what)
    return client


def many(port, on, after, both, what):
    url = f'http://127.0.0.1:{port}/small'
    ab = h.Program(['ab', '-q', '-k', '-n', '4000', '-c', '10', url], on, after, stdout=h.path('ab.out')).wait()
    with open(h.path('ab.out'), encoding='utf-8') as f:
        said = f.read()
    h.check(re.search(r'Complete requests: +4000', said) and re.search(r'Failed requests: +0', said), f'{what}: ab: {said}')
    wrk = h.Program(['wrk', '-t', '1', '-c', '10', '-d', '1', url], on, after, stdout=h.path('wrk.out')).wait()
    with open(h.path('wrk.out'), encoding='utf-8') as f:
        said = f.read()
    h.check('Socket errors' not in said and 'Non-2xx' not in said, f'{what}: wrk: {said}')
    if on:
        h.prove(ab, both, 0.5, what + ', ab')
        h.prove(wrk, both, 0.5, what + ', wrk')


for case, server_on, client_on, calls in h.cases():
    both_on = server_on and client_on
    for files in ('on', 'off'):
        server, at = start('origin', server_on, calls, sendfile=files)
        text = f'{case}, sendfile {files}'
        got = fetch(at, client_on, calls, text)
        if client_on:
            h.prove(got, both_on, 0.5, text + ', curl')
        many(at, client_on, calls, both_on, text)
        server.stop()
        if server_on:
            h.prove(server, both_on, 0.5, text)

    origin, behind = start('origin', server_on, calls)
    proxy, front = start('proxy', server_on, calls,
                         f'location / {{ proxy_pass http://127.0.0.1:{behind}; proxy_buffering off; }}')
    for _ in range(3):
        fetch(front, client_on, calls, case + ', proxied')
    proxy.stop()
    origin.stop()
    if server_on:
        h.prove(origin, True, 0.5, case + ', behind the proxy')
