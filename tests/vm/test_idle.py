# SPDX-License-Identifier: MIT
"""Two guests under Ringway: a connection that falls silent gives its queue pair and what is registered back, and moves out again with the next traffic."""
import re
import sys

import proof
from guest import WORK, check, limit

GUESTS, LIMIT = 2, 120
ECHO = '''
import socket, sys
with socket.create_server((sys.argv[1], 6970)) as listener:
    s = listener.accept()[0]
    while data := s.recv(65536):
        s.sendall(data)
'''
# Asks as long as there is a file; without it waits for what does not come.
ASKS = '''
import os, select, socket, sys
s, asked = socket.create_connection((sys.argv[1], 6970)), 0
while not os.path.exists("over"):
    if not os.path.exists("busy"):
        select.select([s], [], [], 0.1)
        continue
    data = asked.to_bytes(8, "little") * 10
    s.sendall(data)
    if s.recv(80, socket.MSG_WAITALL) != data:
        sys.exit(f"answer {asked} is wrong")
    asked += 1
print(f"{asked} answers")
'''


def queue_pairs(guest):
    return len(re.findall(r'type RC', guest.run(['rdma', 'resource', 'show', 'qp'])))


@limit(300)
def test_a_silent_connection(one, two):
    settings = {'after': 0, 'idle': 3}
    two.run(f'touch {WORK}/busy')
    server = one.start([sys.executable, '-c', ECHO, one.address], ringway=settings)
    one.until_listening(6970, server)
    client = two.start([sys.executable, '-c', ASKS, one.address], ringway=settings)
    lanes = [(end, way, 1) for end in (client, server) for way in ('tx', 'rx')]
    proof.until_moved(*lanes)
    check(queue_pairs(one) and queue_pairs(two), 'no queue pair, though the lanes have left TCP')
    two.run(f'rm {WORK}/busy')
    proof.until_back(*lanes)
    for guest in (one, two):
        guest.until(lambda: queue_pairs(guest) == 0, 'the queue pair to go')
    two.run(f'touch {WORK}/busy')
    proof.until_moved(*((end, way, 2) for end, way, _ in lanes))
    two.run(f'touch {WORK}/over')
    client.wait()
    server.wait()
    check('answers' in client.output(), client.output())
