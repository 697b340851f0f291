# SPDX-License-Identifier: MIT
"""Runs one command as the first process of a PID namespace (or, without one, as a child subreaper), reaps what is
orphaned under it, and when the command has ended writes down what it left behind.

usage: phase_init.py REPORT SECONDS NET COMMAND...
REPORT is a JSON file: {"status": exit status, "timed_out": bool, "processes": [...], "files": [...], "sockets": [...]}.
NET is 1 when the network namespace is ours too, so that its loopback device has to be started first.
"""
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
IFF_UP, SIOCGIFFLAGS, SIOCSIFFLAGS = 1, 0x8913, 0x8914


def start_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack('16sH14x', b'lo', 0))
        flags = struct.unpack('16sH14x', request)[1]
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack('16sH14x', b'lo', flags | IFF_UP))


def descendants():
    """Live processes below this one: {pid: command line}."""
    parent, text = {}, {}
    for name in os.listdir('/proc'):
        if not name.isdigit():
            continue
        try:
            with open(f'/proc/{name}/stat', 'rb') as f:
                fields = f.read().rpartition(b')')[2].split()
            with open(f'/proc/{name}/cmdline', 'rb') as f:
                line = f.read().replace(b'\0', b' ').decode(errors='replace').strip()
        except OSError:
            continue
        if fields[0] in (b'Z', b'X'):
            continue
        parent[int(name)], text[int(name)] = int(fields[1]), line
    below = {os.getpid()}
    while True:
        more = {pid for pid, up in parent.items() if up in below} - below
        if not more:
            break
        below |= more
    return {pid: text[pid] for pid in below if pid != os.getpid() and pid in text}


def reap():
    """Collect every child that has ended: {pid: wait status}."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def abstract_sockets():
    with open('/proc/net/unix', encoding='utf-8', errors='replace') as f:
        names = {line.split()[-1] for line in f}
    return sorted(n for n in names if n.startswith('@ringway'))


def files_in(directory):
    try:
        return sorted(os.path.join(directory, n) for n in os.listdir(directory))
    except OSError:
        return []


def main():
    report, seconds, net, command = sys.argv[1], float(sys.argv[2]), sys.argv[3] == '1', sys.argv[4:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if net:
        start_loopback()
        # The mount namespace is ours as well: a /dev/shm in which everything found afterwards is a leak.
        ctypes.CDLL(None).mount(b'ringway-check', b'/dev/shm', b'tmpfs', 0, None)
    shm_before, sockets_before = set(files_in('/dev/shm')), set(abstract_sockets())
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    # Kept: an object that is thrown away would collect the exit status in reap()'s place.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    child = process.pid
    deadline = time.monotonic() + seconds
    status, timed_out, killed_at = None, False, None
    while status is None:
        status = reap().get(child)
        now = time.monotonic()
        if status is None and (stop or now > deadline) and not timed_out:
            timed_out, killed_at = True, now + 6
            os.kill(child, signal.SIGTERM)  # not collected yet, so the number is still its own
        if status is None and killed_at and now > killed_at:
            break
        time.sleep(0.02)
    # A process that was told to end may need a moment to do so.
    settle = time.monotonic() + 2
    while descendants() and time.monotonic() < settle:
        reap()
        time.sleep(0.05)
    left = descendants()
    result = {
        'status': 1 if status is None else os.waitstatus_to_exitcode(status),
        'timed_out': timed_out,
        'processes': [f'{pid}: {text}' for pid, text in sorted(left.items())],
        # A /dev/shm that others use as well can only be judged by the names.
        'files': sorted(f for f in set(files_in('/dev/shm')) - shm_before if net or 'ringway' in f) + files_in(os.environ.get('TMPDIR', '/nonexistent')),
        'sockets': [] if left else sorted(set(abstract_sockets()) - sockets_before),
    }
    with open(report, 'w', encoding='utf-8') as f:
        json.dump(result, f)
    for _ in range(20):
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        reap()
        if not descendants():
            break
        time.sleep(0.05)


main()
