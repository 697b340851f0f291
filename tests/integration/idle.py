# SPDX-License-Identifier: MIT
"""Processes that hold switched connections and do nothing use no processor at all: no wake-up, no clock tick."""
import os
import signal
import sys
import time

import harness as h
from harness import programs

NR_CONNECTIONS = 20
# What those do that go back to TCP is for idle_back.py.
STAY = ['idle=0']
SERVER = """
import selectors, socket, sys
s = selectors.DefaultSelector()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
s.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in s.select():
        if key.fileobj is listener:
            s.register(listener.accept()[0], selectors.EVENT_READ)
        else:
            data = key.fileobj.recv(65536)
            if not data:
                sys.exit()
            key.fileobj.sendall(data)
"""
CLIENT = """
import socket, sys
c = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
for i in range(300):
    for s in c:
        s.sendall(b"x" * 100)
    for s in c:
        n = 100
        while n:
            n -= len(s.recv(n))
open(sys.argv[3], "w").close()
c[0].recv(1)
"""


def usage(pid):
    """(clock ticks used, context switches made) so far."""
    with open(f'/proc/{pid}/stat', encoding='ascii') as f:
        fields = f.read().rpartition(')')[2].split()
    switches = 0
    with open(f'/proc/{pid}/status', encoding='ascii') as f:
        for line in f:
            if 'ctxt_switches' in line:
                switches += int(line.split()[1])
    return int(fields[11]) + int(fields[12]), switches


def asleep(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii') as f:
        return f.read().rpartition(')')[2].split()[0] == 'S'


for after in h.AFTERS:
    port = h.free_port()
    marker = h.path(f'quiet-{after}')
    server = h.Program([sys.executable, '-c', SERVER, str(port)], True, after, options=STAY).ready(port)
    client = h.Program([sys.executable, '-c', CLIENT, str(port), str(NR_CONNECTIONS), marker], True, after, options=STAY)
    h.until(lambda: os.path.exists(marker) or client.child.poll() is not None, 'the client has sent everything')
    h.check(client.child.poll() is None, 'the client ended early')
    both = (server.child.pid, client.child.pid)

    def settled():
        before = [usage(pid) for pid in both]
        time.sleep(0.1)
        return before == [usage(pid) for pid in both] and all(asleep(pid) for pid in both)

    h.until(settled, 'both go to sleep')
    before = [usage(pid) for pid in both]
    time.sleep(1.5)  # the window that is measured
    used = [tuple(now - then for now, then in zip(usage(pid), was)) for pid, was in zip(both, before)]
    print(f'after={after}: (ticks, switches) of server and client in the window: {used}', flush=True)
    h.check(used == [(0, 0), (0, 0)], 'idle processes were running')
    # The connections still work after the silence: the end of one reaches the server. Between hosts that of a killed process is a reset.
    client.stop(signal.SIGKILL)
    server.wait(0 if programs.ROAD == 'shm' else 1)
    totals = server.totals()
    h.check(totals['switched'] == NR_CONNECTIONS, f'only some connections had switched: {totals}')
