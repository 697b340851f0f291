# SPDX-License-Identifier: MIT
"""
Servers that give a connection to another program, as inetd does: sshd starts itself anew for each, git daemon has it as the standard streams of another git, a web server
starts programs while its connections are open. Each end on a ring goes back to TCP for it, wherever it is.
"""
import os
import pwd
import subprocess

import harness as h

h.need('git', 'sshd', 'ssh', 'ssh-keygen', 'lighttpd', 'curl')
BIG = h.make_data('big', 24 << 20)
USER = pwd.getpwuid(os.geteuid()).pw_name
SSHD = '/usr/sbin/sshd'  # it wants to be called by its whole name


def prepare(*argv, cwd=None):
    done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    h.check(done.returncode == 0, f'{" ".join(argv)}: {done.stderr.decode()}')


def write(name, text, mode=0o600):
    with open(h.path(name), 'w', encoding='utf-8') as f:
        f.write(text)
    os.chmod(h.path(name), mode)
    return h.path(name)


def make_repository():
    os.makedirs(h.path('git/repository'))
    os.link(BIG, h.path('git/repository/big'))
    for words in (('init', '-q'), ('add', '-A'), ('-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qm', 'one')):
        prepare('git', *words, cwd=h.path('git/repository'))


def make_keys():
    for name in ('host', 'user'):
        prepare('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', h.path(name))
    write('sshd.conf', f'HostKey {h.path("host")}\nAuthorizedKeysFile {h.path("user.pub")}\nUsePAM no\nStrictModes no\nPidFile none\nPermitRootLogin yes\n')


def make_site():
    os.makedirs(h.path('site'))
    os.link(BIG, h.path('site/big'))
    # Says back what it is sent; a program of its own, with nothing of Ringway's.
    write('site/echo.cgi', '#!/bin/sh\nprintf "Content-Type: application/octet-stream\\r\\n\\r\\n"\nexec cat\n', 0o755)


def privileges_apart():
    """The directory that sshd has its helper in, when it is started by root. It stays, as it does where sshd is a service: other tests have servers, too."""
    if os.geteuid() == 0:
        os.makedirs('/run/sshd', 0o755, exist_ok=True)


def git(what, server_on, client_on, after):
    port = h.free_port()
    server = h.Program(['git', 'daemon', '--export-all', f'--base-path={h.path("git")}', '--listen=127.0.0.1', f'--port={port}', '--reuseaddr'],
                       server_on, after).ready(port)
    clone = h.path('clone')
    client = h.Program(['git', 'clone', '-q', f'git://127.0.0.1:{port}/repository', clone], client_on, after).wait()
    h.same(BIG, clone + '/big', what)
    prepare('rm', '-r', clone)
    server.stop()  # dies of it, and so says nothing
    if client_on:
        counted(client, what)


def counted(program, what):
    """The other end has its connection from another program, and stays on TCP."""
    totals = program.totals()
    h.check(totals['connections'] > 0 and totals['ring'] == 0 and totals['tcp'] > 0, f'{what}: {program.name} has counted {totals}')
    print(f'{what}: {program.name}: {totals}', flush=True)


def ssh(what, server_on, client_on, after):
    port = h.free_port()
    server = h.Program([SSHD, '-D', '-e', '-f', h.path('sshd.conf'), '-p', str(port), '-o', 'ListenAddress=127.0.0.1'], server_on, after).ready(port)
    client = h.Program(['ssh', '-F', '/dev/null', '-p', str(port), '-i', h.path('user'), '-o', 'StrictHostKeyChecking=no', '-o', 'UserKnownHostsFile=/dev/null',
                        '-o', 'LogLevel=ERROR', f'{USER}@127.0.0.1', 'cat'], client_on, after, stdin=BIG, stdout=h.path('echoed')).wait()
    h.same(BIG, h.path('echoed'), what)
    server.stop()
    if client_on:
        counted(client, what)


def cgi(what, server_on, client_on, after):
    port = h.free_port()
    config = write('lighttpd.conf', f'''server.document-root = "{h.path('site')}"
server.bind = "127.0.0.1"
server.port = {port}
server.upload-dirs = ( "{h.temp}" )
server.modules = ( "mod_cgi" )
cgi.assign = ( ".cgi" => "" )
''')
    server = h.Program(['lighttpd', '-D', '-f', config], server_on, after).ready(port)
    url = f'http://127.0.0.1:{port}/'
    # On one connection: a program is started when it is on a ring.
    words = ['-o', h.path('one'), url + 'big', '--next', '-sS', '--fail', '--data-binary', '@' + BIG, '-o', h.path('two'), url + 'echo.cgi',
             '--next', '-sS', '--fail', '-o', h.path('three'), url + 'big']
    client = h.Program(['curl', '-sS', '--fail', *words], client_on, after).wait()
    for name in ('one', 'two', 'three'):
        h.same(BIG, h.path(name), f'{what}, {name}')
    server.stop()
    for program, on in ((server, server_on), (client, client_on)):
        if on:
            h.prove(program, server_on and client_on, 0.5, what)


make_repository()
make_keys()
make_site()
privileges_apart()
for name, server_side, client_side, calls in h.cases():
    git(name + ', git', server_side, client_side, calls)
    ssh(name + ', ssh', server_side, client_side, calls)
    cgi(name + ', cgi', server_side, client_side, calls)
