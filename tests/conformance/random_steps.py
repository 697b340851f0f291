# SPDX-License-Identifier: MIT
"""random_steps.py SEED [STEPS]: prints a random script that is legal and deterministic; the same seed, the same script.

It keeps a model of each connection (random_model.py): bytes on their way in both directions, who has ended what, which
processes hold it. So it never asks for a step that would wait for ever, and never for one whose result hangs on the moment.
The seed also chooses what kind of script it is: with both ends in one thread nobody can wait; only processes can fork.
"""
import random
import sys

from random_model import Pair

KINDS = ("one", "threads", "procs")
# The first line of a script of that size, and the bytes that may be under way: so few that no send ever waits.
SIZES = {"usual": ("", 12000), "small": ("small_buffers", 6000), "tiny": ("tiny", 2500)}
LOOPS = ("edge", "edge_short", "edge_need", "level_need", "level_short", "oneshot", "oneshot_edge", "again")
FILE_BYTES, MAX_CHILDREN, MAX_THREADS = 20000, 3, 3


class Generator:
    """forks=False: as between hosts, where what a child has of a connection is reset."""

    def __init__(self, seed, forks=True):
        self.forks = forks
        self.rng = random.Random(seed)
        self.kind = KINDS[seed % 3]
        self.size_name = list(SIZES)[seed // 3 % 3]
        directive, self.room = SIZES[self.size_name]
        layouts = {"one": "procs threads one", "threads": "procs threads", "procs": "procs"}[self.kind]
        self.lines = [f"# random script, seed {seed}", f"layouts {layouts}"] + [directive] * bool(directive)
        self.pairs, self.count, self.children, self.threads = [], 0, [], 0
        # Of the two first processes, and of who came later: the actors by process, and the files by the side they are on.
        self.actors = {"A": ["A"], "B": ["B"]}
        for actor in "AB":
            self.lines.append(f"{actor} file f {FILE_BYTES}")
            self.lines.append(f"{actor} signal_call PIPE {self.rng.choice(('ignore', 'count'))}")
        self.nulls = 0

    # -- words

    def fresh(self, letter):
        self.count += 1
        return f"{letter}{self.count}"

    def chance(self, part):
        return self.rng.random() < part

    def pick(self, side):
        """Somebody who acts for the side: the actor, the process that it belongs to, a name of the descriptor."""
        holder = self.rng.choice(side.holders)
        return self.rng.choice(holder.actors), holder, self.rng.choice(holder.names)

    def say(self, actor, text):
        self.lines.append(f"{actor} {text}")

    def size(self):
        return self.rng.choice((0, 1, 2, 7, 8, 63, 64, 65, 100, 511, 1000, 1460, 4096, self.rng.randrange(1, 6000)))

    def shape(self):
        parts = [self.rng.choice((0, 1, 5, 17, 100, 700)) for _ in range(self.rng.randrange(1, 7))]
        return ",".join(map(str, parts)), sum(parts)

    def some(self, *flags):
        return "".join(f" {flag}" for flag in flags if self.chance(0.2))

    # -- single steps

    def open_pair(self):
        name = self.fresh("c")
        self.lines.append(f"pair {name}")
        self.pairs.append(Pair(name, self.actors["A"], self.actors["B"], ("f", "f")))

    def send(self, side):
        if side.ended:
            return
        (actor, _, fd), room = self.pick(side), self.room - side.peer.unread
        length, (shape, total) = min(self.size(), room), self.shape()
        kind = self.rng.choice(("write", "send", "send", "send", "sendto", "sendmsg", "writev", "pwritev2", "sendmmsg", "sendfile", "more"))
        if kind in ("sendmsg", "writev", "pwritev2"):
            if total > room:
                return
            length = total
            self.say(actor, f"{kind} {fd} {shape}" + (" nosignal" + self.some("dontwait", "eor") if kind == "sendmsg" else ""))
        elif kind == "sendmmsg":
            shape = self.rng.choice(("10,20", "1", "100,0,50"))
            length = 3 * sum(map(int, shape.split(",")))
            if length > room:
                return
            self.say(actor, f"sendmmsg {fd} 3 {shape} nosignal" + self.some("dontwait"))
        elif kind == "sendfile":
            self.say(actor, f"sendfile {fd} {side.file} {self.rng.choice((0, 1, 4095, FILE_BYTES - 6000))} {length}")
        elif kind == "more":
            # What is held back comes with the next send at the latest: nobody looks before.
            if length + 10 > room:
                return
            self.say(actor, f"send {fd} {length} nosignal more")
            self.say(actor, f"send {fd} 10 nosignal")
            length += 10
        elif kind == "write":
            self.say(actor, f"write {fd} {length}")
        else:
            self.say(actor, f"{kind} {fd} {length} nosignal" + self.some("dontwait"))
        side.peer.unread += length

    def receive(self, side):
        actor, _, fd = self.pick(side)
        want, (shape, total), flags = self.size(), self.shape(), []
        kind = self.rng.choice(("recv", "recv", "recv", "read", "recvfrom", "readv", "preadv2", "recvmsg", "recvmmsg"))
        count = 1
        if kind in ("readv", "preadv2", "recvmsg", "recvmmsg"):
            want = total
        if not want and side.sleeps():
            return  # waits as well
        if kind in ("read", "readv", "preadv2"):
            if side.sleeps():
                return
        else:
            flags = [flag for flag in ("peek", "trunc", "dontwait") if self.chance(0.15)]
            if kind in ("recvfrom", "recvmmsg") and "trunc" in flags:
                flags.remove("trunc")
            if self.chance(0.15):
                flags.append("waitall")
            waits = side.sleeps() or ("waitall" in flags and want > side.unread and
                                      not (side.peer.ended or side.deaf or side.nonblock or side.timeout))
            if waits and "dontwait" not in flags:
                flags.append("dontwait")
        if kind == "recvmmsg":
            count, flags = 3, [flag for flag in flags if flag != "peek"]
            flags += [] if "dontwait" in flags else [self.rng.choice(("dontwait", "waitforone"))]
            if "waitall" in flags:
                flags.remove("waitall")
        words = "".join(f" {flag}" for flag in flags)
        what = {"readv": shape, "preadv2": shape, "recvmsg": shape, "recvmmsg": f"3 {shape}"}.get(kind, want)
        self.say(actor, f"{kind} {fd} {what}{words}")
        if "peek" not in flags:
            side.unread -= min(want * count, side.unread)

    def ask(self, side):
        actor, _, fd = self.pick(side)
        if self.chance(0.2):
            other = self.rng.choice(self.pairs)
            other = other.a if side in (pair.a for pair in self.pairs) else other.b
            holders = [holder for holder in other.holders if actor in holder.actors]
            if holders:
                self.say(actor, f"poll 0 {fd}:in,out,rdhup {self.rng.choice(holders[0].names)}:in,out")
                return
        if side.ready() and self.chance(0.2):
            self.say(actor, self.rng.choice((f"poll 1000 {fd}:in", f"select 1000 {fd}:r", f"ppoll -1 - {fd}:in", f"poll -1 {fd}:in,rdhup")))
            return
        if side.sleeps() and self.chance(0.2):
            self.say(actor, self.rng.choice((f"poll 2 {fd}:in", f"select 2 {fd}:r", f"pselect 2 - {fd}:r")))
            return
        self.say(actor, self.rng.choice((
            f"inq {fd}", f"inq {fd}", f"poll 0 {fd}:in,out,rdhup", f"poll 0 {fd}:in", f"select 0 {fd}:rw", f"poll 0 {fd}:none",
            f"ppoll 0 - {fd}:in,rdnorm", f"getsockopt {fd} SO_ERROR", f"getpeername {fd}", f"getsockname {fd}",
            # What resets a connection counts as not drained for ever.
            f"getfl {fd}", f"inq {fd}" if side.peer.deaf and side.peer.ended else f"outq {fd} drained", f"tcp_state {fd}", f"pselect 0 - {fd}:r", f"fstat {fd}")))

    def watch(self, side):
        """Sets whose members are edge-triggered at some time have names with a t."""
        actor, holder, _ = self.pick(side)
        if not holder.sets or (len(holder.sets) < 3 and self.chance(0.3)):
            edge = self.chance(0.5)
            name = self.fresh("t" if edge else "e")
            self.say(actor, f"epoll_create {name}")
            self.say(actor, f"epoll_add {name} {holder.names[0]} {self.events(edge)}")
            holder.sets.append(name)
        name = self.rng.choice(holder.sets)
        if self.chance(0.4):
            self.say(actor, f"epoll_mod {name} {holder.names[0]} {self.events(name[0] == 't')}")
        self.say(actor, self.rng.choice((f"epoll_wait {name} 0", f"epoll_wait {name} 0", f"epoll_pwait {name} 0 -", f"epoll_pwait2 {name} 0")))

    def events(self, edge):
        level = ("in", "out", "in,out", "in,rdhup", "none", "in,oneshot", "in,out,oneshot", "rdhup")
        return self.rng.choice(("in,et", "in,out,et", "out,et", "in,rdhup,et", "in,et,oneshot") if edge else level)

    def settings(self, side):
        actor, holder, fd = self.pick(side)
        kind = self.rng.choice(("nonblock", "rcvtimeo", "sndtimeo", "dup", "dup", "dup2", "close"))
        if kind == "nonblock":
            side.nonblock = not side.nonblock
            self.say(actor, f"nonblock {fd} {'on' if side.nonblock else 'off'}{self.rng.choice(('', ' ioctl'))}")
        elif kind == "rcvtimeo":
            side.timeout = not side.timeout
            self.say(actor, f"setsockopt {fd} SO_RCVTIMEO {3 if side.timeout else 0}")
        elif kind == "sndtimeo":
            self.say(actor, f"setsockopt {fd} SO_SNDTIMEO {self.rng.choice((0, 3, 5000))}")
        elif kind == "dup" and len(holder.names) < 4:
            new = self.fresh("d")
            self.say(actor, f"{self.rng.choice(('dup', 'dupfd'))} {fd} {new}")
            holder.names.append(new)
        elif kind == "dup2":
            self.dup2(actor, holder, fd)
        elif kind == "close" and len(holder.names) > 1:
            # The first only where no set names it.
            self.say(actor, f"close {holder.names.pop(0 if not side.sets() and self.chance(0.3) else -1)}")

    def dup2(self, actor, holder, fd):
        """Over a number that is something else: a dup of this or of another connection, or a device."""
        if len(holder.names) > 3:
            return
        rivals = [other for pair in self.pairs for side in pair.sides() for other in side.holders
                  if other.actors == holder.actors and len(other.names) > 1 and not side.sets()]
        if rivals and self.chance(0.7):
            rival = self.rng.choice(rivals)
            over = rival.names.pop()
            if over == fd:
                rival.names.append(over)
                return
        else:
            over = self.fresh("n")
            self.say(actor, f"null {over}")
        self.say(actor, f"{self.rng.choice(('dup2', 'dup3'))} {fd} {over}")
        holder.names.append(over)

    def end(self, side):
        if side.ended or self.chance(0.6):
            return
        actor, _, fd = self.pick(side)
        if not side.deaf and self.chance(0.2):
            side.deaf = True
            self.say(actor, f"shutdown {fd} rd")
            return
        side.ended = True
        self.say(actor, f"shutdown {fd} wr")
        self.say(actor, f"send {fd} 5 nosignal")

    # -- several steps

    def sleep(self, pair):
        """One waits, in whatever call, until the other does something."""
        side = self.rng.choice(pair.sides())
        peer = side.peer
        if self.kind == "one" or not side.sleeps() or peer.ended:
            return
        holder = self.rng.choice(side.holders)
        sleeper, fd = self.rng.choice(holder.actors), self.rng.choice(holder.names)
        others = [actor for other in side.holders for actor in other.actors if actor != sleeper]
        other_actor, _, other_fd = self.pick(peer)
        wants = self.rng.choice((1, 10, 300))
        takes = {"recv": f"recv {fd} {wants}", "read": f"read {fd} {wants}", "readv": f"readv {fd} {wants},5",
                 "recvmsg": f"recvmsg {fd} {wants}", "peek": f"recv {fd} {wants} peek", "waitall": f"recv {fd} 30 waitall",
                 "poll": f"poll -1 {fd}:in,rdhup", "ppoll": f"ppoll 5000 - {fd}:in", "select": f"select -1 {fd}:r", "epoll": ""}
        how = self.rng.choice(list(takes))
        if how == "epoll":
            name = self.fresh("e")
            self.say(sleeper, f"epoll_create {name}")
            self.say(sleeper, f"epoll_add {name} {fd} {self.rng.choice(('in,rdhup', 'in'))}")
            takes[how] = f"epoll_wait {name} {self.rng.choice((-1, 5000))}"
        self.say(sleeper, f"start {takes[how]}")
        if others and not side.ended and self.chance(0.4):
            # The other direction goes on meanwhile.
            actor = self.rng.choice(others)
            names = next(other.names for other in side.holders if actor in other.actors)
            if peer.unread + 40 <= self.room:
                self.say(actor, f"send {self.rng.choice(names)} 40 nosignal")
                peer.unread += 40
                self.say(sleeper, "still")
        first = 0
        if how == "waitall":
            self.say(other_actor, f"send {other_fd} 12 nosignal")
            self.say(sleeper, "still")
            first = 12
        comes = self.rng.choice((20, 20, 20, 500, "end"))
        if comes == "end":
            self.say(other_actor, f"shutdown {other_fd} wr")
            peer.ended = True
            side.unread += first
        else:
            self.say(other_actor, f"send {other_fd} {comes} nosignal")
            side.unread += first + comes
        self.say(sleeper, "finish")
        taken = {"recv": wants, "read": wants, "recvmsg": wants, "readv": wants + 5, "waitall": 30}.get(how, 0)
        side.unread -= min(taken, side.unread)
        if how == "epoll":
            self.say(sleeper, f"close {name}")

    def bulk(self, pair):
        """Much at once, in one direction or in both."""
        if self.kind == "one" or not pair.quiet():
            return
        (one, _, fd), (two, _, to) = map(self.pick, self.rng.sample(pair.sides(), 2))
        total, seed = self.rng.choice((3000, 50000, 200000)), self.rng.randrange(1, 1000)
        chunk = self.rng.choice((40, 700, 9000, 40000)) if total < 100000 else self.rng.choice((9000, 40000, 100000))
        how = self.rng.choice(("stream", "duplex", "loop"))
        if how == "stream":
            self.say(one, f"begin stream_out {fd} {total} {chunk} {seed}")
            self.say(two, f"stream_in {to} {total} {chunk} {seed + 1}")
        elif how == "duplex":
            self.say(one, f"begin duplex {fd} {total} {chunk} {seed}")
            self.say(two, f"duplex {to} {total} {chunk} {seed + 1}")
        else:
            self.say(one, f"begin loop {fd} {total} {chunk} {self.rng.choice(LOOPS)}")
            self.say(two, f"loop {to} {total} {chunk} {self.rng.choice(LOOPS)}")
        self.say(one, "finish")
        self.settle(pair)

    def settle(self, pair):
        """What an edge-triggered set tells after much has passed hangs on the moment: it is asked anew."""
        for side in pair.sides():
            for holder in side.holders:
                for name in holder.sets:
                    if name[0] == "t":
                        self.say(holder.actors[0], f"epoll_mod {name} {holder.names[0]} {self.events(True)}")
                        self.say(holder.actors[0], f"epoll_wait {name} 0")

    def fill(self, pair):
        """A socket without room, and the room that comes back."""
        if self.size_name != "small" or not pair.quiet():
            return
        side = self.rng.choice(pair.sides())
        (actor, holder, fd), (reader, _, to) = self.pick(side), self.pick(side.peer)
        self.say(actor, f"setsockopt {fd} SO_SNDTIMEO {self.rng.choice((0, 3))}")
        timed = self.lines[-1].endswith(" 3")
        self.say(actor, f"fill {fd}")
        self.say(actor, f"send {fd} 10 nosignal{'' if timed else ' dontwait'}")
        self.say(actor, self.rng.choice((f"poll 0 {fd}:in,out", f"select 0 {fd}:rw", f"write {fd} 0", f"poll 2 {fd}:out")))
        sleeps = self.kind != "one" and not timed and self.chance(0.6)
        how = self.rng.choice((f"send {fd} 10 nosignal", f"poll -1 {fd}:out", f"writev {fd} 4,6"))
        if sleeps:
            self.say(actor, f"start {how}")
        # The name that was filled is the actor's own, whichever thread of it did.
        self.say(reader, f"drain {to} @{actor}")
        if sleeps:
            self.say(actor, "finish")
            side.peer.unread += 0 if how.startswith("poll") else 10
        self.say(actor, f"poll 1000 {fd}:out")
        self.settle(pair)

    def fork(self):
        """A process gets a child, which goes on beside it with all that it has; or one of the children ends."""
        if self.kind != "procs":
            return
        if self.children and self.chance(0.4):
            parent, child = self.children.pop()
            self.say(child, f"{self.rng.choice(('exit', '_exit'))} 0")
            self.say(parent, f"wait {child}")
            for pair in self.pairs:
                for side in pair.sides():
                    side.holders = [holder for holder in side.holders if child not in holder.actors]
            return
        if not self.forks or self.count > 60 or sum(line.split()[1:2] == ["fork"] for line in self.lines) >= MAX_CHILDREN:
            return
        parent = self.rng.choice(("A", "B"))
        child = self.fresh("X")
        self.say(parent, f"fork {child}")
        self.children.append((parent, child))
        for pair in self.pairs:
            for side in pair.sides():
                side.holders += [holder.child(child) for holder in side.holders if parent in holder.actors]

    def thread(self):
        if self.kind == "one" or self.threads >= MAX_THREADS:
            return
        self.threads += 1
        parent, name = self.rng.choice(("A", "B")), self.fresh("T")
        self.say(parent, f"new_thread {name}")
        self.actors[parent].append(name)

    def close(self, pair):
        """Both ends, in either order, with or without bytes unread; all who hold it close it."""
        first, second = self.rng.sample(pair.sides(), 2)
        reset = first.unread > 0
        actor, _, name = self.pick(first)
        if self.chance(0.2):
            self.say(actor, f"setsockopt {name} SO_LINGER 1 0")
            reset = True
        elif self.chance(0.15):
            self.say(actor, f"shutdown {name} rdwr")
            first.ended = first.deaf = True
        sleeper = None
        if self.kind != "one" and second.sleeps() and not first.ended and self.chance(0.3):
            sleeper, _, fd = self.pick(second)
            self.say(sleeper, f"start {self.rng.choice((f'recv {fd} 10', f'poll -1 {fd}:in,rdhup', f'recv {fd} 10 waitall'))}")
        self.close_side(first)
        if sleeper:
            self.say(sleeper, "finish")
        actor, _, fd = self.pick(second)
        self.say(actor, f"poll 0 {fd}:in,out,rdhup")
        for _ in range(2):
            self.say(actor, f"recv {fd} {self.rng.choice((10, 100000))} dontwait")
        if reset and self.chance(0.5):
            self.say(actor, f"getsockopt {fd} SO_ERROR")
        for _ in range(self.rng.randrange(3)):
            self.say(actor, f"{self.rng.choice(('send {} 10 nosignal', 'write {} 10', 'writev {} 5,5')).format(fd)}")
            self.say(actor, f"recv {fd} 100000 dontwait")
        self.close_side(second)
        self.pairs.remove(pair)

    def close_side(self, side):
        holders = self.rng.sample(side.holders, len(side.holders))
        for holder in holders:
            actor = self.rng.choice(holder.actors)
            closes = [f"close {name}" for name in self.rng.sample(holder.names, len(holder.names))]
            # A set still tells of what this process has closed while others hold it: nothing to rely on.
            waits = [f"epoll_wait {name} 0" for name in holder.sets] if len(holders) == 1 else []
            for text in closes + waits + [f"close {name}" for name in holder.sets]:
                self.say(actor, text)

    # -- the whole

    def script(self, steps):
        self.open_pair()
        while len(self.lines) < steps:
            if not self.pairs or (len(self.pairs) < 3 and self.chance(0.02)):
                self.open_pair()
            pair = self.rng.choice(self.pairs)
            side = self.rng.choice(pair.sides())
            step, = self.rng.choices(("send", "receive", "ask", "watch", "settings", "end", "sleep", "bulk", "fill", "fork", "thread", "close"),
                                     (30, 32, 12, 12, 8, 2.5, 5, 2, 2, 1.5, 1, 1.5))
            if step in ("sleep", "bulk", "fill", "close"):
                getattr(self, step)(pair)
            elif step in ("fork", "thread"):
                getattr(self, step)()
            else:
                getattr(self, step)(side)
        for pair in list(self.pairs):
            self.close(pair)
        return "\n".join(self.lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not all(word.isdigit() for word in sys.argv[1:]):
        sys.exit("usage: " + __doc__.split(":", 1)[0])
    sys.stdout.write(Generator(int(sys.argv[1])).script(int(sys.argv[2]) if len(sys.argv) > 2 else 120))
