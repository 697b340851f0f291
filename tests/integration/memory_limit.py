# SPDX-License-Identifier: MIT
"""A control group with a memory limit: only a share of it becomes rings, and with little of it left what nobody reads waits in the kernel's sockets. All bytes come
back as they were sent, and as much is taken as by TCP."""
import ctypes
import json
import os
import sys

import harness as h

CLONE_NEWUSER, CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x10000000, 0x20000, 0x4000, 0x40000
ROOT = '/sys/fs/cgroup'
MB = 1 << 20
LIMIT, PAIRS = 64 * MB, 24
ON_RINGS = LIMIT // 4 // MB  # both ends of a pair map its two rings of 256 KiB

PROGRAM = '''
import random, socket, sys
pairs, unread = int(sys.argv[1]), int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", 0))
data = random.Random(1).randbytes(unread)
def pair():
    a = socket.create_connection(listener.getsockname())
    b = listener.accept()[0]
    for s in (a, b):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return a, b
def talk(a, b):
    for n in range(60):
        for x, y in ((a, b), (b, a)):
            x.sendall(data[n:n + 64])
            assert y.recv(64, socket.MSG_WAITALL) == data[n:n + 64]
def fill(a, b):
    sent = 0
    a.setblocking(False)
    try:
        while sent < unread:
            sent += a.send(data[sent:sent + 65536])
    except BlockingIOError:
        pass
    a.setblocking(True)
    return sent
ends = [pair() for _ in range(pairs)]
for a, b in ends:
    talk(a, b)
taken = [fill(a, b) for a, b in ends]
most = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssShmem"))
for (a, b), sent in zip(ends, taken):
    got = b""
    while len(got) < sent:
        got += b.recv(1 << 20)
    assert got == data[:sent]
    talk(a, b)
print(min(taken), most)
'''


def own_view():
    """Mounts of this test's own, in which a memory limit may be written."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None)
    if not os.path.isdir(ROOT) or libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)):
        print('no mount namespace may be made')
        sys.exit(77)
    for name, words in (('setgroups', 'deny'), ('uid_map', f'0 {user} 1'), ('gid_map', f'0 {group} 1')) if user else ():
        with open(f'/proc/self/{name}', 'w', encoding='ascii') as f:
            f.write(words)
    # In a changed root that is no mount of its own, the place itself may be on one.
    apart = any(libc.mount(b'none', place, None, MS_REC | MS_PRIVATE, None) == 0 for place in (b'/', b'/sys'))
    if not apart or libc.mount(b'none', ROOT.encode(), b'tmpfs', 0, None):
        print('no mount namespace may be made')
        sys.exit(77)
    os.mkdir(f'{ROOT}/memory')


def write(limit, in_use, files=0):
    """Of either version; the group's own name is not there, as in a container. FILES: of what is in use."""
    lines = f'anon {in_use - files}\nfile {files}\nshmem 0\n' + ''.join(f'{begin}inactive_file {files // 2}\n{begin}active_file {files // 2}\n' for begin in ('', 'total_'))
    for name in ('memory.stat', 'memory/memory.stat'):
        with open(f'{ROOT}/{name}', 'w', encoding='ascii') as f:
            f.write(lines)
    for name, number in (('memory.max', limit), ('memory.current', in_use), ('memory/memory.limit_in_bytes', limit), ('memory/memory.usage_in_bytes', in_use)):
        with open(f'{ROOT}/{name}', 'w', encoding='ascii') as f:
            f.write(f'{number}\n')


def run(name):
    program = h.Program([sys.executable, '-c', PROGRAM, str(PAIRS), str(2 * MB)], True, '0', stdout=h.path(name)).wait()
    with open(h.path(name), encoding='ascii') as f:
        taken, shared = map(int, f.read().split())
    with open(program.summary_path, encoding='utf-8') as f:
        end = json.loads(f.read())
    print(f'{name}: at least {taken} bytes taken, {shared} kB shared, {end["switched"]}, {end["retreated"]} back, {end["reasons"]}', flush=True)
    h.check(taken > MB, f'{name}: a socket takes more than {taken} bytes')
    return end, shared


def main():
    own_view()
    write('max', 0)
    end, _ = run('no-limit')
    h.check(end['switched']['shm'] == 2 * PAIRS and not end['reasons'], f'{end}')
    write(LIMIT, 0)
    end, _ = run('limit')
    h.check(end['switched']['shm'] == 2 * ON_RINGS and 'no-memory' in end['reasons'] and set(end['reasons']) <= {'no-memory', 'ceiling'}, f'{end}')
    # What is there of it is in use: the rings that are filled are the small ones alone.
    write(LIMIT, LIMIT)
    end, shared = run('in-use')
    h.check(end['switched']['shm'] == 2 * ON_RINGS and 'no-memory' in end['reasons'] and set(end['reasons']) <= {'no-memory', 'ceiling'}, f'{end}')
    h.check(shared * 1024 < LIMIT // 4, f'{shared} kB of rings')
    # All of that is files, which give way.
    write(LIMIT, LIMIT, LIMIT)
    end, shared = run('files')
    h.check(end['switched']['shm'] == 2 * ON_RINGS and shared * 1024 > LIMIT // 4, f'{end}, {shared} kB of rings')


main()
