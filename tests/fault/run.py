#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Conversations with one thing wrong: a system call of the set-up that fails, or a peer that misbehaves.

    run.py --shim SO --bin DIRECTORY [--verbs DIRECTORY] [--case PART]... [--verbose] GROUP...

Every case is two processes over one TCP connection: `talk` under the preload, and another talk or `hostile`. The talk must
come through with every byte right (where its peer lives and tells the truth about program bytes), hold no descriptor
afterwards, end in time, and its summary must give the reason.
"""
import argparse
import os
import pathlib
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from ringway_support import clean_env, read_summary  # noqa: E402
from strangers import Strangers  # noqa: E402

PATIENCE = 30.0
OK = "ok"
ENDS = "ends"  # the peer died or lied about program bytes: an end of any kind, in time
FRAME = "frame"  # the same, and among them is a frame that is none of this connection's, which is data


class Case:
    """`victim` is the role that is looked at; the other end is a talk under the preload, or hostile."""

    def __init__(self, name, victim, *, deny=None, hostile=None, limits=None, outcome=OK, other=OK, reasons=(), switched=None,
                 asleep=False, hosts="44", extra=(), other_extra=(), strangers=None, device=None, other_device="", without=""):
        self.name, self.victim, self.deny, self.hostile, self.limits = f"{name}-{victim}", victim, deny, hostile, limits
        self.outcome, self.other, self.reasons, self.switched = outcome, other, set(reasons), switched
        self.hosts = dict(zip(("accept", "connect"), hosts))
        self.extra, self.other_extra = list(extra), list(other_extra)
        self.strangers = strangers  # how many come before the true peer; 0: without end, from before it to the end of the talk
        self.device, self.other_device = device, other_device  # of the double of verbs; None: not as between hosts
        self.without = without  # what the victim has not got of what verbs need: "libraries", or the "engine"
        self.asleep = asleep  # the preload does not wake up at all, and so has nothing to say


def denied():
    """name of the rule: who needs the call (connector, acceptor), reasons that may be given, whether it still switches."""
    both = ("connect", "accept")
    rows = [
        ("memfd-refused", both, {"connect": (), "accept": ("seccomp",)}),
        ("memfd-missing", both, {"connect": (), "accept": ("seccomp",)}),
        ("memfd-memory", both, {"connect": (), "accept": ("no-memory",)}),
        ("memfd-fds", both, {"connect": (), "accept": ("no-fds",)}),
        ("truncate", ("accept",), {"accept": ("no-memory",)}),
        ("seal", ("accept",), {"accept": ("seccomp",)}),
        ("seals", ("connect",), {"connect": ("bad-segment",)}),
        ("map", both, {"connect": ("no-memory",), "accept": ("no-memory",)}),
        ("diag", both, {"connect": ("no-diag",), "accept": ("no-diag",)}),
        ("diag-fds", both, {"connect": ("no-fds",), "accept": ("no-fds",)}),
        ("bell", both, {"connect": ("no-bell",), "accept": ("no-bell",)}),
        ("bell-fds", both, {"connect": ("no-fds",), "accept": ("no-fds",)}),
        ("bell-filter", both, {"connect": ("seccomp",), "accept": ("seccomp",)}),
        ("link", both, {"connect": ("no-rendezvous",), "accept": ("no-rendezvous",)}),
        ("link-fds", both, {"connect": ("no-fds",), "accept": ("no-fds",)}),
        ("listen", ("connect",), {"connect": ("no-rendezvous",)}),
        ("accept", ("connect",), {"connect": ("no-fds",)}),
        ("hello", ("accept",), {"accept": ("no-memory",)}),
        ("heard", both, {"connect": ("bad-hello",), "accept": ("bad-hello",)}),
        ("peer-cred", both, {"connect": ("peer-uid",), "accept": ("peer-uid",)}),
        ("cookie", both, {"connect": ("peer-silent",), "accept": ("peer-silent",)}),
        ("tcp-info", both, {"connect": ("no-diag",), "accept": ("no-diag",)}),
        ("outq", both, {"connect": ("no-diag",), "accept": ("no-diag",)}),
        ("random", both, {"connect": ("seccomp",), "accept": ("seccomp",)}),
    ]
    for name, roles, reasons in rows:
        for role in roles:
            switches = not reasons[role]
            yield Case("deny-" + name, role, deny=name, reasons=reasons[role], switched=1 if switches else 0)
    for role in both:
        # Not needed: only the fence that it saves is paid.
        yield Case("deny-membarrier", role, deny="membarrier", switched=1)
        yield Case("deny-limits", role, deny="limits", asleep=True)


def limited():
    for role in ("connect", "accept"):
        yield Case("few-fds", role, limits={resource.RLIMIT_NOFILE: 16}, reasons=("no-fds",), switched=0)
    yield Case("small-files", "accept", limits={resource.RLIMIT_FSIZE: 8192}, reasons=("no-memory",), switched=0)


def hostile():
    both = ("connect", "accept")
    rows = [
        # scenario, victims, how the victim ends, how the hostile one does, reasons, switched
        ("honest", both, OK, OK, (), 1),
        ("mute", both, OK, OK, ("peer-silent",), 0),
        ("garbage", both, OK, OK, ("bad-hello",), 0),
        ("oversized", both, OK, OK, ("bad-hello",), 0),
        ("hangs-up", both, OK, OK, ("peer-silent", "peer-refused"), 0),
        ("version", ("connect",), OK, OK, ("bad-hello",), 0),
        ("tuple", ("connect",), OK, OK, ("bad-hello",), 0),
        ("no-seals", ("connect",), OK, OK, ("bad-segment",), 0),
        ("wrong-size", ("connect",), OK, OK, ("bad-segment",), 0),
        ("foreign", both, OK, OK, ("peer-uid",), 0),
        ("absent", both, OK, OK, (), 0),
        ("no-frame", both, OK, OK, ("bad-frame",), 0),
        ("ack-unasked", both, OK, OK, (), 0),
        ("announce-past", both, OK, OK, (), 0),
        ("tail-ahead", both, ENDS, ENDS, ("bad-position",), None),
        ("tail-back", both, ENDS, ENDS, ("bad-position",), None),
        ("head-ahead", both, ENDS, ENDS, ("bad-position",), None),
        ("scribble", both, ENDS, ENDS, (), None),
    ]
    for name, roles, outcome, other, reasons, switched in rows:
        if name == "foreign" and os.geteuid() != 0:
            print("hostile-foreign: left out, only root can be another user", flush=True)
            continue
        for role in roles:
            yield Case("hostile-" + name, role, hostile=name, outcome=outcome, other=other, reasons=reasons, switched=switched)


def families():
    for hosts in ("44", "66", "mm", "m4", "4m"):
        yield Case("family-" + hosts, "connect", hosts=hosts, switched=1)


def one_way():
    """One end says at once that it has nothing to say; the other direction is worth a ring all the same."""
    for role in ("connect", "accept"):
        for hearer in "ca":
            words = [f"one-way-{hearer}"]
            yield Case(words[0], role, extra=words, other_extra=words, switched=1)


def killed():
    for name in ("offered", "dialled", "greeted", "linked", "announced", "acked", "half-frame", "framed"):
        for role in ("connect", "accept"):
            yield Case("killed-" + name, role, hostile="die-" + name, outcome=ENDS, other=ENDS)
    # An honest peer, at points spread over the rendezvous, the switch, and streams on the ring each way.
    for heard in (1, 1000, 3000, 10000, 50000, 100000, 600000, 1100000):
        for role in ("connect", "accept"):
            yield Case(f"killed-after-{heard}", role, other_extra=[f"die-{heard}"], outcome=ENDS, other=ENDS)


def strangers():
    """Others of the same user find the offer before the peer does: a few are only a delay, more end the attempt, none disturbs the talk."""
    for role in ("connect", "accept"):
        yield Case("few-strangers", role, extra=["waits"], other_extra=["waits"], strangers=6, switched=1)
        yield Case("strangers-without-end", role, extra=["waits"], other_extra=["waits"], strangers=0)


def verbs():
    """As between hosts: what `families` and `one-way` do, peers that are killed, and what devices do."""
    both = ("connect", "accept")
    for hosts in ("44", "66", "mm", "m4", "4m"):
        yield Case("verbs-family-" + hosts, "connect", hosts=hosts, switched=1, device="")
    for hearer in "ca":
        words = [f"one-way-{hearer}"]
        yield Case("verbs-" + words[0], "accept", extra=words, other_extra=words, switched=1, device="")
    for heard in (1, 1000, 10000, 100000, 600000, 1100000):
        for role in both:
            yield Case(f"verbs-killed-after-{heard}", role, other_extra=[f"die-{heard}"], outcome=ENDS, other=ENDS, device="")
    rows = [
        # the victim's device, the other one's, reasons, switched
        ("iwarp", "iwarp", (), 1),
        ("inline=0", "", (), 1),
        ("no-device", "", ("no-device",), 0),
        ("only=127.0.0.2", "", ("no-device",), 0),
        ("memlock=65536", "", ("memlock",), 0),
        ("qps=0", "", ("no-queues", "no-memory"), 0),
        ("", "no-device", (), 0),
        ("", "memlock=65536", (), 0),
    ]
    for device, other, reasons, switched in rows:
        for role in both:
            name = device.partition("=")[0] or f"peer-{other.partition('=')[0]}"
            yield Case("verbs-" + name, role, device=device, other_device=other, reasons=reasons, switched=switched)
    # Whatever step it is at which a device stops: the talk goes on by TCP.
    for what in ("fail-post", "remove-at", "lose-at"):
        for nth in LOSSES:
            for role in both:
                yield Case(f"verbs-{what}-{nth}", role, device=f"{what}={nth},timeout-ms=10", outcome=OK, other=OK)
    # Nor do devices without immediates, which send a message more, or receive requests that a message does not find.
    for nth in LOSSES[::2]:
        for role in both:
            yield Case(f"verbs-iwarp-lose-at-{nth}", role, device=f"iwarp,lose-at={nth},timeout-ms=10", other_device="iwarp", outcome=OK, other=OK)
            yield Case(f"verbs-rnr-at-{nth}", role, device=f"rnr-at={nth}")
            yield Case(f"verbs-iwarp-rnr-at-{nth}", role, device=f"iwarp,rnr-at={nth}", other_device="iwarp")


def verbs_lies():
    """Peers whose devices say something wrong in the rendezvous, or nothing, or take back what they have said; and ends that lack what verbs need."""
    refused = ("bad-hello", "peer-refused", "peer-silent", "count-mismatch")
    rows = [(f"spoil={at}", refused, 0) for at in (0, 4, 7, 8, 15, 23, 36, 39, 45, 48, 50, 52, 55)]
    rows += [(f"cut={length}", refused, 0) for length in (0, 1, 24, 40)]
    # Another size of ring than it makes; and one that it has not, or has no more: found out by the first bytes that go there.
    rows += [(f"spoil={at}", (), None) for at in (6, 31, 32, 35)]
    rows += [(f"forget-at={nth}", (), None) for nth in LOSSES]
    rows += [("cm-delay-ms=1000000", ("peer-silent",), 0)]
    for other, reasons, switched in rows:
        for role in ("connect", "accept"):
            yield Case("verbs-peer-" + other.replace("=", "-"), role, device="", other_device=other, reasons=reasons, switched=switched)
    for role in ("connect", "accept"):
        # Somebody else than the peer at the other end of the link, right in all else: the frame in the TCP stream does not fit, and is data.
        yield Case("verbs-peer-nonce", role, device="", other_device="nonce", outcome=FRAME, other=FRAME)
        for what in ("libraries", "engine"):
            yield Case(f"verbs-without-{what}", role, device="", without=what, reasons=("no-rdma-core",), switched=0)
    yield Case("verbs-without-route", "accept", device="no-route", reasons=("no-route",), switched=0)


LOSSES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 20, 35, 50, 65, 75, 85, 100, 120, 140, 160, 180, 200)

GROUPS = {"verbs": verbs, "verbs-lies": verbs_lies, "deny": denied, "limits": limited, "hostile": hostile, "killed": killed, "families": families, "one-way": one_way,
          "strangers": strangers}


class Failed(Exception):
    pass


class End:
    """One of the two processes."""

    def __init__(self, argv, limits):
        def limit():
            for what, value in (limits or {}).items():
                resource.setrlimit(what, (value, value))

        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=clean_env(), preexec_fn=limit)
        self.text = b""

    def line(self, end):
        """The next line of its output; None when it has ended without one."""
        while b"\n" not in self.text:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failed("hangs")
            piece = os.read(self.process.stdout.fileno(), 4096)
            if not piece:
                return None
            self.text += piece
        line, self.text = self.text.split(b"\n", 1)
        return line.decode()

    def go(self):
        self.process.stdin.write(b"x")
        self.process.stdin.flush()

    def finish(self, end):
        self.process.stdin.close()
        try:
            code = self.process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed("does not end") from None
        return code, self.process.stderr.read().decode(errors="replace")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


def still_open(pid, summary, removed):
    """What a talk holds whose sockets are closed, besides its standard streams, the statistics and the summary."""
    names = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        if int(number) > 2:
            try:
                names.append(os.readlink(f"/proc/{pid}/fd/{number}"))
            except FileNotFoundError:
                continue
    # A device stays open, as a file and for its events. One that was removed does not: librdmacm has descriptors in their place that lead nowhere.
    if any(n.startswith("/memfd:verbs-double") for n in names):
        names.remove("anon_inode:[eventfd]")
    elif removed and names.count("anon_inode:[eventpoll]") == 2:
        names = [n for n in names if n != "anon_inode:[eventpoll]"]
    return [n for n in names if not n.startswith(("/memfd:ringway-stats", "/memfd:verbs-double")) and n != str(summary)]


def lacking(args, case, work):
    """The preload, and where libraries are looked for."""
    place = work / case.without
    place.mkdir(exist_ok=True)
    if case.without == "engine":
        shutil.copy(args.shim, place)
        return place / args.shim.name, args.verbs
    for name in ("libibverbs.so.1", "librdmacm.so.1"):
        (place / name).write_bytes(b"no library")
    return args.shim, place


def argv_of(args, case, role, rest, summary):
    talk, victim = str(args.bin / "talk"), role == case.victim
    shim, verbs_libraries = lacking(args, case, summary.parent) if victim and case.without else (args.shim, args.verbs)
    rest = [case.hosts[role], *rest]
    if not victim and case.hostile:
        return [str(args.bin / "hostile"), case.hostile, role, *rest]
    asan = os.environ.get("TESTS_ASAN", "")
    argv = ["/usr/bin/env", f"LD_PRELOAD={asan} {shim}", "RINGWAY=1", "RINGWAY_AFTER=0", "RINGWAY_LOG=warn"]
    if args.verbose:
        argv[-1] = "RINGWAY_LOG=debug"
    if victim:
        argv.append(f"RINGWAY_SUMMARY={summary}")
    if case.device is not None:
        argv += ["RINGWAY_TRANSPORTS=verbs", "RINGWAY_PATIENCE=300", f"LD_LIBRARY_PATH={verbs_libraries}",
                 f"VERBS_DOUBLE={case.device if victim else case.other_device}"]
    argv += [talk, role, *rest, *(case.extra if victim else case.other_extra)]
    return [str(args.bin / "deny"), case.deny, *argv] if victim and case.deny else argv


def judge(case, said, summary):
    """Raises Failed with what is not as it should be."""
    other = "accept" if case.victim == "connect" else "connect"
    for role, want in ((case.victim, case.outcome), (other, case.other)):
        line, code, stderr = said[role]
        if want == OK and (line != "ok" or code):
            raise Failed(f"{role} says {line!r}, exit {code}, {stderr.strip()[-300:]}")
        if line and "wrong byte" in line and want != FRAME:
            raise Failed(f"{role}: {line}")
        if role == case.victim and code not in (0, 1):
            raise Failed(f"{role} exits with {code}: {stderr.strip()[-300:]}")
    lines = read_summary(summary)
    if case.asleep and not lines:
        return
    if len(lines) != 1:
        raise Failed(f"{len(lines)} lines of summary")
    reasons, switched = set(lines[0]["reasons"]), sum(lines[0]["switched"].values())
    if "bad-state" in reasons:
        raise Failed("an unexpected step was counted")
    if case.reasons and not reasons & case.reasons:
        raise Failed(f"reasons {sorted(reasons)}, not one of {sorted(case.reasons)}")
    if case.switched is not None and switched != case.switched:
        raise Failed(f"{switched} switched, not {case.switched} (reasons {sorted(reasons)})")


def run_case(args, case, work):
    summary = work / (case.name + ".json")
    end = time.monotonic() + PATIENCE
    ends, said, strangers = {}, {}, None
    try:
        ends["accept"] = End(argv_of(args, case, "accept", [], summary), case.limits if case.victim == "accept" else None)
        first = ends["accept"].line(end)
        if not first or not first.startswith("port "):
            raise Failed(f"accept says {first!r}")
        ends["connect"] = End(argv_of(args, case, "connect", [first[5:]], summary),
                              case.limits if case.victim == "connect" else None)
        if case.strangers is not None:
            for role, one in ends.items():
                if one.line(end) != "ready":
                    raise Failed(f"{role} is not ready")
            ends["connect"].go()  # offers, and sleeps for an answer
            try:
                strangers = Strangers(int(first[5:]), case.strangers, end)
            except TimeoutError as late:
                raise Failed(late) from None
            ends["accept"].go()
        lines = {role: ends[role].line(end) for role in ("connect", "accept")}
        held = still_open(ends[case.victim].process.pid, summary, "remove" in (case.device or "")) if lines[case.victim] else []
        for role, one in ends.items():
            said[role] = (lines[role], *one.finish(end))
            if args.verbose:
                print(f"--- {role}: {said[role][0]!r}\n{said[role][2]}", end="")
        if strangers and strangers.nr < (case.strangers or 1):
            raise Failed(f"only {strangers.nr} strangers came")
        if held:
            raise Failed(f"still open: {held}")
        judge(case, said, summary)
    finally:
        if strangers:
            strangers.stop()
        for one in ends.values():
            one.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shim", required=True, type=pathlib.Path)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--verbs", help="the directory of the double of verbs, for the group of that name")
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("groups", nargs="+", choices=sorted(GROUPS))
    args = parser.parse_args()
    failures = nr = 0
    with tempfile.TemporaryDirectory() as name:
        for group in args.groups:
            for case in GROUPS[group]():
                if args.case and not any(part in case.name for part in args.case):
                    continue
                nr += 1
                start = time.monotonic()
                try:
                    run_case(args, case, pathlib.Path(name))
                    word = "ok"
                except Failed as why:
                    failures += 1
                    word = f"FAILED: {why}"
                print(f"{case.name}: {word} ({time.monotonic() - start:.2f} s)", flush=True)
    print(f"{nr} cases, {failures} failures")
    return 1 if failures or not nr else 0


if __name__ == "__main__":
    sys.exit(main())
