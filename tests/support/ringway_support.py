# SPDX-License-Identifier: MIT
"""What tests of several directories need: an environment for the preload, its summary, children that end with us, and "does that thread sleep?"."""
import ctypes
import json
import os
import signal
import time

PR_SET_PDEATHSIG = 1
READ_SYSCALLS = (0, 45, 47, 63, 207, 212)  # read, recvfrom, recvmsg: x86-64, then aarch64
_libc = ctypes.CDLL(None)


class Failed(Exception):
    """A test has failed; the text says what was wrong."""


def check(good, text):
    if not good:
        raise Failed(text)


def die_with_parent():
    """For preexec_fn: a test that is killed leaves no process behind."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def clean_env():
    """The caller's environment without anything that would put the preload into the process."""
    return {k: v for k, v in os.environ.items() if not k.startswith("RINGWAY") and k != "LD_PRELOAD"}


def preload_env(shim, **options):
    """An environment under the preload. after="0" becomes RINGWAY_AFTER=0. ASan's runtime has to come first."""
    env = clean_env()
    asan = os.environ.get("TESTS_ASAN")
    env["LD_PRELOAD"] = f"{asan} {shim}" if asan else str(shim)
    env["RINGWAY"] = "1"
    for name, value in options.items():
        if value is not None:
            env["RINGWAY_" + name.upper()] = str(value)
    return env


def read_summary(path):
    """The lines that RINGWAY_SUMMARY=path has collected, as dictionaries; none when nothing was written."""
    try:
        with open(path, encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.strip()]
    except FileNotFoundError:
        return []


def add_up(summaries):
    """Sums over all lines: (connections switched, ring bytes sent, ring bytes received)."""
    switched = sum(sum(s["switched"].values()) for s in summaries)
    return switched, sum(s["ring_tx_bytes"] for s in summaries), sum(s["ring_rx_bytes"] for s in summaries)


def thread_view(pid, tid):
    """One look at a thread: (state letter, its line in /proc/PID/task/TID/syscall, times it has gone to sleep)."""
    base = f"/proc/{pid}/task/{tid}/"
    try:
        with open(base + "syscall", encoding="ascii") as f:
            syscall = f.read().strip()
        with open(base + "status", encoding="ascii", errors="replace") as f:
            status = dict(line.split(":", 1) for line in f if ":" in line)
    except (FileNotFoundError, ProcessLookupError):
        return "gone", "", ""
    return status["State"].strip()[0], syscall, status["voluntary_ctxt_switches"].strip()


def wait_asleep(pid, tid, also=lambda: False, idle_fd=-1, seconds=10.0):
    """Waits until the thread sleeps in the kernel: two looks in a row see the same sleep.

    Answers "asleep", "gone", or "busy" when it neither slept nor ended in time; "other" as soon as also() is true.
    A sleep in a read of idle_fd does not count.
    """
    end = time.monotonic() + seconds
    last = None
    while time.monotonic() < end:
        if also():
            return "other"
        view = thread_view(pid, tid)
        if view[0] == "gone":
            return "gone"
        if view[0] in "SD" and view == last and not view[1].startswith("running"):
            words = view[1].split()
            if not (int(words[0]) in READ_SYSCALLS and int(words[1], 16) == idle_fd):
                return "asleep"
        last = view
        time.sleep(0)
    return "busy"
