# SPDX-License-Identifier: MIT
"""random_steps.py SEED [STEPS]: prints a random script that is legal and deterministic; the same seed, the same script.

It keeps a model of each connection: bytes on their way in both directions, who has ended what, flags and sets that are
open. So it never asks for a step that would wait for ever, and never for one whose result hangs on the moment.
"""
import random
import sys

MAX_IN_FLIGHT = 12000  # well under every buffer, so that no send ever waits


class Side:
    def __init__(self, actor, name):
        self.actor, self.names = actor, [name]
        self.unread = 0        # bytes that lie here for us
        self.ended = False     # we have said that no more comes
        self.nonblock = False
        self.timeout = False
        self.deaf = False      # shut down for reading
        self.epolls = []       # (set, edge) the first name is a member of


class Pair:
    def __init__(self, name):
        self.a, self.b = Side("A", name), Side("B", name)
        self.a.peer, self.b.peer = self.b, self.a


class Generator:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.lines = [f"# random script, seed {seed}", "layouts procs threads one"]
        self.pairs, self.count = [], 0

    def say(self, side, text):
        self.lines.append(f"{side.actor} {text}")

    def fresh(self, letter):
        self.count += 1
        return f"{letter}{self.count}"

    def size(self):
        return self.rng.choice((0, 1, 2, 7, 8, 63, 64, 65, 100, 511, 1000, 1460, 4096, self.rng.randrange(1, 6000)))

    def shape(self, total=None):
        parts = [self.rng.choice((0, 1, 5, 17, 100, 700)) for _ in range(self.rng.randrange(1, 7))]
        return ",".join(map(str, parts)), sum(parts)

    def name(self, side):
        return self.rng.choice(side.names)

    # -- what a step may be

    def open_pair(self):
        name = self.fresh("c")
        self.lines.append(f"pair {name}")
        self.pairs.append(Pair(name))

    def send(self, side):
        room = MAX_IN_FLIGHT - side.peer.unread
        fd, kind = self.name(side), self.rng.randrange(7)
        if kind in (0, 1, 2):
            length = min(self.size(), room)
            flags = "".join(f" {f}" for f in ("dontwait",) if self.rng.random() < 0.2)
            self.say(side, f"write {fd} {length}" if kind == 0 else f"send {fd} {length} nosignal{flags}")
        elif kind == 6 and room >= 600:
            self.say(side, f"sendmmsg {fd} 3 {self.rng.choice(('10,20', '1', '100,0,50'))} nosignal")
            length = 3 * sum(map(int, self.lines[-1].split()[4].split(",")))
        else:
            shape, length = self.shape()
            if length > room:
                return
            self.say(side, f"writev {fd} {shape}" if kind == 3 else f"sendmsg {fd} {shape} nosignal")
        side.peer.unread += length

    def receive(self, side):
        fd, flags = self.name(side), []
        ready = side.unread > 0 or side.peer.ended
        must_not_wait = side.nonblock or side.timeout
        kind = self.rng.randrange(8)
        want = self.size()
        if kind == 0 and want <= side.unread:
            flags.append("waitall")
        if self.rng.random() < 0.25:
            flags.append("peek")
        if not ready and not must_not_wait:
            flags.append("dontwait")
        elif self.rng.random() < 0.2:
            flags.append("dontwait")
        words = "".join(f" {f}" for f in flags)
        plain = not flags
        if kind in (1, 2) and plain:
            self.say(side, f"read {fd} {want}")
        elif kind in (3, 4):
            shape, want = self.shape()
            if plain and (ready or must_not_wait) and want:
                self.say(side, f"readv {fd} {shape}")
            elif want:
                self.say(side, f"recvmsg {fd} {shape}{words}")
            else:
                return
            flags = [] if plain else flags
        elif kind == 5:
            self.say(side, f"recvfrom {fd} {want}{words}")
        else:
            self.say(side, f"recv {fd} {want}{words}")
        if "peek" not in flags:
            side.unread -= min(want, side.unread)

    def ask(self, side):
        fd = self.name(side)
        self.say(side, self.rng.choice((
            f"inq {fd}", f"poll 0 {fd}:in,out,rdhup", f"poll 0 {fd}:in", f"select 0 {fd}:rw", f"poll 0 {fd}:none",
            f"ppoll 0 - {fd}:in,rdnorm", f"getsockopt {fd} SO_ERROR", f"getpeername {fd}", f"getsockname {fd}",
            f"getfl {fd}", f"outq {fd} drained", f"tcp_state {fd}", f"pselect 0 - {fd}:r")))

    def watch(self, side):
        if not side.epolls or (len(side.epolls) < 3 and self.rng.random() < 0.3):
            name = self.fresh("e")
            self.say(side, f"epoll_create {name}")
            events = self.rng.choice(("in", "in,et", "in,out", "in,out,et", "in,rdhup", "in,oneshot", "out,et"))
            self.say(side, f"epoll_add {name} {side.names[0]} {events}")
            side.epolls.append(name)
        elif self.rng.random() < 0.4:
            events = self.rng.choice(("in", "in,et", "out", "in,out,et", "in,rdhup,et", "none", "in,oneshot"))
            self.say(side, f"epoll_mod {self.rng.choice(side.epolls)} {side.names[0]} {events}")
        self.say(side, f"epoll_wait {self.rng.choice(side.epolls)} 0")

    def flags(self, side):
        kind = self.rng.randrange(4)
        if kind == 0:
            side.nonblock = not side.nonblock
            self.say(side, f"nonblock {self.name(side)} {'on' if side.nonblock else 'off'}")
        elif kind == 1:
            side.timeout = not side.timeout
            self.say(side, f"setsockopt {self.name(side)} SO_RCVTIMEO {3 if side.timeout else 0}")
        elif kind == 2 and len(side.names) < 4:
            new = self.fresh("d")
            self.say(side, f"{self.rng.choice(('dup', 'dupfd'))} {self.name(side)} {new}")
            side.names.append(new)
        elif kind == 3 and len(side.names) > 1:
            # Never the first: sets name it.
            self.say(side, f"close {side.names.pop()}")

    def end(self, pair, side):
        if side.ended or self.rng.random() < 0.7:
            return
        side.ended = True
        self.say(side, f"shutdown {self.name(side)} wr")
        self.say(side, f"send {self.name(side)} 5 nosignal")

    def close(self, pair):
        """Both ends, in either order, with or without bytes unread."""
        first, second = self.rng.sample((pair.a, pair.b), 2)
        reset = first.unread > 0
        if self.rng.random() < 0.2:
            self.say(first, f"setsockopt {first.names[0]} SO_LINGER 1 0")
            reset = True
        for name in first.names:
            self.say(first, f"close {name}")
        fd = second.names[0]
        self.say(second, f"poll 0 {fd}:in,out,rdhup")
        for _ in range(2):
            self.say(second, f"recv {fd} {self.rng.choice((10, 100000))} dontwait")
        if reset and self.rng.random() < 0.5:
            self.say(second, f"getsockopt {fd} SO_ERROR")
        for _ in range(self.rng.randrange(3)):
            self.say(second, f"send {fd} 10 nosignal")
            self.say(second, f"recv {fd} 100000 dontwait")
        for name in second.names:
            self.say(second, f"close {name}")
        self.pairs.remove(pair)

    def script(self, steps):
        self.open_pair()
        while len(self.lines) < steps:
            if not self.pairs or (len(self.pairs) < 3 and self.rng.random() < 0.02):
                self.open_pair()
            pair = self.rng.choice(self.pairs)
            side = self.rng.choice((pair.a, pair.b))
            dice = self.rng.random()
            if dice < 0.34:
                if not side.ended:
                    self.send(side)
            elif dice < 0.68:
                self.receive(side)
            elif dice < 0.80:
                self.ask(side)
            elif dice < 0.90:
                self.watch(side)
            elif dice < 0.96:
                self.flags(side)
            elif dice < 0.985:
                self.end(pair, side)
            else:
                self.close(pair)
        for pair in list(self.pairs):
            self.close(pair)
        return "\n".join(self.lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(Generator(int(sys.argv[1])).script(int(sys.argv[2]) if len(sys.argv) > 2 else 120))
