# SPDX-License-Identifier: MIT
"""ktls.py serve|call ADDRESS PORT GO: one connection whose ends talk in plain until there is a file GO where the caller is, and then
let the kernel encrypt it (TCP_ULP "tls"), with keys that both know. An ordinary program, which knows nothing of Ringway.

It prints how often TCP_ULP was refused before it was set, and the digests of what was received."""
import errno
import hashlib
import os
import socket
import struct
import sys

TCP_ULP, SOL_TLS, TLS_TX, TLS_RX = 31, 282, 1, 2
SET_TYPE, GET_TYPE, ALERT = 1, 2, 21
TLS_1_2, AES_GCM_128 = 0x0303, 51
FILE = '/bin/bash'  # for sendfile
MESSAGES, MESSAGE_BYTES = 40, 20000


def crypto(of_caller):
    """One direction's version, cipher, vector, key, salt and first record."""
    return struct.pack('=HH8s16s4s8s', TLS_1_2, AES_GCM_128, b'\1' * 8, (b'call' if of_caller else b'serv') * 4, b'salt', bytes(8))


def exactly(sock, count):
    parts = []
    while count:
        part = sock.recv(count)
        if not part:
            raise EOFError(f'{count} bytes are missing')
        parts.append(part)
        count -= len(part)
    return b''.join(parts)


def layered(sock):
    """Is the connection the kernel's to encrypt now? A kernel without the layer says ENOENT."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b'tls')
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True


def layer(sock, calls):
    """The caller first, whose peer waits meanwhile for the word that it is done; where it is refused, both go on in plain and it asks again."""
    refused = 0
    if calls:
        while not layered(sock):
            refused += 1
            sock.sendall(b'late')
            exactly(sock, 4)
        sock.sendall(b'mine')
        while exactly(sock, 4) == b'late':
            sock.sendall(b'late')
    else:
        while exactly(sock, 4) == b'late':
            sock.sendall(b'late')
        while not layered(sock):
            refused += 1
            sock.sendall(b'late')
            exactly(sock, 4)
        sock.sendall(b'mine')
    print('refused', refused, flush=True)
    sock.setsockopt(SOL_TLS, TLS_TX, crypto(calls))
    sock.setsockopt(SOL_TLS, TLS_RX, crypto(not calls))
    assert sock.getsockopt(socket.IPPROTO_TCP, TCP_ULP, 16).rstrip(b'\0') == b'tls'


def message(number):
    return hashlib.sha256(b'%d' % number).digest() * (MESSAGE_BYTES // 32)


def encrypted(sock, calls):
    """Messages to and fro, a file each way, and a record of another type than data."""
    whole = hashlib.sha256()
    for number in range(MESSAGES):
        if calls:
            sock.sendall(message(number))
        got = exactly(sock, len(message(number)))
        assert got == message(number), f'message {number}'
        whole.update(got)
        if not calls:
            sock.sendall(got)
    size = os.stat(FILE).st_size
    for sends in (calls, not calls):
        if sends:
            with open(FILE, 'rb') as f:
                sock.sendfile(f)
        else:
            whole.update(exactly(sock, size))
    if calls:
        sock.sendmsg([b'\1\0'], [(SOL_TLS, SET_TYPE, bytes([ALERT]))])
        assert sock.recv(1) == b''
    else:
        said, more, _, _ = sock.recvmsg(100, 100)
        assert (said, more) == (b'\1\0', [(SOL_TLS, GET_TYPE, bytes([ALERT]))]), (said, more)
    return whole.hexdigest()


def connected(calls, address, port):
    if calls:
        return socket.create_connection((address, port))
    listener = socket.create_server((address, port))
    with listener:
        return listener.accept()[0]


def main():
    what, address, port, go = sys.argv[1:]
    calls = what == 'call'
    with connected(calls, address, int(port)) as sock:
        while True:
            if calls:
                sock.sendall(b'stop' if os.path.exists(go) else b'more')
            word = exactly(sock, 4)
            if not calls:
                sock.sendall(word)
            if word == b'stop':
                break
        layer(sock, calls)
        print('digest', encrypted(sock, calls), flush=True)


main()
