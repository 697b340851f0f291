# SPDX-License-Identifier: MIT
"""Who has no business at an offer, and comes all the same: says nothing, hangs up, or talks rubbish."""
import re
import socket
import threading
import time


class Strangers:
    """Comes to the offer of the connection to `port`: `few` times before the constructor returns, or, if that is 0, until stop()."""

    def __init__(self, port, few, end):
        self.nr, self.silent, self.over, self.thread = 0, [], threading.Event(), None
        self.name = self.find(port, end)
        while few and self.nr < few:
            if time.monotonic() > end:
                raise TimeoutError(f"the offer takes nobody after {self.nr}")
            self.come()
        if not few:
            self.come()
            self.thread = threading.Thread(target=self.flood, daemon=True)
            self.thread.start()

    @staticmethod
    def find(port, end):
        offer = re.compile(rf"@(ringway-\d+/\w+/\w+:\w+/\w+:{port:04x})$", re.M)
        while time.monotonic() < end:
            with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
                found = offer.search(table.read())
            if found:
                return b"\0" + found[1].encode()
        raise TimeoutError("no offer")

    def come(self):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.setblocking(False)
        try:
            one.connect(self.name)
            self.nr += 1
            if self.nr % 3 == 0:
                self.silent.append(one)
                return
            if self.nr % 3 == 1:
                one.send(b"?" * 144)
        except OSError:
            pass  # more than the offer's queue holds, or withdrawn, or hung up on
        one.close()

    def flood(self):
        while not self.over.is_set():
            self.come()
            while len(self.silent) > 8:
                self.silent.pop(0).close()

    def stop(self):
        self.over.set()
        if self.thread:
            self.thread.join()
        for one in self.silent:
            one.close()
