# SPDX-License-Identifier: MIT
"""What a random script keeps in mind of its connections, so that it asks only for what does not hang on the moment."""


class Holder:
    """A process that has the descriptors of one side: its actors (a main thread and the others), and what they call them."""

    def __init__(self, actors, names, sets):
        self.actors, self.names, self.sets = actors, names, sets

    def child(self, actor):
        """Sets that are edge-triggered stay with the parent: each process has its own idea of what was told."""
        return Holder([actor], list(self.names), [name for name in self.sets if name[0] != "t"])


class Side:
    """One end of a connection: what all who hold it share."""

    def __init__(self, actors, name, file):
        self.holders = [Holder(actors, [name], [])]
        self.file = file       # to send from
        self.unread = 0        # bytes that lie here for us
        self.ended = False     # we have said that no more comes
        self.deaf = False      # shut down for reading
        self.nonblock = False
        self.timeout = False   # for receiving
        self.peer = None

    def ready(self):
        return self.unread > 0 or self.peer.ended or self.deaf

    def sleeps(self):
        """A receive now would wait until something comes."""
        return not (self.ready() or self.nonblock or self.timeout)

    def sets(self):
        return {name for holder in self.holders for name in holder.sets}


class Pair:
    def __init__(self, name, actors_a, actors_b, files):
        self.a, self.b = Side(actors_a, name, files[0]), Side(actors_b, name, files[1])
        self.a.peer, self.b.peer = self.b, self.a

    def sides(self):
        return self.a, self.b

    def quiet(self):
        """Nothing is under way, and neither end refuses to wait: fit for steps that move much."""
        return not any(side.unread or side.ended or side.deaf or side.nonblock or side.timeout for side in self.sides())
