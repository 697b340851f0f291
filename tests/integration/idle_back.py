# SPDX-License-Identifier: MIT
"""Connections that fall silent give back memory, mappings and descriptors, wake nobody after that, and move out again with the next traffic."""
import json
import os
import subprocess
import sys
import time

import harness as h

TOOL = os.environ['TESTS_TOOL']
FAR = os.environ.get('TESTS_ROAD') == 'verbs'
IDLE = '0.25'
PAGE = os.sysconf('SC_PAGE_SIZE')

# Both ends of N connections, and more when told to: "more N" and "talk N". It waits for all of it in one epoll set.
BOTH_ENDS = '''
import os, select, socket, sys
commands = os.open(sys.argv[1], os.O_RDWR)
epoll = select.epoll()
epoll.register(commands, select.EPOLLIN)
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
pairs = []
text = b"x" * 64
while True:
    epoll.poll()
    word, *number = os.read(commands, 64).decode().split()
    if word == "end":
        break
    if word == "more":
        for _ in range(int(*number)):
            a = socket.create_connection(listener.getsockname())
            b = listener.accept()[0]
            a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            b.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            epoll.register(a, select.EPOLLIN)
            epoll.register(b, select.EPOLLIN)
            pairs.append((a, b))
    if word == "talk":
        for _ in range(int(*number)):
            for a, b in pairs:
                a.sendall(text)
                assert len(b.recv(100)) == 64
                b.sendall(text)
                assert len(a.recv(100)) == 64
    # Told before the next wait, in which it may fall silent.
    segments = open("/proc/self/maps").read().count("memfd:ringway ")
    with open(sys.argv[2], "w") as f:
        f.write(f"{segments} {len(os.listdir('/proc/self/fd'))}\\n")
'''

# One end, which waits for commands and the connection in poll.
TALKER = '''
import os, select, socket, sys
commands = os.open(sys.argv[1], os.O_RDWR)
s = socket.create_server(("127.0.0.1", int(sys.argv[3]))).accept()[0]
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
poll = select.poll()
poll.register(commands, select.POLLIN)
poll.register(s, select.POLLIN)
while True:
    poll.poll()
    word, *number = os.read(commands, 64).decode().split()
    if word == "end":
        break
    for i in range(int(*number)):
        s.sendall(b"%d" % i)
        assert s.recv(100) == b"%d" % i
    with open(sys.argv[2], "w") as f:
        f.write("0\\n")
'''


def rows(pid):
    said = subprocess.run([TOOL, 'ps', '--json'], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=h.PATIENCE, check=True).stdout
    return [c for p in json.loads(said) if p['pid'] == pid for c in p['connections']]


def roads(pid):
    return {road for c in rows(pid) for road in (c['tx'], c['rx'])}


def segments(pid):
    with open(f'/proc/{pid}/maps', encoding='ascii', errors='replace') as f:
        return f.read().count('memfd:ringway ')


def descriptors(pid):
    return len(os.listdir(f'/proc/{pid}/fd'))


def resident_pages(pid):
    """Private and shared, whatever it is, as the kernel counts them; but not what stands for a device, and would lie there."""
    resident, devices = 0, False
    with open(f'/proc/{pid}/smaps', encoding='ascii', errors='replace') as f:
        for line in f:
            word = line.split()
            if not word[0].endswith(':'):
                devices = 'memfd:verbs-double' in line
            elif word[0] == 'Rss:' and not devices:
                resident += int(word[1])
    return resident * 1024 // PAGE


def wakes(pid):
    with open(f'/proc/{pid}/status', encoding='ascii') as f:
        return sum(int(line.split()[1]) for line in f if 'ctxt_switches' in line)


def given_back(*pids):
    for pid in pids:
        h.until(lambda pid=pid: not segments(pid), 'the links are given back')


def memory():
    """Of each further connection: two ends are two descriptors, and few pages, when it has been on rings and has fallen silent."""
    few, more = (16, 32) if FAR else (64, 192)
    holder = h.Told(BOTH_ENDS, after='0', options=[f'idle={IDLE}'])
    seen, there = {}, 0
    for number in (few, more):
        there += number
        holder.say('more', number)
        links, fds = holder.say('talk', 4)
        h.check(links == 2 * there, f'{links} ends of {there} connections have moved out')
        given_back(holder.pid)
        seen[there] = (resident_pages(holder.pid), descriptors(holder.pid))
        print(f'{there} connections: {fds} descriptors when busy; {seen[there]} pages and descriptors when silent', flush=True)
        h.check(FAR or fds - 2 == seen[there][1] + 2 * links, f'two bells of each end, and two files that it has open just then: {fds}, {seen[there]}')
    pages, fds = (b - a for a, b in zip(*seen.values()))
    print(f'{more} connections more, both ends: {pages} pages, {fds} descriptors', flush=True)
    h.check(fds == 2 * more, f'{fds} descriptors for {more} connections, both ends of each')
    # Must: 8 KiB for each end. A Python object for each is among them.
    h.check(pages * PAGE <= 8192 * 2 * more, f'{pages} pages for {more} connections, both ends of each')
    h.check({c['reason'] for c in rows(holder.pid)} <= {'idle', 'retreat'}, f'the reasons: {rows(holder.pid)}')
    # Out again, and back to exactly the same number of descriptors.
    links, _ = holder.say('talk', 4)
    h.check(links == 2 * there, f'{links} ends of {there} connections have moved out again')
    given_back(holder.pid)
    h.check(descriptors(holder.pid) == seen[there][1], f'{descriptors(holder.pid)} descriptors instead of {seen[there][1]}')
    quiet(holder.pid)
    holder.end()
    totals = json.loads(open(holder.program.summary_path, encoding='utf-8').read())
    h.check(totals['retreats'] == 2 * few + 4 * there, f'{totals}')


def quiet(*pids):
    """No wake-up at all from some moment on."""
    def same():
        before = [wakes(pid) for pid in pids]
        time.sleep(8 * float(IDLE))  # the window that is measured
        return before == [wakes(pid) for pid in pids]
    h.until(same, 'nobody is woken any more')


def asleep(kind, after):
    port = h.free_port()
    talker = h.Told(TALKER, port, after=after, options=[f'idle={IDLE}'])
    talker.program.ready(port)
    sleeper = h.Program([sys.executable, '-c', h.SLEEPER, kind, str(port)], True, after=after, stdout=h.path('bare'), options=[f'idle={IDLE}'])
    both = (talker.pid, sleeper.child.pid)
    for _ in range(3):
        talker.say('talk', 100)
        # It may have fallen silent again by the time that it is looked at: then it shows in the counts.
        given_back(*both)
    quiet(*both)
    h.check(roads(talker.pid) == {'tcp'}, f'{kind}: {rows(talker.pid)}')
    h.check({c['reason'] for pid in both for c in rows(pid)} <= {'idle', 'retreat'}, f'{kind}: {rows(talker.pid)}, {rows(both[1])}')
    talker.end()
    sleeper.wait()
    for program in (talker.program, sleeper):
        totals = json.loads(open(program.summary_path, encoding='utf-8').read())
        print(f'{kind}, after={after or "default"}: {totals["switches"]} switches, {totals["retreats"]} retreats', flush=True)
        h.check(totals['retreats'] >= 3 and totals['switches'] >= 6 and totals['ring_tx_bytes'] > 0, f'{kind}: {totals}')
    # An edge of room, without bytes, comes at first, as from the kernel, and may come when it moves out; but when it goes back only between hosts, where frames come by TCP.
    with open(h.path('bare'), encoding='ascii') as f:
        bare = int(f.read())
    moves = totals['switches'] // 2 + (totals['retreats'] if FAR else 0)
    h.check(bare <= (1 + moves if kind == 'edge' else 0), f'{kind}: {bare} edges for nothing: {totals}')


memory()
for waits in ('recv', 'poll', 'select', 'epoll', 'edge', 'nested'):
    asleep(waits, '0')
asleep('recv', None)
asleep('epoll', None)
