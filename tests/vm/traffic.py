# SPDX-License-Identifier: MIT
"""Unmodified programs that move data between two ends, and the proof that it arrived whole. An end is a guest and how
programs are started there; both ends may be the same guest. For tests of any road: plain TCP, Ringway, another preload.

Each function answers (server program, client program), both ended, or raises Failed. The sizes are such that most is sent after
both ends have found each other: the kernel's buffers alone take some megabytes from a sender before a slow server does anything.
"""
import contextlib
import itertools
import json
import signal

from guest import WORK, Failed, check

_ports = itertools.count(7001)


class End:
    """HOW are arguments of Guest.start(): ringway={...} for Ringway, env={...} for something else, nothing for plain TCP."""

    def __init__(self, guest, **how):
        self.guest, self.how = guest, how

    def start(self, command, **more):
        return self.guest.start(command, **{**more, **self.how})


def ringway(guest, **settings):
    return End(guest, ringway=settings)


def plain(guest):
    return End(guest)


def make_data(guest, name, kib):
    """A file of random bytes in the guest; its path and its checksum."""
    path = f'{WORK}/{name}'
    return path, checksum(guest, path, f'head -c {kib << 10} /dev/urandom >{path};')


def checksum(guest, path, before=''):
    return guest.run(f'{before} sha256sum <{path}').split()[0]


def _same(what, expected, got):
    check(expected == got, f'{what}: the bytes that arrived are not the bytes that were sent')


def _listening(end, port, program):
    """Wait until the server is ready. Another preload may listen with something else than TCP, or never."""
    if 'env' not in end.how:
        end.guest.until_listening(port, program)
        return
    with contextlib.suppress(Failed), end.guest.clock.within(8):
        end.guest.until_rdma_listening(port, program)


def netcat(server, client, kib=8192, back_kib=512):
    """A file each way at once."""
    port = next(_ports)
    data, sent = make_data(client.guest, 'data', kib)
    back, answered = make_data(server.guest, 'back', back_kib)
    listener = server.start(['nc', '-l', '-N', server.guest.address, str(port)], stdin=back, stdout=f'{WORK}/arrived')
    _listening(server, port, listener)
    caller = client.start(['nc', '-N', server.guest.address, str(port)], stdin=data, stdout=f'{WORK}/answer')
    caller.wait()
    listener.wait()
    _same('to the server', sent, checksum(server.guest, f'{WORK}/arrived'))
    _same('to the client', answered, checksum(client.guest, f'{WORK}/answer'))
    return listener, caller


def socat(server, client, kib=8192):
    """An echo by a server that forks and runs cat."""
    port = next(_ports)
    data, sent = make_data(client.guest, 'echo', kib)
    listener = server.start(['socat', f'TCP4-LISTEN:{port},bind={server.guest.address},fork', 'EXEC:cat'])
    _listening(server, port, listener)
    caller = client.start(['socat', '-t', '100', 'STDIO', f'TCP4:{server.guest.address}:{port}'], stdin=data,
                          stdout=f'{WORK}/echoed')
    caller.wait()
    _same('echo', sent, checksum(client.guest, f'{WORK}/echoed'))
    return listener.kill(signal.SIGTERM), caller


def redis(server, client, kib=32, requests=5000):
    """A value there and back; then redis-benchmark: a few requests one by one, more of them pipelined on many connections."""
    port = next(_ports)
    host = ['-h', server.guest.address, '-p', str(port)]
    data, sent = make_data(client.guest, 'value', kib)
    listener = server.start(['redis-server', '--bind', server.guest.address, '--port', str(port), '--save', '', '--protected-mode',
                             'no', '--daemonize', 'no', '--dir', WORK])
    _listening(server, port, listener)
    said = client.start(['redis-cli', *host, '-x', 'SET', 'value'], stdin=data).wait().output()
    check(said.strip() == 'OK', f'SET said {said[:200]}')
    client.start(['redis-cli', *host, '--raw', 'GET', 'value'], stdout=f'{WORK}/got').wait()
    _same('GET', sent, checksum(client.guest, f'{WORK}/got', f'truncate -s -1 {WORK}/got;'))
    for shape in (['-c', '1', '-n', '100'], ['-c', '10', '-P', '8', '-n', str(requests)]):
        caller = client.start(['redis-benchmark', *host, '-q', '-t', 'set,get', *shape]).wait()
        check('GET: ' in caller.output(), f'{caller}: {caller.output()}')
    return listener.kill(signal.SIGTERM), caller


def iperf3(server, client, mib=16, words=()):
    """It checks no bytes, but counts them."""
    port = next(_ports)
    listener = server.start(['iperf3', '-s', '-1', '-B', server.guest.address, '-p', str(port)])
    _listening(server, port, listener)
    caller = client.start(['iperf3', '-c', server.guest.address, '-p', str(port), '-n', f'{mib}M', '--json', *words]).wait()
    listener.wait(None)
    result = json.loads(caller.output())
    check('error' not in result, f'iperf3: {result.get("error")}')
    got = result['end']['sum_received']['bytes']
    check(got >= mib << 19, f'iperf3: {got} bytes were received')
    return listener, caller


def sockperf(server, client, seconds=2):
    """Ping-pong."""
    port = next(_ports)
    where = ['--tcp', '-i', server.guest.address, '-p', str(port)]
    listener = server.start(['sockperf', 'sr', *where])
    _listening(server, port, listener)
    caller = client.start(['sockperf', 'pp', *where, '-t', str(seconds)]).wait()
    check('Valid Duration' in caller.output() or 'Summary: Latency' in caller.output(), f'{caller}: {caller.output()[-800:]}')
    return listener.kill(signal.SIGINT), caller


def counted(*programs):
    """The sums over what these programs and their children have counted under Ringway."""
    total = {'connections': 0, 'ring': 0, 'tcp': 0, 'shm': 0, 'verbs': 0, 'reasons': {}}
    for program in programs:
        for row in program.summary():
            total['connections'] += row['connections']
            total['ring'] += row['ring_tx_bytes'] + row['ring_rx_bytes']
            total['tcp'] += row['tcp_tx_bytes'] + row['tcp_rx_bytes']
            for road in ('shm', 'verbs'):
                total[road] += row['switched'][road]
            for reason, count in row['reasons'].items():
                total['reasons'][reason] = total['reasons'].get(reason, 0) + count
    check(total['connections'] > 0 and total['ring'] + total['tcp'] > 0, f'{programs[0]}: nothing was counted: {total}')
    return total


def prove(programs, road, share=0.5):
    """At least SHARE of the bytes of each went by this road, "shm" or "verbs"."""
    totals = {str(program): counted(program) for program in programs}
    for total in totals.values():
        part = total['ring'] / (total['ring'] + total['tcp'])
        check(total[road] > 0 and part >= share, f'{part:.1%} of the bytes by {road}: {json.dumps(totals, indent=1)}')


def prove_tcp(program, reason):
    """No byte of it went by another road, and it says why (of short connections only that they were short)."""
    total = counted(program)
    check(total['ring'] == 0 and total['shm'] + total['verbs'] == 0, f'{program}: a ring was used: {total}')
    check(reason in total['reasons'] and not set(total['reasons']) - {reason, 'not-busy'}, f'{program}: the reason is not "{reason}": {total}')
