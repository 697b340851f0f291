# SPDX-License-Identifier: MIT
"""Has everything that the kernel's TCP was given arrived? Asked of the kernel from outside, through NETLINK_SOCK_DIAG.

Loopback hands a segment over at once, unless the machine is busy: then ksoftirqd does it a little later, and a step
that asks what has arrived would see the one or the other. So the director waits between steps until each connection
is quiet: what one end has sent, the other has received, ends and resets included.
"""
import collections
import errno
import os
import pathlib
import socket
import struct
import time

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, NLMSG_ERROR = 4, 20, 1, 2
INET_DIAG_INFO = 2
ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, LISTEN, CLOSING = range(1, 12)
SENT_FIN = (FIN_WAIT1, FIN_WAIT2, LAST_ACK, CLOSING)
# In struct tcp_info; part of the kernel's user interface.
BYTES_RECEIVED, NOTSENT, BYTES_SENT, BYTES_RETRANS = 128, 144, 200, 208
GIVE_UP_SECONDS, SAME_LOOKS = 3, 4
DEVICE_SECONDS, DEVICE_LOOK_SECONDS, LOST_LOOKS = 10, 0.004, 60

# A directory of a device's counters, of whom every packet goes to itself.
COUNTERS = os.environ.get("CONFORM_COUNTERS")

End = collections.namedtuple("End", "state sent received notsent")


class Watch:
    def __init__(self, family, patient=False, lonely=False):
        self.patient = patient  # waits for the acknowledgement of an end, too, which may be delayed for 40 ms
        self.lonely = lonely    # an end may vanish without a word to the other
        self.address = (socket.AF_INET6, socket.inet_pton(socket.AF_INET6, os.environ.get("CONFORM_ADDRESS6", "::1"))) if family == "6" else \
            (socket.AF_INET, socket.inet_aton(os.environ.get("CONFORM_ADDRESS", "127.0.0.1")) + bytes(12))
        self.netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
        self.netlink.settimeout(2)
        self.pairs = []
        self.lost = 0

    def close(self):
        self.netlink.close()

    def add(self, own_port, peer_port):
        if own_port and peer_port and (own_port, peer_port) not in self.pairs:
            self.pairs.append((own_port, peer_port))

    def _look(self, own_port, peer_port):
        """One end of a connection; None when the kernel knows no such socket (any more)."""
        family, address = self.address
        request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0, 0xffffffff)
        request += struct.pack("!HH", own_port, peer_port) + address * 2 + struct.pack("=III", 0, 0xffffffff, 0xffffffff)
        self.netlink.send(struct.pack("=IHHII", 16 + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0) + request)
        answer = self.netlink.recv(8192)
        length, kind = struct.unpack_from("=IH", answer)
        if kind == NLMSG_ERROR:
            error = -struct.unpack_from("=i", answer, 16)[0]
            if error != errno.ENOENT:
                raise OSError(error, "sock_diag")
            return None
        state = answer[17]
        at = 16 + 72
        while at + 4 <= length:
            size, kind = struct.unpack_from("=HH", answer, at)
            if kind == INET_DIAG_INFO and size >= 4 + BYTES_RETRANS + 8:
                info = at + 4
                sent, = struct.unpack_from("=Q", answer, info + BYTES_SENT)
                again, = struct.unpack_from("=Q", answer, info + BYTES_RETRANS)
                received, = struct.unpack_from("=Q", answer, info + BYTES_RECEIVED)
                notsent, = struct.unpack_from("=I", answer, info + NOTSENT)
                return End(state, sent - again, received, notsent)
            at += (size + 3) & ~3
        return End(state, None, None, 0)

    def _arrived(self, end, peer):
        """What `end` has sent is with `peer`."""
        if end.state in (SYN_SENT, SYN_RECV) or (self.patient and end.state == FIN_WAIT1 and not end.notsent):
            return False
        if peer is None and self.lonely:
            return True
        if peer is None or peer.state == TIME_WAIT:
            # Its end or its reset has to have reached us.
            return end.state in (TIME_WAIT, CLOSE, LISTEN) or (peer is not None and end.state != ESTABLISHED)
        if end.sent is None or peer.received is None:
            return True
        return peer.received == end.sent + (1 if end.state in SENT_FIN and not end.notsent else 0)

    def _wait_for_device(self):
        """Over a real device bytes on rings are under way, too: quiet is when each packet that it sent to itself has come, its answers included.
        Those that come when their queue has gone are not counted: so many are lost if nothing else happens for long."""
        stop = time.monotonic() + DEVICE_SECONDS
        last, same = None, 0
        while time.monotonic() < stop:
            sent, came = (int(pathlib.Path(COUNTERS, name).read_text(encoding="ascii")) for name in ("sent_pkts", "rcvd_pkts"))
            same = same + 1 if (sent, came) == last else 0
            last = sent, came
            if same >= LOST_LOOKS:
                self.lost = sent - came
            if same >= SAME_LOOKS and sent - came == self.lost:
                return
            time.sleep(DEVICE_LOOK_SECONDS)

    def wait(self):
        self._wait_for_kernel()
        if COUNTERS:
            self._wait_for_device()

    def _wait_for_kernel(self):
        stop = time.monotonic() + GIVE_UP_SECONDS
        for pair in list(self.pairs):
            last, same = None, 0
            while time.monotonic() < stop:
                ends = self._look(*pair), self._look(*reversed(pair))
                live = [end for end in ends if end is not None and end.state != TIME_WAIT]
                if not live:
                    self.pairs.remove(pair)
                    break
                arrived = all(self._arrived(end, ends[1] if end is ends[0] else ends[0]) for end in live)
                same = same + 1 if ends == last else 0
                # Unsent bytes are quiet when they wait for the peer's window, that is when nothing moves.
                if arrived and (same >= SAME_LOOKS or not any(end.notsent for end in live)):
                    break
                last = ends
                time.sleep(0)
