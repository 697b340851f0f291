# SPDX-License-Identifier: MIT
"""
RINGWAY_MAX: never more connections of a process on rings; the busy ones have them, and those that get busy take them from those that have fallen silent. Every byte
comes back as it was sent. Where all are equally busy nothing is moved.
"""
import json
import os
import subprocess
import sys

import harness as h

TOOL = os.environ['TESTS_TOOL']
FAR = os.environ.get('TESTS_ROAD') == 'verbs'
ROAD = 'verbs' if FAR else 'shm'
CONNECTIONS, MOST = 20, 4

LINKS = '''
def links():
    # Whatever is smaller carries no link: a dial that says that there is no room.
    ends = [line.split()[0].split("-") for line in open("/proc/self/maps") if "memfd:ringway " in line]
    return sum(int(end, 16) - int(start, 16) > 262144 for start, end in ends)
'''
SERVER = LINKS + '''
import resource, selectors, socket, sys
if int(sys.argv[2]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)
s = selectors.DefaultSelector()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
s.register(listener, selectors.EVENT_READ)
most = nr = 0
while True:
    for key, _ in s.select():
        if key.fileobj is listener:
            c = listener.accept()[0]
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            s.register(c, selectors.EVENT_READ)
            continue
        data = key.fileobj.recv(65536)
        if data == b"end":
            print(most)
            sys.exit()
        nr += 1
        if nr % 16 == 0:
            most = max(most, links())
        key.fileobj.sendall(data)
'''

# A connection is on rings when the kernel's socket counts no more bytes, in neither direction. What is said is made from where the connection stands, so nothing can be
# lost, doubled or out of order without being seen. A fifo holds it up where it is to be looked at.
CLIENT = LINKS + '''
import socket, struct, sys, time
port, number, group, how, path, held = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6]
c = [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]
at = [0] * number
for s in c:
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def counted(i):
    # tcpi_bytes_acked, tcpi_bytes_received
    return struct.unpack_from("=QQ", c[i].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 200), 120)
def say(i):
    text = b"%d:%d " % (i, at[i]) * (1 + at[i] % 7)
    at[i] += 1
    c[i].sendall(text)
    got = b""
    while len(got) < len(text):
        got += c[i].recv(65536)
    assert got == text, (text, got)
def on_rings(these):
    before = [counted(i) for i in these]
    for _ in range(4):
        for i in these:
            say(i)
    return sum(counted(i) == b for i, b in zip(these, before))
most, out = 0, []
if how == "turns":
    for first in range(0, number, group):
        these = range(first, first + group)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for _ in range(16):
                for i in these:
                    say(i)
            most = max(most, links())
            found = on_rings(these)
            if found == group:
                break
        out.append(found)
else:
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for i in range(number):
            say(i)
        most = max(most, links())
    out.append(on_rings(range(number)))
with open(path, "w") as f:
    print(most, *out, file=f)
open(held).read()
for i in range(number):
    say(i)
c[0].sendall(b"end")
'''


def connections(pid):
    said = subprocess.run([TOOL, 'ps', '--json'], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=h.PATIENCE, check=True).stdout
    return [c for p in json.loads(said) if p['pid'] == pid for c in p['connections']]


def run(name, how, server_options, client_options, plain=(), numbers=0):
    """Returns what the client has seen, the most links that each has had, the rows of `ringway ps` of each at the end, and their totals."""
    port, held, result, counts = h.free_port(), h.path(f'{name}.held'), h.path(f'{name}.result'), h.path(f'{name}.counts')
    os.mkfifo(held)
    server = h.Program([sys.executable, '-c', SERVER, str(port), str(numbers)], 'server' not in plain, '0', stdout=counts, options=['idle=0', *server_options]).ready(port)
    client = h.Program([sys.executable, '-c', CLIENT, str(port), str(CONNECTIONS), str(MOST), how, result, held], 'client' not in plain, '0', options=['idle=0', *client_options])
    h.until(lambda: client.child.poll() is not None or os.path.exists(result) and open(result, encoding='ascii').read().endswith('\n'), f'{name}: the client has talked')
    h.check(client.child.poll() is None, f'{name}: the client has ended with {client.child.poll()}')
    rows = [connections(p.child.pid) for p in (server, client)]
    with open(held, 'w', encoding='ascii'):
        pass
    client.wait()
    server.wait()
    with open(result, encoding='ascii') as f:
        most, *out = map(int, f.read().split())
    with open(counts, encoding='ascii') as f:
        links = (int(f.read()), most)
    totals = [json.loads(open(p.summary_path, encoding='utf-8').read()) if who not in plain else None for who, p in (('server', server), ('client', client))]
    print(f'{name}: on rings {out}; links at once {links}; {[t and (t["switched"][ROAD], t["retreats"], t["reasons"]) for t in totals]}', flush=True)
    return out, links, rows, totals


def turns(name, server_most, client_most):
    """Four at a time are busy: each four comes to rings, and in the end the last."""
    limits = [[f'max={most}'] if most else [] for most in (server_most, client_most)]
    least = min(most for most in (server_most, client_most) if most)
    out, links, rows, totals = run(name, 'turns', *limits)
    groups = CONNECTIONS // MOST
    h.check(out == [min(MOST, least)] * groups, f'{name}: of each four busy ones {out} were on rings: {totals}')
    for most, allowed in zip(links, (server_most, client_most)):
        h.check(0 < most <= (allowed or CONNECTIONS), f'{name}: {most} links at once: {totals}')
    h.check(all(t['switched'][ROAD] >= min(MOST, least) * groups for t in totals), f'{name}: {totals}')
    # Who has gone back for a busier one says so where it was decided; the peer's row says that the peer took it back.
    for seen in rows:
        h.check(sum(c['tx'] == ROAD and c['rx'] == ROAD for c in seen) >= min(MOST, least), f'{name}: {seen}')
        h.check({c['reason'] for c in seen if c['tx'] == 'tcp'} <= {'ceiling', 'retreat'}, f'{name}: {seen}')
    h.check(any(c['reason'] == 'ceiling' for seen in rows for c in seen), f'{name}: {rows}')


def few_numbers():
    """The server has numbers for few hidden descriptors: the same without any ceiling."""
    out, links, rows, totals = run('few-numbers', 'turns', [], [], numbers=256)
    h.check(out == [MOST] * (CONNECTIONS // MOST), f'of each four busy ones {out} were on rings: {totals}')
    h.check(0 < links[0] < CONNECTIONS, f'{links} links at once: {totals}')
    h.check(any(c['reason'] == 'no-fds' for c in rows[0]), f'{rows[0]}')


def equals():
    """All are as busy: as many are on rings as may be, and none is moved back and forth."""
    out, links, _, totals = run('equals', 'all', [f'max={MOST}'], [])
    h.check(out == [MOST] and links[0] == MOST, f'{out} of {CONNECTIONS} are on rings, {links}: {totals}')
    h.check(all(t['retreats'] == 0 for t in totals), f'moved back: {totals}')


def one_side_plain(plain):
    out, links, _, totals = run(f'plain-{plain}', 'all', [f'max={MOST}'], [f'max={MOST}'], (plain,))
    # An acceptor pins its rings before it knows that anybody listens on another host.
    h.check(out == [0] and (links == (0, 0) or FAR and links[0] <= MOST), f'on rings with a plain peer: {out}, {links}, {totals}')
    reasons = next(t for t in totals if t)['reasons']
    h.check(set(reasons) <= {'peer-silent', 'no-peer'}, f'{reasons}')


turns('server', MOST, None)
turns('client', None, MOST)
turns('both', MOST, MOST)
turns('uneven', 7, MOST)
# Of far links each has more descriptors, and the libraries have some besides.
if not FAR:
    few_numbers()
equals()
one_side_plain('server')
one_side_plain('client')
