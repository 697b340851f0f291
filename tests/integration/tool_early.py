# SPDX-License-Identifier: MIT
"""ringway off said to a server before it has a busy connection, or any: it holds for those to come, until ringway on."""
import json
import os
import subprocess

import harness as h

TOOL = os.environ['TESTS_TOOL']
FAR = os.environ.get('TESTS_ROAD') == 'verbs'

# Both ends of a connection in one process, which opens it with its first word: N messages each way for each number.
SERVER = '''
import socket, sys
commands, answers = open(sys.argv[1]), open(sys.argv[2], "w")
listener = socket.create_server(("127.0.0.1", 0))
a = b = None
print(0, file=answers, flush=True)
for line in iter(commands.readline, "end\\n"):
    if a is None:
        a = socket.create_connection(listener.getsockname())
        b = listener.accept()[0]
        for s in (a, b):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for i in range(int(line)):
        for one, other in ((a, b), (b, a)):
            one.sendall(b"%8d" % i)
            assert other.recv(8) == b"%8d" % i
    print(1, file=answers, flush=True)
'''


def tool(*words, status=0):
    done = subprocess.run([TOOL, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=h.PATIENCE, check=False)
    h.check(done.returncode == status, f'ringway {words}: {done.returncode} instead of {status}: {done.stdout} {done.stderr}')
    return done.stdout


def roads(pid):
    return {road for p in json.loads(tool('ps', '--json')) if p['pid'] == pid for c in p['connections'] for road in (c['tx'], c['rx'])}


def moves(server):
    h.until(lambda: server.say(100) and roads(server.pid) == {'verbs' if FAR else 'shm'}, f'it moves: {roads(server.pid)}')


def started():
    server = h.Told(SERVER, after='0')
    h.check(server.hear() == [0], 'it is there')
    return server


def before_it_is_busy(opened):
    server = started()
    if opened:
        server.say(0)
    said = tool('off', server.pid)
    h.check(opened or 'those to come' in said, f'none is there, and those to come are not named: {said}')
    server.say(600)
    h.check(roads(server.pid) == {'tcp'}, f'off, and on rings: {roads(server.pid)}')
    tool('on', server.pid)
    moves(server)
    server.end()


def taken_back_in_time():
    server = started()
    tool('off', server.pid)
    tool('on', server.pid)
    moves(server)
    server.end()


before_it_is_busy(False)
before_it_is_busy(True)
taken_back_in_time()
