# SPDX-License-Identifier: MIT
"""Carries one script out with fresh processes, step by step, and notes what every step returned.

Only one actor acts at a time: a step is handed out when the one before has answered, or, for `start`, when its actor
is seen asleep in the kernel. So the trace does not depend on the scheduler.
"""
import ctypes
import os
import re
import select
import signal
import socket

import ringway_support as support
from quiet import Watch

REPLY_SECONDS = float(os.environ.get("CONFORM_SECONDS", 15))  # much longer than anything takes, on a busy machine too
WARM_ROUNDS = 100
FIRST_CHANNEL_FD = 700
SYS_TGKILL = {"x86_64": 234, "aarch64": 131}[os.uname().machine]
libc = ctypes.CDLL(None)


class Hang(Exception):
    pass


class Ended(Exception):
    pass


class Actor:
    def __init__(self, name, channel, fd):
        self.name, self.channel, self.fd = name, channel, fd
        self.pid = self.tid = 0
        self.started = None  # the step that was handed out and not finished

    def readable(self):
        return bool(select.select([self.channel], [], [], 0)[0])


class Director:
    """stage_env(actor names) gives the environment of the process that plays them."""

    def __init__(self, program, script, layout, family, warm, stage_env, stderr_path, say=None, unrest=None):
        self.program, self.script, self.layout, self.family, self.warm = program, script, layout, family, warm
        self.stage_env, self.stderr_path = stage_env, stderr_path
        self.warmed = False
        self.say = say        # say(word, number) says `off` or `on` to a living process; None: there is nobody to hear it
        self.unrest = unrest  # unrest(names) answers what is said to whom before the next step, or None
        self.trace = []
        self.ports, self.filled = {}, {}
        self.actors, self.children, self.pids = {}, {}, set()
        self.hung = False
        # An edge-triggered set tells of the moment when its end is acknowledged.
        self.watch = Watch(family, patient=any(",et" in step.text for step in script.steps),
                           lonely=any("TCP_USER_TIMEOUT" in step.text for step in script.steps))

    # -- processes

    def _open_channels(self):
        """Answers the far ends, by actor; in one thread B shares the channel of A."""
        far = {}
        for i, name in enumerate(self.script.actors()):
            if name == "B" and self.layout == "one":
                self.actors["B"] = self.actors["A"]
                continue
            here, far[name] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.actors[name] = Actor(name, here, FIRST_CHANNEL_FD + i)
        return far

    def _spawn(self, serve, far):
        # A spawned process gets the channels of its descendants too, which are all but the other first actor's.
        others = {"A", "B"} - {name for group in serve for name in group.split(",")}
        mine = [name for name in far if name not in others]
        argv = [self.program, self.family] + [f"{n}={self.actors[n].fd}" for n in mine]
        for group in serve:
            argv += ["--serve", group]
        actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0), (os.POSIX_SPAWN_DUP2, 0, 1),
                   (os.POSIX_SPAWN_OPEN, 2, self.stderr_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)]
        actions += [(os.POSIX_SPAWN_DUP2, far[n].fileno(), self.actors[n].fd) for n in mine]
        pid = os.posix_spawn(self.program, argv, self.stage_env(serve[0][0] if len(serve) == 1 else "AB"),
                             file_actions=actions, setsigmask=[], setsigdef=[signal.SIGPIPE])
        self.children[pid] = None
        self.pids.add(pid)

    def _set_up(self):
        far = self._open_channels()
        if self.layout == "procs":
            self._spawn(["A"], far)
            self._spawn(["B"], far)
        elif self.layout == "threads":
            self._spawn(["A", "B"], far)
        else:
            self._spawn(["A,B"], far)
        for end in far.values():
            end.close()
        self._greeting("A")
        if self.layout != "one":
            self._greeting("B")

    def _greeting(self, name):
        self._greeted(self.actors[name], self._answer(self.actors[name]))

    def _greeted(self, actor, text):
        word, pid, tid = text.split()
        assert word == "hello", text
        actor.pid, actor.tid = int(pid), int(tid)
        self.pids.add(actor.pid)

    def _tear_down(self):
        for actor in set(self.actors.values()):
            actor.channel.close()
        if self.hung:
            self._kill_all()
        for pid in list(self.pids):
            if not self._gone(pid, REPLY_SECONDS):
                self.trace.append((0, "the end", "a process does not end"))
                self._kill_all()
                self._gone(pid, REPLY_SECONDS)
            self._reap(pid)

    def _kill_all(self):
        for pid in self.pids:
            if self.children.get(pid) is None:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def _gone(self, pid, seconds):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([handle], [], [], seconds)[0])
        finally:
            os.close(handle)

    def _reap(self, pid):
        """What became of a process that has ended; None for one that is not our own child."""
        if pid not in self.children:
            return None
        if self.children[pid] is None:
            self.children[pid] = os.waitpid(pid, 0)[1]
        status = self.children[pid]
        if os.WIFSIGNALED(status):
            return f"killed {signal.Signals(os.WTERMSIG(status)).name}"
        return f"exited {os.WEXITSTATUS(status)}"

    # -- channels

    def _answer(self, actor):
        try:
            handle = os.pidfd_open(actor.pid) if actor.pid else -1
        except ProcessLookupError:
            raise Ended() from None
        try:
            wait_for = [actor.channel] + ([handle] if handle >= 0 else [])
            ready = select.select(wait_for, [], [], REPLY_SECONDS)[0]
            if not ready:
                raise Hang(f"{actor.name} does not answer: {support.thread_view(actor.pid, actor.tid)}")
            data = actor.channel.recv(65536) if actor.readable() else b""
        finally:
            if handle >= 0:
                os.close(handle)
        if not data:
            raise Ended()
        return data.decode()

    def _hand_out(self, name, words):
        words = [self._substitute(w) for w in words]
        self.actors[name].channel.send(" ".join([name] + words).encode())

    def _substitute(self, word):
        if not word.startswith("@"):
            return word
        return str(self.ports[word[1:]] if word[1:] in self.ports else self.filled[word[1:]][0])

    def _digest(self, name, words, answer):
        """The visible part of an answer; what was hidden goes into our tables."""
        visible, _, hidden = answer.partition("\t")
        values = dict(pair.split("=") for pair in hidden.split())
        if "port" in values:
            self.ports[words[1]] = int(values["port"])
        if "own" in values:
            self.watch.add(int(values["own"]), int(values["peer"]))
        if words[0] == "fill":
            self.filled[name] = (values["filled"], values["sum"])
        if words[0] == "drain":
            source = words[2][1:]
            visible += " same bytes" if values["sum"] == self.filled[source][1] else " OTHER BYTES"
        known = {port: who for who, port in self.ports.items()}
        return re.sub(r"port=(\d+)", lambda m: "port=" + known.get(int(m[1]), "*"), visible)

    def _ask(self, name, words):
        actor = self.actors[name]
        self._hand_out(name, words)
        try:
            answer = self._answer(actor)
        except Ended:
            return "ended" if self._reap(actor.pid) is None else "ended: " + self._reap(actor.pid)
        if words[0] == "exec":
            self._greeted(actor, answer)
            return "= ok"
        if words[0] in ("fork", "new_thread", "spawn") and answer == "= ok":
            self._greeting(words[1])
        return self._digest(name, words, answer)

    # -- steps

    def _must(self, name, *words):
        result = self._ask(name, list(words))
        if not result.startswith(("= ok", "= 0")):
            raise Hang(f"{name} {' '.join(words)}: {result}")

    def _pair(self, name):
        if "l" not in self.ports:
            self._must("B", "server", "l", *self.script.buffers)
        self._must("A", "socket", name, *self.script.buffers)
        self._must("A", "connect", name, "@l")
        self._must("B", "accept", "l", name)
        self._warm(name, "A", "B")

    def _warm(self, name, ping, pong, pong_name=None):
        pong_name = pong_name or name
        self.warmed = True
        if not self.warm:
            return
        if self.layout == "one":
            for _ in range(WARM_ROUNDS):
                for who, verb, fd in ((ping, "sendn", name), (pong, "recvn", pong_name),
                                      (pong, "sendn", pong_name), (ping, "recvn", name)):
                    answer = self._ask(who, [verb, fd, "8"])
                    if not answer.startswith("= 8"):
                        raise Hang(f"warming up, {who} {verb}: {answer}")
            return
        self._hand_out(ping, ["ping", name, str(WARM_ROUNDS)])
        self._must(pong, "pong", pong_name, str(WARM_ROUNDS))
        answer = self._answer(self.actors[ping])
        if answer != "= ok":
            raise Hang(f"warming up, {ping}: {answer}")

    def _start(self, step, actor):
        self._hand_out(step.actor, step.words)
        seen = support.wait_asleep(actor.pid, actor.tid, also=actor.readable, idle_fd=actor.fd)
        if seen == "asleep":
            actor.started = step
            return "sleeps"
        if seen == "busy":
            raise Hang(f"{step.actor} neither sleeps nor answers: {support.thread_view(actor.pid, actor.tid)}")
        return self._digest(step.actor, step.words, self._answer(actor))

    def _finish(self, step, actor):
        if actor.started is None:
            return "had not slept"
        started, actor.started = actor.started, None
        try:
            return self._digest(step.actor, started.words, self._answer(actor))
        except Ended:
            return "ended"

    def _say(self, word, name):
        if self.say and self.actors[name].pid:
            self.say(word, self.actors[name].pid)

    def _do(self, step):
        if step.actor is None and step.words[0] in ("off", "on"):
            return self._say(*step.words)
        if step.actor is None:
            (self._pair if step.words[0] == "pair" else self._warm)(*step.words[1:])
            return None
        actor = self.actors[step.actor]
        if step.how == "run":
            return self._ask(step.actor, step.words)
        if step.how == "start":
            return self._start(step, actor)
        if step.how == "begin":
            self._hand_out(step.actor, step.words)
            actor.started = step
            return "begins"
        if step.how == "finish":
            return self._finish(step, actor)
        if step.how == "still":
            if actor.started is None:
                return "had not slept"
            seen = support.wait_asleep(actor.pid, actor.tid, also=actor.readable, idle_fd=actor.fd)
            return "has answered" if seen == "other" else seen
        if step.how == "signal":
            number = getattr(signal, "SIG" + step.words[0])
            return f"= {libc.syscall(SYS_TGKILL, actor.pid, actor.tid, number)}"
        if step.how == "kill":
            os.kill(actor.pid, signal.SIGKILL)
        if not self._gone(actor.pid, REPLY_SECONDS):
            raise Hang(f"{step.actor} does not end")
        return f"gone: {self._reap(actor.pid)}"

    def run(self):
        """The trace: (line number, step, result) each. A hang is the last entry."""
        step = None
        try:
            self._set_up()
            for step in self.script.steps:
                # What is off before it has moved never does.
                unrest = self.unrest if self.warmed or not self.warm else None
                said = unrest and unrest([name for name, actor in self.actors.items() if actor.pid])
                if said:
                    self._say(*said)
                self.watch.wait()
                result = self._do(step)
                if result is not None:
                    self.trace.append((step.line_number, step.text, result))
        except (Hang, Ended, BrokenPipeError, ConnectionError) as error:
            self.hung = True
            text = str(error) or type(error).__name__
            self.trace.append((step.line_number if step else 0, step.text if step else "set-up", "HANG: " + text))
        finally:
            self._tear_down()
            self.watch.close()
        return self.trace


