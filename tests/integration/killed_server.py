# SPDX-License-Identifier: MIT
"""The server of many connections is killed while they move to rings: the client must hear of it on each, by an end or an error, and end."""
import json
import os
import signal
import subprocess
import sys

import harness as h

TOOL = os.environ['TESTS_TOOL']
CONNECTIONS = 100

SERVER = '''
import selectors, socket, sys
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])), backlog=200)
wait = selectors.EpollSelector()
wait.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in wait.select():
        if key.fileobj is listener:
            wait.register(listener.accept()[0], selectors.EVENT_READ)
        else:
            key.fileobj.sendall(key.fileobj.recv(65536))
'''

# Half of them wait to read, half to write, when the server goes. Each is left open until the client's own end.
CLIENT = '''
import selectors, socket, sys
ends = []
wait = selectors.EpollSelector()
for i in range(int(sys.argv[2])):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    s.setblocking(False)
    wait.register(s, selectors.EVENT_WRITE, i)
while wait.get_map():
    for key, events in wait.select():
        s = key.fileobj
        try:
            if events & selectors.EVENT_WRITE:
                s.send(b'x' * 1000)
                wait.modify(s, selectors.EVENT_READ, key.data)
            elif s.recv(65536):
                wait.modify(s, selectors.EVENT_WRITE, key.data)
            else:
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except ConnectionError:
            wait.unregister(s)
            ends.append(s)
print(len(ends))
'''


def moved(program):
    shown = subprocess.run([TOOL, 'ps', '--json'], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=h.PATIENCE, check=True)
    rows = [row for row in json.loads(shown.stdout) if row['pid'] == program.child.pid]
    return sum(connection['tx'] in ('shm', 'verbs') for row in rows for connection in row['connections'])


for part in (0.02, 0.3, 1):
    port = str(h.free_port())
    out = h.path(f'client-{part}')
    server = h.Program([sys.executable, '-c', SERVER, port], True, '0').ready(int(port))
    client = h.Program([sys.executable, '-c', CLIENT, port, str(CONNECTIONS)], True, '0', stdout=out)
    h.until(lambda: moved(client) >= part * CONNECTIONS, f'{part} of the connections move')
    server.stop(signal.SIGKILL)
    client.wait()
    with open(out, encoding='ascii') as f:
        h.check(f.read() == f'{CONNECTIONS}\n', 'a connection was forgotten')
