# SPDX-License-Identifier: MIT
"""
The soak: starts the workers of a run, throws stops, kills, signals, removals of a device and `ringway off` and `on` at them, watches that every
connection moves on, and judges at the end. One line for each seed; 0 when all were good. See README.md.
"""
import argparse
import contextlib
import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, '..', 'support'), os.path.join(HERE, '..', '..', 'tools', 'lib')]
import board as b  # noqa: E402
import programs  # noqa: E402
from ringway_support import Failed, check, clean_env, die_with_parent, preload_env, read_summary  # noqa: E402

FINAL = (b.DONE, b.ABORTED, b.CUT, b.KEPT, b.KILLED)
CUT_BY = (0, errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)     # 0: the end of the stream; the last one: by a shutdown behind a reset
FRAME_BEGINS = ord('R')
LOOK = 0.02             # seconds between two looks of the driver
LEFT_ALONE = 16         # ends


def event_names():
    with open(os.path.join(HERE, 'events.def'), encoding='utf-8') as f:
        return [line[6:].split(',')[0] for line in f if line.startswith('EVENT(')]


class Run:
    def __init__(self, options, seed):
        self.options, self.seed, self.rng = options, seed, random.Random(seed)
        self.directory = programs.own_directory('ringway-soak.')
        self.summary = os.path.join(self.directory, 'summary')
        self.board = b.Board(os.path.join(self.directory, 'board'), seed, options.conns, options.workers, options.threaded, options.at_once, options.longest,
                             sum(1 << i for i, name in enumerate(event_names()) if name in options.without))
        self.workers = [self.start(i) for i in range(options.workers)]
        self.killed = {}        # (conn, side): bytes that it had sent at least
        self.kills = [0] * options.workers
        self.thrown = {'stop': 0, 'signal': 0, 'off': 0, 'kill': 0, 'device': 0}
        self.stopped = []       # (when it goes on, pid)
        self.off = []           # (when it is let out again, pid)
        self.device_going = None  # `rdma link delete`, which waits for every process that has it open, stopped ones as well
        self.device_gone = None  # when it comes back
        self.open = {(c, s) for c in range(options.conns) for s in (0, 1)}
        self.moved = {}         # conn: (what it looked like, since when)

    # ---- processes ----

    def start(self, index):
        o = self.options
        env = clean_env() if o.plain else preload_env(o.shim, after=o.after, ring=o.ring, idle=o.idle, max=o.max, summary=self.summary, transports=o.transports,
                                                            patience=o.rdma_patience)
        if o.keep and not o.plain:
            env.update(RINGWAY_LOG='debug', RINGWAY_LOG_FILE=os.path.join(self.directory, 'log'))
        env['SOAK_LIMIT'] = str(int(o.limit + 60))
        with open(os.path.join(self.directory, f'worker-{index}.err'), 'ab') as errors:
            child = subprocess.Popen([o.soak, str(index)], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=env, cwd=self.directory,
                                     start_new_session=True, preexec_fn=die_with_parent)
        programs.track(child)
        return child

    def tell(self, index, word):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s, contextlib.suppress(OSError):
            s.settimeout(5)
            s.sendto(word, os.path.join(self.directory, f'inbox-{index}'))

    def wait_ready(self, index, times):
        deadline = time.monotonic() + 60
        while self.board.worker(index).ready < times:
            check(self.workers[index].poll() is None and time.monotonic() < deadline, f'worker {index} does not begin')
            time.sleep(0.005)

    # ---- what is thrown from outside ----

    def pids(self):
        """A worker, or whoever has some connection."""
        return [child.pid for child in self.workers] + sorted({row.pid for key in self.open for row in [self.board.row(*key)] if row.state == b.OPEN})

    def signal(self, pid, number):
        """Never to a number that has become somebody else's."""
        with contextlib.suppress(OSError):
            with open(f'/proc/{pid}/comm', encoding='ascii') as f:
                ours = f.read().startswith('soak')
            if ours and os.getsid(pid) in [child.pid for child in self.workers]:
                os.kill(pid, number)
                return True
        return False

    def throw(self):
        now, o = time.monotonic(), self.options
        for when, pid in [s for s in self.stopped if s[0] <= now]:
            self.signal(pid, signal.SIGCONT)
            self.stopped.remove((when, pid))
        for when, pid in [s for s in self.off if s[0] <= now]:
            self.ask('on', pid)
            self.off.remove((when, pid))
        self.device_goes_on(now)
        # What is thrown wakes sleepers. The last ones are left alone: whoever waits in vain then does so for good.
        what = self.rng.random() if len(self.open) > LEFT_ALONE else 1
        if what < 0.10:
            pid = self.rng.choice(self.pids())
            if self.signal(pid, signal.SIGSTOP):
                self.stopped.append((now + self.rng.random() * 0.15, pid))
                self.thrown['stop'] += 1
        elif what < 0.25:
            self.thrown['signal'] += self.signal(self.rng.choice(self.pids()), signal.SIGUSR1)
        elif what < 0.30 and not o.plain:
            pid = self.rng.choice(self.pids())
            self.ask('off', '--wait', '0', pid)
            self.off.append((now + self.rng.random() * 0.3, pid))
            self.thrown['off'] += 1
        elif what < 0.303 and self.thrown['kill'] < o.kills:
            self.kill(self.rng.randrange(o.workers))
        if what < 1 and self.device_is_due():
            self.device_goes()

    # The device is soft-RoCE on a netdev; that it is gone makes every link end.

    def device_is_due(self):
        """Evenly over the connections, so that a run has its removals however fast it is."""
        o, done = self.options, self.thrown['device']
        return (o.device and done < o.removals and not self.device_gone and not self.device_going and
                len(self.open) * (o.removals + 1) <= 2 * o.conns * (o.removals - done))

    def device_goes(self):
        self.device_going = self.rdma('delete', self.options.device[0])
        self.thrown['device'] += 1

    def device_goes_on(self, now):
        if self.device_going and self.device_going.poll() is not None:
            self.rdma_done(self.device_going)
            self.device_going, self.device_gone = None, now + 0.5 + self.rng.random()
        if self.device_gone and self.device_gone <= now:
            self.device_comes()

    def device_comes(self):
        self.rdma_done(self.rdma('add', self.options.device[0], 'type', 'rxe', 'netdev', self.options.device[1]))
        self.device_gone = None

    @staticmethod
    def rdma(*words):
        return subprocess.Popen(['rdma', 'link', *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @staticmethod
    def rdma_done(child):
        said = child.communicate(timeout=120)[0]
        check(child.returncode == 0, f'{" ".join(child.args)}: {said}')

    def ask(self, *words):
        subprocess.run([self.options.tool, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env=clean_env(), timeout=60, check=False)

    def kill(self, index):
        """A worker, and with it its children, and what was on its way to it."""
        ready, child = self.board.worker(index).ready, self.workers[index]
        child.kill()
        child.wait()
        self.thrown['kill'] += 1
        self.kills[index] += 1
        for key in self.open:
            row = self.board.row(*key)
            if row.state == b.OPEN and row.worker == index:
                self.killed[key] = row.tx
                self.board.set_state(*key, b.KILLED)
        self.workers[index] = self.start(index)
        self.wait_ready(index, ready + 1)

    # ---- watching ----

    def look(self):
        for key in list(self.open):
            row = self.board.row(*key)
            check(row.state != b.FAILED, f'{self.board.say(*key)}\n  its peer: {self.board.say(key[0], 1 - key[1])}')
            if row.state in FINAL:
                self.open.discard(key)
        # An end that never came: its peer was gone before it was accepted.
        for conn, side in [key for key in self.open if key[1] == 1 and (key[0], 0) not in self.open]:
            if self.board.row(conn, side).state == b.NONE and self.board.row(conn, 0).state != b.DONE:
                self.open.discard((conn, side))
        for index, child in enumerate(self.workers):
            check(child.poll() is None, f'worker {index} ended by itself: {child.poll()}')
            status = self.board.worker(index).child_status
            check(not status, f'a child of worker {index} ended with wait status {status:#x}')

    def watch(self):
        """Does every connection that has begun move on?"""
        now = time.monotonic()
        for conn in {key[0] for key in self.open}:
            rows = [self.board.row(conn, side)[:9] for side in (0, 1)]
            if rows[0][0] == b.NONE or self.moved.get(conn, (None,))[0] != rows:
                self.moved[conn] = rows, now
            elif now - self.moved[conn][1] > self.options.patience:
                self.stands_still(conn)

    @staticmethod
    def is_of(pid, session):
        try:
            return os.getsid(pid) == session
        except OSError:
            return False

    @staticmethod
    def show(pids):
        """Where each of their threads is."""
        for pid in pids:
            with contextlib.suppress(OSError):
                for tid in os.listdir(f'/proc/{pid}/task'):
                    for name in ('wchan', 'syscall', 'stack'):
                        with open(f'/proc/{pid}/task/{tid}/{name}', encoding='ascii', errors='replace') as f:
                            print(f'  {pid}/{tid} {name}: ' + f.read().strip().replace('\n', '\n    '))

    def stands_still(self, conn):
        print(f'connection {conn} stands still:', flush=True)
        for side in (0, 1):
            print('  ' + self.board.say(conn, side))
        pids = {self.board.row(conn, side).pid for side in (0, 1)}
        self.show(pids)
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            said = subprocess.run([self.options.tool, 'ps', '--json'], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=clean_env(), timeout=60,
                                  check=False).stdout
            ports = {str(self.board.row(conn, 0).port)}
            for process in json.loads(said):
                for c in process['connections'] if process['pid'] in pids else ():
                    if {c['local'].rpartition(':')[2], c['peer'].rpartition(':')[2]} & ports:
                        print(f'  {process["pid"]}: {json.dumps(c)}')
        if self.options.hold:
            print(f'  held: {self.directory}', flush=True)
            signal.pause()
        raise Failed(f'connection {conn} stands still')

    # ---- judging ----

    def could_be_a_frame(self, conn, rows):
        """Between hosts, where the link dies behind an announcement: the one reset that nobody makes (ringbuf/VERBS.md, "The switch over two roads")."""
        return self.options.transports == 'verbs' and any(
            row.state == b.CUT and row.ended_by in (errno.ECONNRESET, errno.EPIPE) and b.byte_at(self.seed, conn, side, row.tx) == FRAME_BEGINS
            for side, row in enumerate(rows))

    def judge(self, conn):
        rows = [self.board.row(conn, side) for side in (0, 1)]
        states = {row.state for row in rows}
        both = f'{self.board.say(conn, 0)}\n  {self.board.say(conn, 1)}'
        excused = states & {b.ABORTED, b.KILLED, b.KEPT} or any(self.kills[row.worker] for row in rows if row.state in (b.NONE, b.CUT) and b.NONE in states)
        check(states == {b.DONE} or excused or self.could_be_a_frame(conn, rows), f'cut short, and nobody did it: {both}')
        for row, other in (rows, rows[::-1]):
            # Who is cut short by somebody else hears what a kernel says of a peer that is gone, and nothing else.
            check(row.state != b.CUT or row.ended_by in CUT_BY or (other.state == b.NONE and row.ended_by == errno.ECONNREFUSED),
                  f'cut short by what no peer does: {both}')
            sent = self.killed.get((conn, rows.index(other)), other.tx)
            # A clean end says that all has come. The one exception: RETREAT.md, section 5, "the peer is dead".
            if row.state in (b.DONE, b.CUT) and not row.ended_by and b.NONE not in states and not (other.state == b.KILLED and row.went):
                check(row.rx >= sent, f'a clean end behind {row.rx} of {sent} bytes: {both}')
        return 'kept' if b.KEPT in states else 'whole' if states == {b.DONE} else 'cut'

    def ends(self):
        for pid in [pid for _, pid in self.stopped]:
            self.signal(pid, signal.SIGCONT)
        if self.device_gone:
            self.device_comes()
        for index in range(self.options.workers):
            self.tell(index, b'o')
        for index, child in enumerate(self.workers):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(60)
            if child.poll() is None:
                self.show([pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if self.is_of(pid, child.pid)])
            check(child.poll() == 0, f'worker {index} does not end, or not well: {child.poll()}')
            w = self.board.worker(index)
            check(w.maps_after == 0 and w.fds_after <= w.fds_before + self.options.own_fds,
                  f'worker {index} began with {w.fds_before} descriptors and ends with {w.fds_after}, and {w.maps_after} segments are mapped:\n' +
                  self.open_at_end(index))
        if self.device_going:
            self.rdma_done(self.device_going)
            self.device_comes()

    def open_at_end(self, index):
        with open(os.path.join(self.directory, f'open-{index}'), encoding='utf-8') as f:
            return f.read()

    def run(self):
        o, started = self.options, time.monotonic()
        for i in range(o.workers):
            self.wait_ready(i, 1)
        self.board.go()
        for i in range(o.workers):
            self.tell(i, b'g')
        looked = 0
        while self.open:
            self.look()
            if time.monotonic() > looked + 1:
                self.watch()
                looked = time.monotonic()
                check(looked < started + o.limit, f'not done after {o.limit} s, open are:\n' + '\n'.join(self.board.say(*key) for key in sorted(self.open)[:20]))
            if self.open:
                self.throw()
            time.sleep(LOOK)
        verdicts = [self.judge(conn) for conn in range(o.conns)]
        self.ends()
        said = self.said()
        check(not said, 'something was said:\n' + said)
        self.report(verdicts, time.monotonic() - started)

    def report(self, verdicts, seconds):
        names = event_names()
        events = {name: count for name, count in zip(names, self.board.thrown()) if count}
        counts = {word: verdicts.count(word) for word in ('whole', 'cut', 'kept')}
        lines = read_summary(self.summary)
        total = {word: sum(line[word] for line in lines) for word in ('switches', 'retreats', 'ring_rx_bytes', 'tcp_rx_bytes')} if lines else {}
        reasons = {}
        for line in lines:
            for reason, count in line['reasons'].items():
                reasons[reason] = reasons.get(reason, 0) + count
        print(f'seed {self.seed}: {seconds:.1f} s, {counts}, {self.thrown}, {events}, {total}, {reasons}', flush=True)
        if not self.options.plain:
            check(total['switches'] >= self.options.conns // 2 and total['retreats'] >= self.options.conns // 20,
                  f'too little happened to say anything: {total}')
        check(not self.options.device or self.thrown['device'], 'the device was never taken away')

    def said(self):
        """What the processes have written."""
        text = ''
        for name in sorted(os.listdir(self.directory)):
            if name.endswith('.err'):
                with open(os.path.join(self.directory, name), encoding='utf-8', errors='replace') as f:
                    one = f.read()
                text += f'--- {name}\n{one[:6000]}\n' if one else ''
        return text

    def close(self):
        programs.end_all()
        subprocess.run(['rm', '-rf', self.directory], check=False)


def prepare_sanitizer(program):
    """A sanitized build, started by hand: its runtime has to come before the preload, or it takes what follows a vfork for an error."""
    said = subprocess.run(['ldd', program], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout
    runtimes = [line.split()[2] for line in said.splitlines() if 'libasan' in line and '=>' in line]
    if runtimes:
        os.environ.setdefault('TESTS_ASAN', runtimes[0])
        os.environ.setdefault('ASAN_OPTIONS', 'verify_asan_link_order=0:detect_stack_use_after_return=0:abort_on_error=1:detect_leaks=0')


def seeds_of(text):
    first, _, last = text.partition('-')
    return range(int(first), int(last or first) + 1)


def main():
    parser = argparse.ArgumentParser()
    for name in ('soak', 'shim', 'tool'):
        parser.add_argument(f'--{name}', required=True, type=os.path.abspath)
    parser.add_argument('--seeds', default='1', type=seeds_of, help='N or N-M')
    parser.add_argument('--conns', type=int, default=300)
    parser.add_argument('--longest', type=int, default=1 << 20, help='bytes of one direction')
    parser.add_argument('--workers', type=int, default=5)
    parser.add_argument('--threaded', type=int, default=2, help='of them')
    parser.add_argument('--at-once', type=int, default=5, help='connections that each worker has begun')
    parser.add_argument('--kills', type=int, default=3)
    parser.add_argument('--after', default='4')
    parser.add_argument('--ring')
    parser.add_argument('--idle')
    parser.add_argument('--max', help='RINGWAY_MAX')
    parser.add_argument('--transports')
    parser.add_argument('--rdma-patience', type=int, help='RINGWAY_PATIENCE')
    parser.add_argument('--without', default=(), type=lambda text: text.split(','), help='events of events.def, by commas')
    parser.add_argument('--device', type=lambda text: text.split(':'), help='NAME:NETDEV, soft-RoCE that is taken away and comes back')
    parser.add_argument('--removals', type=int, default=5)
    parser.add_argument('--plain', action='store_true', help='without Ringway: what is thrown is then proved to be what TCP takes')
    parser.add_argument('--patience', type=float, default=60, help='seconds that a connection may stand still')
    parser.add_argument('--limit', type=float, default=300, help='seconds for one seed')
    parser.add_argument('--own-fds', type=int, default=16, help='descriptors that a process keeps for all its connections')
    parser.add_argument('--hold', action='store_true', help='keeps a run in which a connection stands still, to be looked at')
    parser.add_argument('--keep', metavar='DIRECTORY', help='logs all, and copies what a failed run has written there')
    options = parser.parse_args()
    prepare_sanitizer(options.soak)
    for seed in options.seeds:
        run = Run(options, seed)
        try:
            run.run()
        except Failed as failed:
            print(f'FAILED seed {seed}: {failed}\n{run.said()}', flush=True)
            if options.keep:
                shutil.copytree(run.directory, os.path.join(options.keep, f'seed-{seed}'), ignore=shutil.ignore_patterns('inbox-*'), dirs_exist_ok=True)
            return 1
        finally:
            run.close()
    return 0


sys.exit(main())
