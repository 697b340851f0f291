# SPDX-License-Identifier: MIT
"""Starting programs, with or without Ringway, so that none of them outlives this one; and reading what Ringway counted.
Used by the demonstration and by the integration tests."""
import atexit
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PR_SET_PDEATHSIG = 1
TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ROAD = os.environ.get('TESTS_ROAD', 'shm')  # that connections are expected to take

_libc = ctypes.CDLL(None)
_running = []


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def track(child):
    """Have end_all() end this one, too; it must lead a session of its own."""
    _running.append(child)


def end_all():
    """End everything that start() started, with the workers that a killed master leaves behind."""
    for child in _running:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
    _running.clear()


def _told_to_end(*_):
    # Once: Ctrl-C may come twice, from the terminal and by way of timeout(1), and the second would break off the tidying up.
    for number in TO_END:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(1)


def own_directory(prefix, parent=None):
    """A temporary directory that is removed, and all programs ended, whichever way this process ends."""
    for number in TO_END:
        signal.signal(number, _told_to_end)
    directory = tempfile.mkdtemp(prefix=prefix, dir=parent)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(end_all)  # exit handlers run last registered first
    return directory


def start(argv, settings=None, stdin=None, stdout=None, stderr=None, cwd=None):
    """Start ARGV, under Ringway with these settings ("name=value") unless they are None. The streams are files, None is
    /dev/null; never a pipe of ours, which a process left behind could hold open."""
    if settings is not None:
        argv = [os.environ['TESTS_TOOL'], 'run', *[word for s in settings for word in ('-o', s)], '--', *argv]
    env = {k: v for k, v in os.environ.items() if not k.startswith('RINGWAY') and k != 'LD_PRELOAD'}
    with open(stdin or os.devnull, 'rb') as source, open(stdout or os.devnull, 'wb') as sink, \
            open(stderr or os.devnull, 'wb') as errors:
        child = subprocess.Popen(argv, stdin=source, stdout=sink, stderr=errors, env=env, cwd=cwd, start_new_session=True,
                                 preexec_fn=_die_with_parent)
    track(child)
    return child


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def listening(port):
    """Is somebody listening there? Looked up, not tried: a connection would be counted."""
    for table in ('/proc/net/tcp', '/proc/net/tcp6'):
        with contextlib.suppress(OSError), open(table, encoding='ascii') as f:
            for line in f:
                fields = line.split()
                if fields[3] == '0A' and int(fields[1].rpartition(':')[2], 16) == port:
                    return True
    return False


def wait_listening(port, child, seconds):
    """True as soon as somebody listens; False when CHILD has ended or the time is over."""
    deadline = time.monotonic() + seconds
    while not listening(port):
        if child.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def summary_totals(path):
    """The sum of the lines that the processes of one program have written to RINGWAY_SUMMARY."""
    total = {'connections': 0, 'ring': 0, 'tcp': 0, 'switched': 0, 'reasons': {}}
    with contextlib.suppress(FileNotFoundError), open(path, encoding='utf-8') as f:
        for line in f:
            row = json.loads(line)
            total['connections'] += row['connections']
            total['ring'] += row['ring_tx_bytes'] + row['ring_rx_bytes']
            total['tcp'] += row['tcp_tx_bytes'] + row['tcp_rx_bytes']
            total['switched'] += row['switched'][ROAD]
            for reason, count in row['reasons'].items():
                total['reasons'][reason] = total['reasons'].get(reason, 0) + count
    return total
