# SPDX-License-Identifier: MIT
"""The board: what the processes of a run and its driver have in common (struct board and struct row in soak.h)."""
import collections
import mmap
import os
import struct

HEADER = struct.Struct('=QIIIIQI16II')  # seed, connections, workers, threaded, at once, longest, go, thrown, without
WORKER = struct.Struct('=IiIiiii')
ROW = struct.Struct('=IiiIQQQiIi24s180s')
ROWS_AT, MAX_WORKERS = 4096, 16
NONE, OPEN, DONE, ABORTED, CUT, KEPT, FAILED, _, KILLED = range(9)
STATES = ('not begun', 'open', 'done', 'aborted', 'cut', 'kept', 'FAILED', '', 'killed')
GO_AT = 32
WORD = 2 ** 64 - 1

Row = collections.namedtuple('Row', 'state pid worker went tx rx steps fd port ended_by op error')
Worker = collections.namedtuple('Worker', 'port pid ready fds_before fds_after maps_after child_status')


def text(raw):
    return raw.split(b'\0')[0].decode(errors='replace')


def mix(a, b):
    x = (a * 0x9e3779b97f4a7c15 + b) & WORD
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & WORD
    x = (x ^ x >> 27) * 0x94d049bb133111eb & WORD
    return x ^ x >> 31


def byte_at(seed, conn, sender, pos):
    """The byte of a stream, as bytes.c makes it."""
    x = ((pos // 8 + 1) * 0x9e3779b97f4a7c15 & WORD) ^ mix(seed ^ 0x5eed, (conn << 1) + sender)
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9 & WORD
    return (x ^ x >> 32) >> pos % 8 * 8 & 0xff


class Board:
    def __init__(self, path, seed, conns, workers, threaded, at_once, longest, without):
        self.conns, self.workers = conns, workers
        with open(path, 'wb+') as f:
            f.truncate(ROWS_AT + conns * 2 * ROW.size)
            self.memory = mmap.mmap(f.fileno(), 0)
        HEADER.pack_into(self.memory, 0, seed, conns, workers, threaded, at_once, longest, 0, *[0] * 16, without)

    def go(self):
        struct.pack_into('=I', self.memory, GO_AT, 1)

    def thrown(self):
        return HEADER.unpack_from(self.memory, 0)[7:-1]

    def worker(self, index):
        return Worker(*WORKER.unpack_from(self.memory, HEADER.size + index * WORKER.size))

    def row(self, conn, side):
        fields = list(ROW.unpack_from(self.memory, ROWS_AT + (conn * 2 + side) * ROW.size))
        fields[-2:] = map(text, fields[-2:])
        return Row(*fields)

    def set_state(self, conn, side, state):
        struct.pack_into('=I', self.memory, ROWS_AT + (conn * 2 + side) * ROW.size, state)

    def say(self, conn, side):
        r = self.row(conn, side)
        return (f'{conn}.{"ca"[side]} {STATES[r.state]} by {r.pid} of worker {r.worker}, fd {r.fd}: {r.tx} sent, {r.rx} received, {r.steps} steps, '
                f'handed on {r.went} times, {r.op}, {os.strerror(r.ended_by) if r.ended_by else "-"} {r.error}')
