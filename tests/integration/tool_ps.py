# SPDX-License-Identifier: MIT
"""ringway ps: a live segment is shown as it is; a dead process, a stranger's segment and a corrupt one are not shown."""
import json
import os
import subprocess
import sys

import harness as h

NAME = 'red"is\\-ser?'  # the holder's, in which 0xff is no character
TOOL, HOLDER = os.environ['TESTS_TOOL'], os.environ['RINGWAY_HOLDER']


class Holder:
    """A stats_holder of this kind, running."""

    def __init__(self, kind):
        self.kind = kind
        self.child = subprocess.Popen([HOLDER, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        h.programs.track(self.child)
        h.check(self.child.stdout.readline() == b'ready\n', f'{kind}: the holder did not start')

    def stop(self):
        self.child.stdin.close()
        self.child.wait(h.PATIENCE)
        self.child.stdout.close()


def ps(*words):
    done = subprocess.run([TOOL, 'ps', *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=h.PATIENCE,
                          check=False)
    h.check(done.returncode == 0 and not done.stderr, f'ps {words}: {done.returncode} {done.stderr}')
    return done.stdout


def rows_of(*holders):
    pids = [holder.child.pid for holder in holders]
    return [row for row in json.loads(ps('--json')) if row['pid'] in pids]


good = Holder('good')
(row,) = rows_of(good)
h.check(row['program'] == NAME, f'the name: {row["program"]!r}')
first = {'fd': 9, 'local': '127.0.0.1:6379', 'peer': '127.0.0.1:40000', 'tx': 'shm', 'rx': 'shm', 'reason': '',
         'tcp_tx_bytes': 1000, 'tcp_rx_bytes': 2000, 'ring_tx_bytes': 5000000000, 'ring_rx_bytes': 7, 'switches': 2, 'retreats': 0,
         'wr': 3, 'doorbells': 2, 'cqes': 4}
second = {**first, 'fd': 11, 'local': '[::1]:6379', 'peer': '[::ffff:127.0.0.1]:40003', 'rx': 'tcp', 'reason': 'peer-silent',
          'tcp_tx_bytes': 1003}
quiet = {**first, 'fd': 12, 'local': '0.0.0.0:6379', 'peer': '0.0.0.0:40004', 'tx': 'tcp', 'rx': 'tcp', 'reason': 'not-busy',
         **dict.fromkeys(('tcp_tx_bytes', 'tcp_rx_bytes', 'ring_tx_bytes', 'ring_rx_bytes', 'switches', 'wr', 'doorbells', 'cqes'), 0)}
h.check(row['connections'] == [first, second, quiet], f'the connections: {row["connections"]}')
table = ps()
for text in ('PID', str(good.child.pid), '127.0.0.1:40000', '[::1]:6379', 'peer-silent: ', 'not-busy: ', '100.0%'):
    h.check(text in table, f'"{text}" is not in the table: {table}')

empty = Holder('empty')
h.check(rows_of(empty) == [{'pid': empty.child.pid, 'program': NAME, 'connections': []}], 'a segment without connections')
h.check(len(rows_of(good, empty)) == 2, 'two processes')

# Whatever is wrong is left out, and what is right beside it is still shown.
for kind in ('unsealed', 'short', 'noise', 'slots', 'stranger', 'orphan'):
    wrong = Holder(kind)
    everything = json.loads(ps('--json'))
    h.check(not [r for r in everything if r['pid'] == wrong.child.pid], f'{kind} was believed: {everything}')
    h.check(len([r for r in everything if r['pid'] in (good.child.pid, empty.child.pid)]) == 2, f'{kind} hides the others')
    h.check(kind != 'orphan' or len([r for r in everything if r['program'] == NAME]) == 2,
            f'a child was shown with the segment of its parent: {everything}')
    wrong.stop()

# Nonsense in a slot is bounded: whatever is shown has roads, reasons and addresses that exist.
garbage = Holder('garbage')
(row,) = rows_of(garbage)
h.check(row['connections'][0]['reason'] == 'unknown', f'the reason of a connection on TCP: {row}')
for c in row['connections']:
    h.check(c['tx'] in ('tcp', 'shm', 'verbs') and c['rx'] in ('tcp', 'shm', 'verbs'), f'a road: {c}')
ps()
garbage.stop()

good.stop()
h.check(not rows_of(good), 'a process that has ended is shown')
empty.stop()
# Others may run programs under Ringway at the same time.
table = ps()
h.check('ringway run CMD' in table or 'PID' in table, f'neither processes nor a word about what to do: {table}')
sys.exit(0)
