#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""surface.py SHIM PROBES CASE [VERBS]: one program, run plain, under the dormant preload, and under the enabled one. With the directory of a double
of verbs, its rings lie as on two hosts in the enabled run.

What it prints, says on standard error and returns must be the same each time. A case may have a check of its own for the
enabled run; one whose program cannot do the same without a ring has nothing but that.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from ringway_support import clean_env, preload_env, read_summary  # noqa: E402

TIMEOUT = 30


def run(argv, env, **kwargs):
    """(status, stdout, stderr). The program gets a session of its own, of which nothing is left afterwards."""
    with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True, text=True, errors="replace", **kwargs) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return "hung", out, err
        return process.returncode, out, err


class Case:
    def __init__(self, argv, options=None, check=None, env=None, compare=True, status=0, beside=None, root="",
                 copy=""):
        self.argv, self.options, self.check, self.env = argv, options or {}, check, env or {}
        self.compare, self.status = compare, status
        self.beside = beside    # an object preloaded after the shim in the enabled run
        self.root = root    # what only root may do of it
        self.copy = copy    # where another build of the shim stands in the enabled run: before this one, or behind it


class Failure(Exception):
    pass


def expect(what, seen, wanted):
    if seen != wanted:
        raise Failure(f"{what}: {seen!r} instead of {wanted!r}")


def one_line(summary, work, result, back=0):
    expect("lines of summary", len(summary), 1)
    line = summary[0]
    expect("keys", list(line), ["pid", "program", "connections", "switched", "retreated", "switches", "retreats", "tcp_tx_bytes", "tcp_rx_bytes",
                                "ring_tx_bytes", "ring_rx_bytes", "wr", "doorbells", "cqes", "reasons"])
    expect("program", line["program"], "summary")
    expect("connections", line["connections"], 2)
    expect("bytes sent", line["tcp_tx_bytes"] + line["ring_tx_bytes"], 2 * 990)
    expect("bytes received", line["tcp_rx_bytes"] + line["ring_rx_bytes"], 2 * 990)
    expect("kinds of road", sorted(line["switched"]), ["shm", "verbs"])
    expect("connections back", line["retreated"], back)
    expect("retreats", line["retreats"], back)


# Both ends are this program's.
def one_line_back(summary, work, result):
    one_line(summary, work, result, back=2)


def no_line(summary, work, result):
    expect("summary", summary, [])
    expect("its file", (work / "summary").read_bytes(), b"")


def child_told_by_holder(summary, work, result):
    expect("lines of summary", len(summary), 1)
    expect("connections", summary[0]["connections"], 2)
    expect("bytes sent", summary[0]["tcp_tx_bytes"] + summary[0]["ring_tx_bytes"], 2 * 990 + 2 * 90)


def child_told_by_itself(summary, work, result):
    told = sorted((s["tcp_tx_bytes"] + s["ring_tx_bytes"], s["connections"]) for s in summary)
    expect("bytes sent and connections", told, [(2 * 90, 2), (2 * 990, 2)])
    expect("processes", len({s["pid"] for s in summary}), 2)


def on_ring(summary, work, result):
    one_line(summary, work, result)
    expect("switched", summary[0]["switched"], {"shm": 2, "verbs": 0})
    if summary[0]["ring_tx_bytes"] == 0:
        raise Failure("no byte went through a ring")


def on_ring_and_said_once(summary, work, result):
    on_ring(summary, work, result)
    expect("log", [line.split("] ", 1)[1] for line in (work / "log").read_text().splitlines() if "another build" in line],
           ["info: another build of the shim is loaded behind this one, and stays dormant"])


def ring_used(summary, work, result):
    if not any(s["ring_tx_bytes"] for s in summary):
        raise Failure(f"no byte went through a ring: {summary}")


def ring_used_for_all(summary, work, result):
    ring_used(summary, work, result)
    expect("reasons", [s["reasons"] for s in summary], [{}] * len(summary))


def all_moved(summary, work, result):
    ring_used_for_all(summary, work, result)
    expect("connections on rings", sum(s["switched"]["shm"] for s in summary), sum(s["connections"] for s in summary))


def most_moved(summary, work, result):
    """One may come and go while it cannot be said what a set is."""
    moved, all_of_them = sum(s["switched"]["shm"] for s in summary), sum(s["connections"] for s in summary)
    if moved < all_of_them // 2:
        raise Failure(f"{moved} of {all_of_them} ends came to a ring: {[s['reasons'] for s in summary]}")


def ring_used_and_said(*texts):
    def check(summary, work, result):
        ring_used(summary, work, result)
        if result[1] not in texts:
            expect("output", result[1], texts[0])
    return check


def moved_again(summary, work, result):
    """By shared memory both processes have the rings. Between hosts the connection leaves them twice, and comes there again each time."""
    (line,) = [s for s in summary if s["switches"]]
    far = line["switched"]["verbs"] > 0
    expect("times that a lane came to a ring", line["switches"], 12 if far else 4)
    # Of the last time the child may tell.
    if line["retreats"] < (4 if far else 0) or not far and line["retreats"]:
        raise Failure(f"times that an end came back: {line['retreats']}")


def counted(reason, connections):
    def check(summary, work, result):
        expect("reasons", sum(s["reasons"].get(reason, 0) for s in summary), connections)
    return check


def filtered(summary, work, result):
    counted("bpf", 2)(summary, work, result)
    expect("bytes by rings", [s["ring_tx_bytes"] for s in summary], [0])


def came_back_for_options(summary, work, result):
    """All but that with SO_ZEROCOPY, which alone changes nothing. Each counts the option at one end, and that its peer went at the other."""
    ring_used(summary, work, result)
    (line,) = summary
    expect("ends that came back", line["retreated"], 16)
    expect("ends with a layer", line["reasons"].get("ulp"), 2)
    expect("reasons", sorted(line["reasons"]), ["bpf", "md5", "oob", "peek-offset", "repair", "retreat", "timestamps", "ulp"])


def few_of_many(summary, work, result):
    """Of 200 connections in a process with room for 64 descriptors of ours, of which one takes 4: most of the 16 that could."""
    (line,) = summary
    if line["switched"]["shm"] < 2 * 8:
        raise Failure(f"so few came to a ring: {line['switched']['shm']} ends")
    expect("reasons", sorted(set(line["reasons"]) | {"no-fds", "peer-silent"}), ["no-fds", "peer-silent"])
    expect("ends with a reason", sum(line["reasons"].values()), 400 - line["switched"]["shm"])


def caged(summary, work, result):
    expect("reasons", summary[0]["reasons"].get("seccomp"), 2)


def limited(summary, work, result):
    expect("reasons", summary[0]["reasons"].get("no-memory"), 2)


def one_caged(summary, work, result):
    expect("reasons", sum(line["reasons"].get("seccomp", 0) for line in summary), 1)


def said_once(*parts):
    def check(summary, work, result):
        lines = result[2].splitlines()
        expect("lines on standard error", len(lines), len(parts))
        for line, part in zip(lines, parts):
            if part not in line:
                raise Failure(f"{line!r} lacks {part!r}")
    return check


def summary_on_stderr(summary, work, result):
    expect("lines", len([line for line in result[2].splitlines() if line.startswith('{"pid":')]), 1)


def logged(summary, work, result):
    expect("standard error", result[2], "")


SHELL_SCRIPT = 'echo a | cat; (echo sub); x=$(echo y); echo $x; exec 5</dev/null; wait; exit 3'
PERL_SCRIPT = 'print `echo perl`; if (fork() == 0) { exec "echo", "child" } wait; open(F, "-|", "echo pipe"); print <F>; ' \
              'local $ENV{"X"} = "y"; system("echo \\$X"); exit 4'
MANY_SCRIPT = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
listener = socket.create_server(('127.0.0.1', 0), backlog=200)
pairs = []
for _ in range(200):
    client = socket.create_connection(listener.getsockname())
    pairs.append((client, listener.accept()[0]))
for _ in range(40):
    for here, there in (0, 1), (1, 0):
        for pair in pairs:
            pair[here].send(b'12345678')
        for pair in pairs:
            assert pair[there].recv(100) == b'12345678'
print('all came')
"""
PYTHON_SCRIPT = """
import os, socket, subprocess, sys, threading
for close_fds in (True, False):
    print(subprocess.run(['sh', '-c', 'echo child'], stdout=subprocess.PIPE, close_fds=close_fds).stdout)
print(os.popen('echo popen').read(), os.system('exit 2'))
print(subprocess.run(['cat'], input=b'x' * 100000, stdout=subprocess.PIPE).stdout == b'x' * 100000)
s = socket.create_server(('127.0.0.1', 0))
def serve():
    c, _ = s.accept()
    with c, c.makefile('rwb') as f:
        for line in f:
            f.write(line.upper()); f.flush()
t = threading.Thread(target=serve); t.start()
c = socket.create_connection(s.getsockname())
f = c.makefile('rwb')
for i in range(50):
    f.write(b'line %d\\n' % i); f.flush()
    assert f.readline() == b'LINE %d\\n' % i
c.shutdown(socket.SHUT_WR); print(f.read()); t.join()
os.closerange(3, 1000)
sys.exit(6)
"""

# A connection goes to a program by each of the ways that Python has, with something unread.
PYTHON_HEIR = """
import os, sys
fd, got = int(sys.argv[1]), b''
while not got.endswith(b'end'):
    got += os.read(fd, 100)
os.write(fd, b'<' + got + b'>')
"""
PYTHON_HANDS_ON = """
import os, socket, subprocess, sys
HEIR = sys.argv[1]
def run(fd, **kwargs):
    return subprocess.Popen([sys.executable, '-c', HEIR, str(fd)], **kwargs)
def spawn(fd, number):
    os.posix_spawn(sys.executable, [sys.executable, '-c', HEIR, str(number)], os.environ,
                   file_actions=[(os.POSIX_SPAWN_DUP2, fd, number)])
def fork(fd):
    if os.fork() == 0:
        os.set_inheritable(fd, True)
        os.execv(sys.executable, [sys.executable, '-c', HEIR, str(fd)])
WAYS = {
    'pass_fds': lambda s: run(s.fileno(), pass_fds=[s.fileno()]),
    'pass_fds, preexec_fn': lambda s: run(s.fileno(), pass_fds=[s.fileno()], preexec_fn=lambda: None),
    'stdin': lambda s: run(0, stdin=s),
    'stdout': lambda s: run(1, stdout=s),
    'not close_fds': lambda s: (os.set_inheritable(s.fileno(), True), run(s.fileno(), close_fds=False)),
    'spawn to 0': lambda s: spawn(s.fileno(), 0),
    'spawn to 50': lambda s: spawn(s.fileno(), 50),
    'fork': lambda s: fork(s.fileno()),
}
for way, go in WAYS.items():
    listener = socket.create_server(('127.0.0.1', 0))
    peer = socket.create_connection(listener.getsockname())
    s = listener.accept()[0]
    listener.close()
    for _ in range(30):
        peer.sendall(b'ping'); assert s.recv(4) == b'ping'
        s.sendall(b'pong'); assert peer.recv(4) == b'pong'
    peer.sendall(b'read, not read, ')
    assert s.recv(6) == b'read, '
    go(s)
    s.close()
    peer.sendall(b'end')
    print(way, peer.makefile('rb').read(), flush=True)
    peer.close()
    os.wait()
"""


def cases(probes, work):
    def probe(name, *args):
        return [str(probes / name), *args]

    at_once = {"after": "0"}
    heirs = {f"heir-{giver}-{way}": Case(probe("heir", giver, way), at_once, ring_used)
             for giver in ("fork", "vfork", "clone")
             for way in ("dup2", "dup3", "dupfd", "dup", "setfd", "fionclex", "close-range", "many")}
    heirs |= {f"heir-{how}": Case(probe("heir", how), at_once, ring_used)
              for how in ("exec", "spawn", "early-spawn", "other-file", "sleeping-peer", "nonblock", "buried-fork", "buried-vfork",
                          "buried-passed")}
    for who in ("ringway", "plain"):
        heirs[f"heir-passed-{who}"] = Case(probe("heir", "passed-" + who), at_once, ring_used)
        heirs[f"heir-passed-{who}-connector"] = Case(probe("heir", "passed-" + who, "connector"), at_once, ring_used)
    # What the devices do; "silent" ones never give up by themselves.
    control = work / "control"
    control.write_bytes(b"u")
    paths = {f"path-{how}{silent and '-silent'}":
             Case(probe("path", how, str(control)), at_once | {"ring": 65536}, ring_used_and_said("all came, the other end 0\n"), compare=False,
                  env={"VERBS_DOUBLE": f"control={control}" + silent})
             for how in ("send", "select", "poll", "epoll", "edge", "again") for silent in ("", ",timeout-ms=1000000")}
    paths["fork-takes-long"] = Case(probe("midfork", str(control)), at_once, ring_used_and_said("all went on\n"), compare=False,
                                    env={"VERBS_DOUBLE": f"control={control},timeout-ms=1000000"})
    table = {
        "closed-numbers": Case(probe("fds", "closed")),
        "close-everything": Case(probe("fds", "everything"), status=7),
        "close-everything-on-ring": Case(probe("fds", "everything"), at_once, check=ring_used, status=7),
        "take-hidden-numbers": Case(probe("fds", "take"), env={"EXPECT_HIDDEN": "1"}, compare=False),
        "take-hidden-numbers-on-ring": Case(probe("fds", "take"), at_once, check=ring_used, env={"EXPECT_HIDDEN": "1"},
                                            compare=False),
        "few-of-many": Case(["/usr/bin/python3", "-c", MANY_SCRIPT], at_once, few_of_many),
        "few-numbers-many-sets": Case(probe("fds", "sets"), at_once, ring_used),
        "few-numbers": Case(probe("fds", "few"), at_once, counted("no-fds", 2)),
        "poll-many-numbers": Case(probe("fds", "poll")),
        "poll-many-numbers-on-ring": Case(probe("fds", "poll"), at_once, ring_used),
        "exec-gets-connection": Case(probe("handover", "fork"), at_once),
        "exec-gets-connection-on-ring": Case(probe("handover", "fork", "late"), at_once, ring_used),
        "exec-gets-end-on-ring": Case(probe("handover", "ended", "late"), at_once, ring_used),
        "exec-in-vain-in-streams": Case(probe("vain", "cloexec"), at_once, ring_used),
        "exec-in-vain-in-streams-inherited": Case(probe("vain", "inherited"), at_once, ring_used),
        "exec-in-vain-in-streams-early": Case(probe("vain", "inherited", "cold"), at_once),
        "exec-in-vain": Case(probe("handover", "in-vain", "late"), at_once, ring_used),
        "vfork-on-ring": Case(probe("handover", "vfork", "late"), at_once, ring_used),
        "vfork-hidden-on-ring": Case(probe("handover", "vfork-hidden", "late"), at_once, ring_used),
        "streams-on-ring": Case(probe("handover", "streams", "late"), at_once, ring_used),
        "streams-by-dup": Case(probe("handover", "streams-dup"), at_once, counted("exec", 1)),
        "streams-by-dup-on-ring": Case(probe("handover", "streams-dup", "late"), at_once, ring_used),
        "streams-by-fcntl": Case(probe("handover", "streams-fcntl"), at_once, counted("exec", 1)),
        "streams-by-fcntl-on-ring": Case(probe("handover", "streams-fcntl", "late"), at_once, ring_used),
        "streams-from-the-start": Case(probe("handover", "streams-born"), at_once, counted("exec", 2)),
        "shell-inherits-ring": Case(probe("handover", "shell", "late"), at_once, ring_used),
        "words-inherit-ring": Case(probe("handover", "words", "late"), at_once, ring_used),
        "spawn-on-ring": Case(probe("handover", "spawn", "late"), at_once, ring_used),
        "spawn-pins": Case(probe("handover", "spawn"), at_once, counted("exec", 1)),
        "listener-is-inherited": Case(probe("handover", "listener"), at_once, ring_used),
        "lifetime": Case(probe("lifetime"), status=3),
        "lifetime-on-ring": Case(probe("lifetime"), at_once, check=ring_used, status=3),
        "own-allocator": Case(probe("alloc"), at_once, ring_used),
        "own-allocator-far-handler": Case(probe("alloc", "handler"), {"transports": "verbs"}),
        "own-allocator-far": Case(probe("alloc"), at_once | {"transports": "verbs"}),
        "signals": Case(probe("signals")),
        "signals-on-ring": Case(probe("signals"), at_once, check=ring_used),
        "signals-replaced": Case(probe("signals", "replaced")),
        "signals-replaced-on-ring": Case(probe("signals", "replaced"), at_once, check=ring_used),
        "signals-woken": Case(probe("signals", "woken")),
        "signals-woken-on-ring": Case(probe("signals", "woken"), at_once, check=ring_used),
        "signals-in-a-stream": Case(probe("signals", "stream")),
        "signals-in-a-stream-on-ring": Case(probe("signals", "stream"), at_once | {"spin": "1000000"}, check=ring_used),
        "handlers": Case(probe("handlers")),
        "handlers-on-ring": Case(probe("handlers"), at_once),
        "stdio": Case(probe("stdio"), at_once),
        "stdio-late": Case(probe("stdio", "late"), at_once, ring_used_for_all),
        "stdio-fork": Case(probe("stdio", "fork"), at_once, ring_used),
        "stdio-early": Case(probe("stdio", "early"), at_once, counted("copied", 1)),
        "stdio-again": Case(probe("stdio", "again"), at_once, counted("copied", 2)),
        "stdio-in-place": Case(probe("stdio", "in-place"), at_once, counted("stdio", 1)),
        "program-musl": Case(["sh", "-c", f"{probes}/other_libc; echo $?"], at_once),
        "plugin-plain-on-ring": Case(probe("plugin", "plain"), at_once, ring_used_for_all),
        "plugin-deep": Case(probe("plugin", "deep"), at_once, ring_used),
        "plugin-deep-early": Case(probe("plugin", "deep", "early"), at_once, counted("deepbind", 1)),
        "plugin-apart": Case(probe("plugin", "apart"), at_once, ring_used),
        "plugin-apart-early": Case(probe("plugin", "apart", "early"), at_once, counted("deepbind", 1)),
        "one-shots": Case(probe("oneshot"), check=all_moved),
        "one-shots-on-ring": Case(probe("oneshot"), at_once, all_moved),
        "one-shot-flood": Case(probe("oneshot_flood"), check=all_moved),
        "one-shot-flood-on-ring": Case(probe("oneshot_flood"), at_once, all_moved),
        "moves": Case(probe("moves")),
        "moves-on-ring": Case(probe("moves"), at_once, ring_used),
        "moves-on-ring-old-kernel": Case(probe("moves", "old"), at_once, ring_used),
        "chroot": Case(probe("cage", "chroot", str(work / "root-XXXXXX")), at_once, root="chroot"),
        "seccomp-by-prctl": Case(probe("cage", "prctl", "talk"), {"after": "20"}, caged),
        "seccomp-by-syscall": Case(probe("cage", "seccomp"), {"after": "20"}, caged),
        "seccomp-filter-first": Case(probe("cage", "filter-first"), check=caged),
        "seccomp-talk-only": Case(probe("cage", "talk-only"), {"after": "20"}, one_caged),
        "limit": Case(probe("cage", "limit"), check=limited),
        "limit-on-ring": Case(probe("cage", "limit"), at_once, ring_used),
        "seccomp-asked": Case(probe("cage", "ask"), at_once, ring_used_for_all),
        "seccomp-strict": Case(probe("cage", "strict"), at_once | {"spin": "100000"}, ring_used_and_said("-9\n" * 20), compare=False),
        "no-counter": Case(probe("cage", "no-counter"), at_once, ring_used),
        "clock-stands-still": Case(probe("still"), at_once, ring_used, beside=probes / "libstill.so"),
        "sets-made": Case(probe("sets", "made"), at_once, most_moved),
        "sets-left": Case(probe("sets", "left"), at_once, all_moved),
        "waits-unseen-epoll": Case(probe("unseen", "epoll"), at_once, counted("raw-calls", 2)),
        "waits-unseen-epoll-blocking": Case(probe("unseen", "epoll", "block"), at_once, counted("raw-calls", 2)),
        "waits-unseen-epoll-left": Case(probe("unseen", "epoll", "left"), at_once, counted("raw-calls", 2)),
        "waits-unseen-poll": Case(probe("unseen", "poll"), at_once, counted("raw-calls", 2)),
        "waits-unseen-uring": Case(probe("unseen", "uring"), at_once, counted("io-uring", 2)),
        "spins": Case(probe("unseen", "spin"), at_once, ring_used),
        "io-uring": Case(probe("cage", "io_uring"), at_once, counted("io-uring", 2)),
        "connect": Case(probe("connect")),
        "connect-on-ring": Case(probe("connect"), at_once, check=ring_used),
        "bare-calls": Case(probe("bare")),
        "bare-calls-on-ring": Case(probe("bare"), at_once, check=ring_used),
        "asynchronous-io": Case(probe("bare", "aio"), at_once, counted("aio", 1)),
        "race": Case(probe("race")),
        "race-on-ring": Case(probe("race"), at_once, check=ring_used),
        "race-asleep": Case(probe("race", "asleep")),
        "race-asleep-on-ring": Case(probe("race", "asleep"), at_once, ring_used),
        "race-handlers": Case(probe("race", "handlers")),
        "race-handlers-on-ring": Case(probe("race", "handlers"), at_once, ring_used),
        "race-close": Case(probe("race", "close")),
        "race-close-on-ring": Case(probe("race", "close"), at_once, ring_used),
        # shim/README.md, "Where it differs": what is said there of a handler's stack.
        "stack": Case(probe("stack", "4096")),
        "stack-on-ring": Case(probe("stack", "4096"), at_once, ring_used),
        "summary-none": Case(probe("summary", "none"), check=no_line),
        "summary-no-file-size": Case(probe("summary", "no-file-size"), check=no_line),
        "summary-on-ring": Case(probe("summary", "exit"), at_once, on_ring),
        "summary-two-shims-on-ring": Case(probe("summary", "exit"), at_once | {"log": "info"}, on_ring_and_said_once, copy="behind"),
        "summary-two-shims-before-on-ring": Case(probe("summary", "exit"), at_once | {"log": "info"}, on_ring_and_said_once, copy="before"),
        "race-two-shims-on-ring": Case(probe("race"), at_once, check=ring_used, copy="behind"),
        "race-two-shims-before-on-ring": Case(probe("race"), at_once, check=ring_used, copy="before"),
        "summary-titled": Case(probe("summary", "exit", "titled"), check=one_line),
        "summary-fork": Case(probe("summary", "fork"), check=child_told_by_holder),
        "summary-serving-child": Case(probe("summary", "serving-child"), check=child_told_by_itself),
        "summary-serving-child-at-once": Case(probe("summary", "serving-child"), at_once, child_told_by_itself),
        "summary-idle-child": Case(probe("summary", "idle-child"), check=one_line),
        "summary-on-stderr": Case(probe("summary", "exit"), {"summary": "stderr"}, summary_on_stderr, compare=False),
        "summary-nowhere": Case(probe("summary", "exit"), {"summary": "/nonexistent/summary", "log_file": None},
                                compare=False, check=said_once("the summary /nonexistent/summary cannot be written (ENOENT)")),
        "summary-full": Case(probe("summary", "exit"), {"summary": "/dev/full", "log_file": None},
                             compare=False, check=said_once("the summary /dev/full cannot be written (ENOSPC)")),
        "log-nowhere": Case(probe("summary", "exit"), {"log_file": "/nonexistent/log"}, compare=False,
                            check=said_once("the log /nonexistent/log cannot be opened (ENOENT)")),
        "log-to-file": Case(probe("summary", "exit"), {"log": "debug", "log_file": work / "log"}, logged),
        "settings": Case(["echo", "hello"], {"after": "soon", "typo": "1"}, compare=False,
                         check=said_once('RINGWAY_AFTER="soon" ignored: expected CALLS[:BYTES]', 'RINGWAY_TYPO="1" ignored: ')),
        "program-sh": Case(["sh", "-c", SHELL_SCRIPT], status=3),
        "program-bash": Case(["bash", "-c", SHELL_SCRIPT], status=3),
        "program-perl": Case(["perl", "-e", PERL_SCRIPT], status=4),
        "program-python": Case(["/usr/bin/python3", "-c", PYTHON_SCRIPT], status=6),
        "program-python-on-ring": Case(["/usr/bin/python3", "-c", PYTHON_SCRIPT], at_once, check=ring_used, status=6),
        "program-cat": Case(["cat", "/etc/passwd", "/nonexistent"], status=1),
        "program-static": Case(["sh", "-c", f"{probes}/static; echo $?"]),
        "ring-after-kill": Case(probe("processes", "kill"), at_once, ring_used),
        "program-setuid": Case(["sh", "-c", f"cp {probes}/fds {work}/setuid && chown nobody {work}/setuid && "
                                            f"chmod 4755 {work}/setuid && {work}/setuid closed"], root="chown"),
    }
    for where in ("low", "high"):
        table["faults-" + where] = Case(probe("faults", where))
        table["faults-" + where + "-on-ring"] = Case(probe("faults", where), at_once, ring_used)
    table["lengths"] = Case(probe("lengths"))
    table["lengths-on-ring"] = Case(probe("lengths"), at_once, ring_used)
    for how in ("fcntl", "unread", "ioctl", "urgent", "aio"):
        table["late-" + how] = Case(probe("late", how), at_once, ring_used)
    table["peek-offset"] = Case(probe("peek_offset"))
    table["peek-offset-on-ring"] = Case(probe("peek_offset"), at_once, ring_used)
    for how in ("threads", "processes", "three", "sets", "shut", "forks"):
        table["circle-" + how + "-on-ring"] = Case(probe("circle", how), at_once, ring_used)
    for how in ("recv", "recvmsg", "peek", "send", "poll", "poll-timed", "ppoll", "select", "pselect", "epoll", "epoll-timed", "epoll_pwait", "epoll_pwait2"):
        for name, args in (("", ()), ("-threads", ("threads",))):
            table["interrupts-" + how + name] = Case(probe("interrupts", how, *args))
            table["interrupts-" + how + name + "-on-ring"] = Case(probe("interrupts", how, *args), at_once, ring_used)
    for how in ("ppoll", "epoll_pwait", "epoll_pwait2"):
        table["interrupts-" + how + "-masked-on-ring"] = Case(probe("interrupts", how, "masked"), at_once, ring_used)
    for how in ("epoll", "epoll-timed", "epoll_pwait"):
        table["interrupts-" + how + "-on-ring-old-kernel"] = Case(probe("interrupts", how, "old"), at_once, ring_used)
    for how in ("jump", "copies", "cancel"):
        table["leave-" + how] = Case(probe("leave", how))
        table["leave-" + how + "-on-ring"] = Case(probe("leave", how), at_once, ring_used)
        table["leave-" + how + "-on-ring-asleep"] = Case(probe("leave", how), at_once | {"spin": "0"}, ring_used)
    for how in ("exit", "_exit", "_Exit", "quick_exit", "exit_group", "exec", "failed-exec", "closed"):
        table["summary-" + how] = Case(probe("summary", how), check=one_line_back if how == "exec" else one_line)
    for how in ("vfork", "spawn", "shell", "fork", "kill", "namespace", "descent", "half", "edges", "dropped", "storm", "exec", "daemon"):
        table["processes-" + how] = Case(probe("processes", how))
        table["processes-" + how + "-on-ring"] = Case(probe("processes", how, "first"), at_once, ring_used)
    for how in ("exec", "fork", "mixed", "option"):
        table[f"together-{how}-on-ring"] = Case(probe("together", how), at_once, ring_used)
    table["options-on-ring"] = Case(probe("options"), at_once, came_back_for_options)
    table["options-early"] = Case(probe("options", "early"), at_once, filtered)
    table["buffers-on-ring"] = Case(probe("buffers"), at_once, ring_used_and_said("more went out\n"), compare=False)
    table["again-on-ring"] = Case(probe("again"), at_once, moved_again)
    for how in ("unshare", "syscall", "close-range", "files", "memory"):
        table[f"tables-{how}-on-ring"] = Case(probe("tables", how), at_once, ring_used)
    table["program-python-hands-on"] = Case(["/usr/bin/python3", "-c", PYTHON_HANDS_ON, PYTHON_HEIR], at_once, ring_used)
    return table | heirs | paths


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit("usage: " + __doc__.split(":", 1)[0])
    shim, probes = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        case = cases(probes, work)[sys.argv[3]]
        if case.root and os.geteuid() != 0:
            print(f"{case.root} needs root")
            return 77
        dormant = clean_env()
        dormant["LD_PRELOAD"] = preload_env(shim)["LD_PRELOAD"]
        options = {"summary": work / "summary", "log_file": work / "log"} | case.options
        far = {"LD_LIBRARY_PATH": sys.argv[4]} if len(sys.argv) > 4 else {}
        enabled = preload_env(shim, **options, **({"transports": "verbs"} if far else {})) | far | case.env
        if case.beside:
            enabled["LD_PRELOAD"] += f":{case.beside}"
        if case.copy:
            other = shutil.copy(shim, work / "libringway.so")
            both = f"{other}:{shim}" if case.copy == "before" else f"{shim}:{other}"
            enabled["LD_PRELOAD"] = enabled["LD_PRELOAD"].replace(str(shim), both)
        try:
            if case.compare:
                plain = run(case.argv, clean_env())
                expect("status of the plain run", plain[0], case.status)
                expect("dormant", run(case.argv, dormant), plain)
            result = run(case.argv, enabled)
            if case.compare:
                expect("enabled", result, plain)
            else:
                expect("status", result[0], case.status)
            log = work / "log"
            if log.exists() and "log" not in case.options:
                expect("the log", log.read_text(errors="replace"), "")
            if case.check:
                case.check(read_summary(work / "summary"), work, result)
        except Failure as failure:
            print(f"{sys.argv[3]}: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
