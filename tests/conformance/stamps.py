# SPDX-License-Identifier: MIT
"""Packets get a time of arrival only a moment after somebody in the whole machine has first asked for one, and as long as somebody does."""

import socket

SO_TIMESTAMP = 29


def hold():
    """Asks, and comes back when packets have one; the sockets that ask are to be kept."""
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    listener.close()
    receiver.settimeout(10)
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
    for _ in range(1000000):
        sender.sendall(b"x")
        if receiver.recvmsg(1, 128)[1]:
            return sender, receiver
    raise SystemExit("stamps: the kernel gives packets no time")
