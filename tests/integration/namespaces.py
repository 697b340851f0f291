# SPDX-License-Identifier: MIT
"""Two network namespaces of one machine with a cable between them, as two containers have, over a double of verbs whose device reaches both. Abstract names end
with a namespace, so there is no shared memory between them: the connection takes the device, or says why not."""
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import harness as h

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NEAR, NEAR6, FAR, FAR6 = '10.9.7.1', 'fd09:7::1', '10.9.7.2', 'fd09:7::2'
ROUNDS, SEED = 3000, 7
libc = ctypes.CDLL(None)
rooms = h.programs.own_directory('rooms.', '/tmp')  # their sockets' names must be short

# A conversation: each message, of some length, comes back as it was.
SERVER = '''
import socket, sys
family, address, port = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, sys.argv[1], int(sys.argv[2])
listener = socket.create_server((address, port), family=family)
s = listener.accept()[0]
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while True:
    said = s.recv(65536)
    if not said:
        break
    s.sendall(said)
'''
CLIENT = '''
import random, socket, sys
luck = random.Random(int(sys.argv[3]))
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for number in range(int(sys.argv[4])):
    said = luck.randbytes(luck.randint(1, 8192))
    s.sendall(said)
    heard = b""
    while len(heard) < len(said):
        part = s.recv(65536)
        if not part:
            sys.exit(f"the end comes within message {number}")
        heard += part
    if heard != said:
        sys.exit(f"message {number} came back as another")
'''


def own_namespace():
    """This test, and what it starts, in a network namespace of its own; for who is not root in a user namespace, too."""
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWNET | (CLONE_NEWUSER if user else 0)):
        print('no network namespace may be made')
        sys.exit(77)
    for name, words in (('setgroups', 'deny'), ('uid_map', f'0 {user} 1'), ('gid_map', f'0 {group} 1')) if user else ():
        with open(f'/proc/self/{name}', 'w', encoding='ascii') as f:
            f.write(words)


def far_namespace():
    """The words before a command that is to run in the other namespace."""
    def leave():
        libc.prctl(h.programs.PR_SET_PDEATHSIG, 9)
        if libc.unshare(CLONE_NEWNET):
            raise OSError('no second namespace')

    holder = subprocess.Popen(['sleep', 'infinity'], stdin=subprocess.DEVNULL, preexec_fn=leave, start_new_session=True)
    h.programs.track(holder)
    there = ['nsenter', f'--net=/proc/{holder.pid}/ns/net']
    for words in (['ip', 'link', 'set', 'lo', 'up'],
                  ['ip', 'link', 'add', 'near', 'type', 'veth', 'peer', 'name', 'far', 'netns', str(holder.pid)],
                  ['ip', 'addr', 'add', NEAR + '/24', 'dev', 'near'], ['ip', 'addr', 'add', NEAR6 + '/64', 'dev', 'near', 'nodad'],
                  ['ip', 'link', 'set', 'near', 'up'],
                  [*there, 'ip', 'addr', 'add', FAR + '/24', 'dev', 'far'], [*there, 'ip', 'addr', 'add', FAR6 + '/64', 'dev', 'far', 'nodad'],
                  [*there, 'ip', 'link', 'set', 'far', 'up'], [*there, 'ip', 'link', 'set', 'lo', 'up']):
        subprocess.run(words, stdin=subprocess.DEVNULL, check=True)
    return there


def talk(what, address, there, near_device='', far_device='', options=()):
    """The summaries of the server, which is here, and of the client."""
    port = h.free_port()
    room = tempfile.mkdtemp(dir=rooms)

    def run(device, *words):
        env = ['env', f'VERBS_DOUBLE=room={room},{device}']
        return h.Program([*env, *words], True, '0', options=('transports=shm,verbs', 'patience=20000', *options))

    server = run(near_device, sys.executable, '-c', SERVER, address, str(port)).ready(port)
    client = run(far_device, *there, sys.executable, '-c', CLIENT, address, str(port), str(SEED), str(ROUNDS)).wait()
    server.wait()
    ends = []
    for program in (server, client):
        with open(program.summary_path, encoding='utf-8') as f:
            lines = [json.loads(line) for line in f]
        h.check(len(lines) == 1, f'{what}: {lines}')
        ends += lines
    print(f'{what}: ' + '; '.join(f'{end["switched"]}, {end["ring_tx_bytes"]} of {end["ring_tx_bytes"] + end["tcp_tx_bytes"]} bytes sent, '
                                  f'{end["wr"]} work requests, {end["reasons"]}' for end in ends), flush=True)
    return ends


def moved(what, ends, road):
    for end in ends:
        h.check(end['switched'] == {'shm': 0, 'verbs': 0, road: 1} and not end['reasons'], f'{what}: {end}')
        h.check(end['ring_tx_bytes'] > end['tcp_tx_bytes'] and (end['wr'] > 0) == (road == 'verbs'), f'{what}: {end}')


def stayed(what, ends, *reasons):
    """The server's reason and the client's."""
    for end, reason in zip(ends, reasons):
        h.check(end['switched'] == {'shm': 0, 'verbs': 0} and not end['ring_tx_bytes'] and end['reasons'] == {reason: 1}, f'{what}: {reason}? {end}')


def main():
    h.need('nsenter', 'ip')
    own_namespace()
    there = far_namespace()
    for name, address in (('IPv4', NEAR), ('IPv6', NEAR6)):
        moved(f'{name}, two namespaces', talk(f'{name}, two namespaces', address, there), 'verbs')
        moved(f'{name}, one namespace', talk(f'{name}, one namespace', address, []), 'shm')
    for what, reasons, how in (('no device in the far one', ('peer-silent', 'no-device'), {'far_device': 'no-device'}),
                               ('no device has the far address', ('peer-silent', 'no-device'), {'far_device': f'only={NEAR}'}),
                               ('no device in the near one', ('no-device', 'peer-silent'), {'near_device': 'no-device'}),
                               ('shared memory alone', ('no-peer', 'no-peer'), {'options': ['transports=shm']})):
        stayed(what, talk(what, NEAR, there, **how), *reasons)


main()
