# SPDX-License-Identifier: MIT
"""Two guests under Ringway, and one end of a stream is killed. Its peer ends by itself, has read nothing but what was sent, and is told the end of a
file only where TCP tells one. An end that is to be struck in a certain state is kept there: the other one is stopped."""
import re
import signal
import sys

import proof
import traffic
from guest import check

GUESTS, LIMIT = 2, 150
BOTH = 'client', 'server'


class Victim:
    """A stream, of which WHO is going to be killed."""

    def __init__(self, one, two, who):
        self.running = traffic.Stream(traffic.ringway(one, after=0, log='debug'), traffic.ringway(two, after=0, log='debug'))
        self.caller, self.listener = self.running.caller, self.running.listener
        self.killed, self.other = (self.caller, self.listener) if who == 'client' else (self.listener, self.caller)
        self.running.until_connected()

    def until_logged(self, program, words):
        program.guest.until(lambda: re.search(words, program.log(), re.I) or not program.running(), f'{program} to say "{words}"')
        check(program.running(), f'{program}: ended with {program.status}: {program.output()}')

    def until_idle(self, program):
        """It sleeps, and nothing moves."""
        seen = []

        def idle():
            state = program.guest.read(f'/proc/{program.pid}/stat').rsplit(b')', 1)[1].split()[0]
            seen.append((state, self.running.feed.laps()))
            return seen[-4:] == [(b'S', seen[-1][1])] * 4
        program.guest.until(idle, f'{program} to sleep')

    @staticmethod
    def stop(program):
        program.signal(signal.SIGSTOP)

    def strike(self):
        self.killed.kill(everything=True)
        self.other.signal(signal.SIGCONT)
        told = self.running.heard(self.other)
        whole = self.running.arrived() == self.running.sent()
        check(told or whole or 'rx lane left TCP' not in self.other.log(), f'{self.other}: an end of file, although its peer was killed')


def cm_ids(guest):
    return guest.run(['rdma', 'resource', 'show', 'cm_id'])


def test_connected(one, two):
    for who in BOTH:
        Victim(one, two, who).strike()


def test_offered(one, two):
    """The client offers, and its server does not know yet that it is to dial."""
    for who in BOTH:
        v = Victim(one, two, who)
        v.stop(v.listener)
        two.until(lambda: 'LISTEN' in cm_ids(two), 'the client to offer')
        v.strike()


def test_dialled(one, two):
    """The server has dialled, and waits for its answer."""
    for who in BOTH:
        v = Victim(one, two, who)
        two.until(lambda: 'LISTEN' in cm_ids(two) or 'linked' in v.caller.log(), 'the client to offer')
        v.stop(v.caller)
        one.until(lambda: re.search('state (CONNECT|ADDR|ROUTE)', cm_ids(one)) or 'linked' in v.listener.log() or not v.listener.running(), 'the server to dial')
        v.strike()


def test_linked(one, two):
    for who in BOTH:
        v = Victim(one, two, who)
        v.until_logged(v.killed, ': linked')
        v.strike()


def test_announced(one, two):
    """The sender has announced where it leaves TCP, and is not answered."""
    for who in BOTH:
        v = Victim(one, two, who)
        v.until_logged(v.listener, ': linked')
        v.stop(v.listener)
        v.until_logged(v.caller, r'tx: \S+ to (ANNOUNCED|FRAMING|RING)')
        v.strike()


def moved(one, two, who):
    v = Victim(one, two, who)
    proof.until_moved(*v.running.lanes)
    return v


def test_a_busy_stream(one, two):
    for who in BOTH:
        moved(one, two, who).strike()


def test_a_full_ring(one, two):
    """The sender sleeps, since its receiver takes nothing."""
    for who in BOTH:
        v = moved(one, two, who)
        v.stop(v.listener)
        v.until_idle(v.caller)
        v.strike()


def test_an_empty_ring(one, two):
    """The receiver sleeps, since its sender sends nothing."""
    for who in BOTH:
        v = moved(one, two, who)
        v.stop(v.caller)
        v.until_idle(v.listener)
        v.strike()


def test_an_end_that_is_waited_for(one, two):
    """The sender has said all and closes behind a full ring, while its receiver takes nothing."""
    for who in BOTH:
        v = moved(one, two, who)
        v.stop(v.listener)
        v.running.feed.stop()
        v.until_idle(v.caller)
        v.strike()


ASKS = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as server:
    while True:
        server.sendall(b"question")
        if not server.recv(8):
            sys.exit("the end")
"""


def test_who_waits_for_an_answer(one, two):
    """A client that asks one thing after another hears that its server is gone."""
    server = one.start(['socat', f'TCP4-LISTEN:6900,bind={one.address},fork', 'EXEC:cat'], ringway={'after': 0})
    one.until_listening(6900, server)
    client = two.start([sys.executable, '-c', ASKS, one.address, '6900'], ringway={'after': 0})
    proof.until_moved((client, 'tx', 1), (client, 'rx', 1))
    server.kill(everything=True)
    client.wait(1)
