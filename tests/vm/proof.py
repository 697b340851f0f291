# SPDX-License-Identifier: MIT
"""By which road the bytes of programs under Ringway went. Nothing here depends on how fast anything was: a lane that is to leave
TCP is waited for while the program goes on, and what is compared afterwards are counts."""
import json
import re

import traffic
from guest import check

WORK_COUNTS = ('wr', 'doorbells', 'cqes')  # work requests, how often the device was told, completions
MOVED = re.compile(r'connection \d+: (tx|rx) lane left TCP')
BACK = re.compile(r'connection \d+: (tx|rx) lane is back on TCP')


def _until_said(words, what, lanes):
    for program, direction, count in lanes:
        def there():
            log, ended = program.log(), not program.running()
            have = words.findall(log).count(direction)
            check(have >= count or not ended, f'{program}: ended, and {have} of {count} {direction} lanes had {what}: {log}')
            return have >= count
        program.guest.until(there, f'{count} {direction} lanes of {program}, which have {what}')


def until_moved(*lanes):
    """Wait until what is named has left TCP: (program, 'tx' or 'rx', how many lanes). For traffic that goes on for as long as it
    takes: a one-way stream has to meet a moment at which both ends run, and on a busy emulated machine that is a matter of luck."""
    _until_said(MOVED, 'left TCP', lanes)


def until_back(*lanes):
    """The same for those that have come back to TCP."""
    _until_said(BACK, 'come back', lanes)


def counted(*programs):
    """The sums over what these programs and their children have counted under Ringway."""
    total = {'connections': 0, 'shm': 0, 'verbs': 0, 'reasons': {}}
    total.update({f'{road}_{way}': 0 for road in ('ring', 'tcp') for way in ('tx', 'rx')})
    total.update({name: 0 for name in WORK_COUNTS})
    for program in programs:
        for row in program.summary():
            total['connections'] += row['connections']
            for road, way in (('ring', 'tx'), ('ring', 'rx'), ('tcp', 'tx'), ('tcp', 'rx')):
                total[f'{road}_{way}'] += row[f'{road}_{way}_bytes']
            for road in ('shm', 'verbs'):
                total[road] += row['switched'][road]
            for name in WORK_COUNTS:
                total[name] += row.get(name, 0)
            for reason, count in row['reasons'].items():
                total['reasons'][reason] = total['reasons'].get(reason, 0) + count
    total['ring'], total['tcp'] = (total[road + '_tx'] + total[road + '_rx'] for road in ('ring', 'tcp'))
    check(total['connections'] > 0 and total['ring'] + total['tcp'] > 0, f'{programs[0]}: nothing was counted: {total}')
    return total


def prove(programs, road, least=1, connections=1):
    """At least LEAST bytes and so many CONNECTIONS of each went by this road, "shm" or "verbs", and by no other."""
    totals = {str(program): counted(program) for program in programs}
    for total in totals.values():
        check(total[road] >= connections and total['ring'] >= least, f'not {least} bytes by {road}: {json.dumps(totals, indent=1)}')
        check(total['shm'] + total['verbs'] == total[road], f'not by {road} alone: {json.dumps(totals, indent=1)}')


def prove_same(one, two):
    """Both ends, which have read everything, counted the same bytes on each road."""
    a, b = counted(one), counted(two)
    for road in ('ring', 'tcp'):
        check(a[road + '_tx'] == b[road + '_rx'] and a[road + '_rx'] == b[road + '_tx'], f'{road}: {one}: {a}, {two}: {b}')


def prove_tcp(program, reason):
    """No byte of it went by another road, and it says why (of short connections only that they were short)."""
    total = counted(program)
    check(total['ring'] == 0 and total['shm'] + total['verbs'] == 0, f'{program}: a ring was used: {total}')
    check(reason in total['reasons'] and not set(total['reasons']) - {reason, 'not-busy'}, f'{program}: the reason is not "{reason}": {total}')


def carry(road, program, server, client, six=False, settings=None, **more):
    """A program of traffic.py under Ringway at both ends, until what has to leave TCP has done so, by this road."""
    ends = program(*(traffic.ringway(guest, guest.address6 if six else None, **(settings or {})) for guest in (server, client)), watch=until_moved, **more)
    prove(ends[:1] if program is traffic.redis else ends, road)
    if program in (traffic.netcat, traffic.ncat, traffic.socat):
        prove_same(*ends)
    return ends
