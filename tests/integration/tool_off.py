# SPDX-License-Identifier: MIT
"""ringway off and on: living programs go back to TCP and out again, busy, asleep or stopped; nothing of a stream is lost, and nothing is left behind."""
import json
import os
import random
import signal
import subprocess
import sys

import harness as h

TOOL = os.environ['TESTS_TOOL']
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
PIECES, PIECE = 48, 2 << 20

# Both ends of a connection in one process: N messages each way for each number that is read, then what it holds open and has mapped.
BOTH_ENDS = '''
import os, socket, sys
commands, answers = open(sys.argv[1]), open(sys.argv[2], "w")
listener = socket.create_server(("127.0.0.1", 0))
a = socket.create_connection(listener.getsockname())
b = listener.accept()[0]
for s in (a, b):
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
at = 0
for line in iter(commands.readline, "end\\n"):
    for _ in range(int(line)):
        for one, other in ((a, b), (b, a)):
            at += 1
            said = at.to_bytes(8, "little")
            one.sendall(said)
            assert other.recv(8) == said
    print(len(os.listdir("/proc/self/fd")), open("/proc/self/maps").read().count("memfd:ringway"), file=answers, flush=True)
'''

# Talks to a sleeper.
TALKER = '''
import socket, sys
commands, answers = open(sys.argv[1]), open(sys.argv[2], "w")
s = socket.create_server(("127.0.0.1", int(sys.argv[3]))).accept()[0]
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for line in iter(commands.readline, "end\\n"):
    for i in range(int(line)):
        s.sendall(b"%d" % i)
        assert s.recv(100) == b"%d" % i
    print(0, file=answers, flush=True)
'''


def ask(*words):
    """Whatever comes of it."""
    return subprocess.run([TOOL, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=h.PATIENCE, check=False)


def tool(*words, status=0, says=''):
    done = ask(*words)
    h.check(done.returncode == status and says in done.stdout + done.stderr,
            f'ringway {words}: {done.returncode} instead of {status}, or not "{says}": {done.stdout} {done.stderr}')
    return done.stdout


def rows(program):
    return [c for p in json.loads(tool('ps', '--json')) if p['pid'] == program.child.pid for c in p['connections']]


def roads(program):
    return {road for c in rows(program) for road in (c['tx'], c['rx'])}


def wrong_arguments():
    for command in ('off', 'on'):
        h.check(f'usage: ringway {command}' in tool(command, '--help'), f'{command} --help')
        tool(command, status=2, says='process id')
        tool(command, 'x', status=2, says='"x"')
        tool(command, 1, 'y', status=2, says='"y"')
        tool(command, 1, 2, 3, status=2)
        tool(command, os.getpid(), status=1, says='does not run under Ringway')
    tool('off', '--wait', 'soon', 1, status=2, says='"soon"')


def out_and_back(rounds):
    """As many links as that, one after the other: nothing adds up."""
    talker = h.Told(BOTH_ENDS, after='0')
    held = talker.say(300)
    h.check(roads(talker.program) == {'shm'}, f'not on rings: {rows(talker.program)}')
    pid = talker.pid
    for _ in range(rounds):
        ask('off', '--wait', 0, pid)
        back = talker.say(70)
        h.check(back[0] < held[0] and back[1] < held[1], f'the link is still there: {back} of {held}: {rows(talker.program)}')
        tool('on', pid)
        h.check(talker.say(100) == held, f'more is open or mapped than before, or less: {held}')
    h.check(roads(talker.program) == {'shm'}, f'not on rings again: {rows(talker.program)}')
    talker.end()
    totals = json.loads(open(talker.program.summary_path, encoding='utf-8').read())
    h.check(totals['switches'] == 4 * (rounds + 1) and totals['retreats'] == 2 * rounds, f'{rounds} rounds: {totals}')
    h.check(totals['tcp_tx_bytes'] + totals['ring_tx_bytes'] == 16 * (300 + 170 * rounds), f'bytes: {totals}')


def asleep():
    """Neither end makes a call by itself: who sleeps is woken, goes back and sleeps on; the bytes that come then are heard."""
    for kind in ('recv', 'poll', 'select', 'epoll', 'edge'):
        port = h.free_port()
        talker = h.Told(TALKER, port, after='0')
        talker.program.ready(port)
        sleeper = h.Program([sys.executable, '-c', h.SLEEPER, kind, str(port)], True, after='0')
        talker.say(300)
        h.check(roads(sleeper) == {'shm'}, f'{kind}: not on rings: {rows(sleeper)}')
        # Its own tx lane leaves at once; the other is the talker's, which sits in a read of a pipe until it is told to talk.
        tool('off', '--wait', 0.2, sleeper.child.pid, status=1, says='still on rings')
        (row,) = rows(sleeper)
        h.check((row['tx'], row['rx']) == ('tcp', 'shm'), f'{kind}: {row}')
        talker.say(70)
        h.until(lambda: roads(sleeper) == {'tcp'} and roads(talker.program) == {'tcp'}, f'{kind}: back on TCP')
        tool('on', sleeper.child.pid)
        h.until(lambda: talker.say(100) and roads(sleeper) == {'shm'}, f'{kind}: out again')
        # The other way round: the one that is asked is in no call, and the one that sleeps answers it.
        tool('off', '--wait', 0.1, talker.pid, rows(talker.program)[0]['fd'], status=1)
        talker.say(70)
        fd = rows(talker.program)[0]['fd']
        said = tool('off', talker.pid, fd)
        h.check(f'ringway on {talker.pid} {fd}' in said, f'{kind}: what takes it back: {said}')
        h.until(lambda: roads(sleeper) == {'tcp'}, f'{kind}: back once more')
        talker.end()
        sleeper.wait()


def stopped():
    talker = h.Told(BOTH_ENDS, after='0')
    talker.say(300)
    pid = talker.pid
    os.kill(pid, signal.SIGSTOP)
    tool('off', '--wait', 0.2, pid, status=1, says='still on rings')
    os.kill(pid, signal.SIGCONT)
    talker.say(70)
    tool('off', pid)
    h.check({c['reason'] for c in rows(talker.program)} <= {'off', 'retreat'}, f'the reason: {rows(talker.program)}')
    # One of them alone cannot be let out, and nothing that could is named.
    said = tool('off', pid, rows(talker.program)[0]['fd'])
    h.check(said.endswith(f'ringway on {pid}\n'), f'what takes it back: {said}')
    tool('on', pid, rows(talker.program)[0]['fd'], status=1, says='stays on TCP')
    tool('on', pid)
    tool('on', pid, rows(talker.program)[0]['fd'])
    talker.end()


def netcat():
    """Fed piece by piece, so that there is always something on its way, and never all of it."""
    h.need('nc')
    sent, got, port = h.make_data('sent', PIECES * PIECE), h.path('got'), h.free_port()
    os.mkfifo(h.path('feed'))
    feed = os.open(h.path('feed'), os.O_RDWR)
    server = h.Program(['nc', '-d', '-l', '127.0.0.1', str(port)], True, after='0', stdout=got).ready(port)
    client = h.Program(['nc', '-N', '127.0.0.1', str(port)], True, after='0', stdin=h.path('feed'))
    with open(sent, 'rb') as data:
        for i in range(PIECES):
            piece = data.read(PIECE)
            while piece:
                piece = piece[os.write(feed, piece):]
            if i % 4 == 3:
                tool('off', random.choice((server, client)).child.pid)
            if i % 4 == 1:
                ask('on', server.child.pid)
                ask('on', client.child.pid)
    os.close(feed)
    client.wait()
    server.wait()
    h.same(sent, got, 'netcat')
    totals = json.loads(open(client.summary_path, encoding='utf-8').read())
    print(f'netcat: {totals["switches"]} switches, {totals["retreats"]} retreats', flush=True)
    h.check(totals['retreats'] > 0 and totals['ring_tx_bytes'] > 0, f'netcat: {totals}')


def redis():
    h.need('redis-server', 'redis-benchmark', 'redis-cli')
    port = h.free_port()
    server = h.Program(['redis-server', '--port', str(port), '--bind', '127.0.0.1', '--save', '', '--dir', h.temp], True, after='0').ready(port)
    client = h.Program(['redis-benchmark', '-p', str(port), '-t', 'set,get', '-n', '150000', '-c', '20', '-q'], True, after='0')
    pid, times = server.child.pid, 0
    while client.child.poll() is None:
        h.until(lambda: client.child.poll() is not None or 'shm' in roads(server), 'redis moves out')
        if client.child.poll() is not None:
            break
        done = ask('off', pid)
        h.check(done.returncode == 0 or client.child.poll() is not None, f'redis: {done.stdout} {done.stderr}')
        h.check('shm' not in roads(server), f'redis: on rings though it is off: {rows(server)}')
        tool('on', pid)
        times += 1
    client.wait()
    subprocess.run(['redis-cli', '-p', str(port), 'shutdown', 'nosave'], capture_output=True, check=False)
    server.wait()
    totals = server.totals()
    print(f'redis: {times} times off and on, {totals}', flush=True)
    h.check(times > 0 and totals['ring'] > 0, f'redis: {times} times, {totals}')


wrong_arguments()
out_and_back(ROUNDS)
stopped()
asleep()
netcat()
redis()
