# SPDX-License-Identifier: MIT
"""Unmodified programs that move data between two ends, and checks that it arrived whole. An end is a guest and how
programs are started there; both ends may be the same guest. For tests of any road: plain TCP, Ringway, another preload.

Each function answers (server program, client program), both ended, or raises Failed. With WATCH, the traffic goes on until WATCH(lanes)
returns: it gets what has to leave TCP, as proof.until_moved() takes it. Without, a fixed amount is sent.
"""
import contextlib
import itertools
import json
import re
import signal

from guest import WORK, Failed, check

_ports = itertools.count(7001)


class End:
    """HOW are arguments of Guest.start(): ringway={...} for Ringway, env={...} for something else, nothing for plain TCP. AT is the
    address at which it is reached, if not its first."""

    def __init__(self, guest, at=None, **how):
        self.guest, self.how, self.address = guest, how, at or guest.address

    def start(self, command, **more):
        env = self.how.get('env')
        if not env or not isinstance(command, str):
            return self.guest.start(command, **{**more, **self.how})
        # Text for bash, which need not be able to live in that environment: only what it becomes is.
        program = self.guest.start(command.replace('exec ', f"exec env {' '.join(f'{k}={v}' for k, v in env.items())} ", 1),
                                   **{**more, **self.how, 'env': None})
        program.preload = env.get('LD_PRELOAD')
        return program


def ringway(guest, at=None, **settings):
    return End(guest, at, ringway=settings)


def limited(guest, user, memlock, **settings):
    """Another user than root, who may lock that much memory."""
    return End(guest, ringway=settings, user=user, memlock=memlock)


def plain(guest):
    return End(guest)


def make_data(guest, name, size):
    """A file of random bytes in the guest; its path and its checksum."""
    path = f'{WORK}/{name}'
    return path, checksum(guest, path, f'head -c {size} /dev/urandom >{path};')


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


class Feed:
    """Bytes for a program's standard input: those of a file, once if nothing is watched, else again and again until stop(). Their
    number is no multiple of a ring's size, so that no two places of the stream that share one in the ring are alike. One that is
    HELD does not end before let_go()."""

    def __init__(self, guest, source, watched, held=False):
        self.guest, self.source, self.place, self.held = guest, source, f'{WORK}/feed', held
        guest.run(f'rm -rf {self.place} && mkdir -m 777 {self.place} && mkfifo -m 666 {self.place}/held' + ('' if watched else f' && touch {self.place}/stop'))

    def into(self, command):
        """Text for bash, which becomes COMMAND with these bytes as its input."""
        hold = '; read <held' if self.held else ''
        return f'exec {command} < <(cd {self.place} && while cat {self.source} && echo >>laps && [ ! -e stop ]; do :; done{hold})'

    def let_go(self):
        self.guest.run(f'echo >{self.place}/held')

    def laps(self):
        return len(self.guest.read(f'{self.place}/laps', b''))

    def until_lap(self, lap, program):
        def there():
            check(program.running(), f'{program}: ended with {program.status}: {program.output()[-1000:]}')
            return self.laps() >= lap
        self.guest.until(there, f'{program} to take its input {lap} times')

    def stop(self):
        self.guest.run(['touch', f'{self.place}/stop'])

    def checksum(self):
        return self.guest.run(f'while read; do cat {self.source}; done <{self.place}/laps | sha256sum').split()[0]


def _netcat(server, client, call, listen, size, back, watch):
    """A stream to the server, and at the same time a file back, which has come before the stream ends: a netcat that listens sends nothing any more when it has heard that end."""
    port = str(next(_ports))
    feed = Feed(client.guest, make_data(client.guest, 'data', size | 1)[0], watch, held=back > 0)
    answer, answered = make_data(server.guest, 'back', back)
    listener = server.start([*listen, server.address, port], stdin=answer, stdout=f'{WORK}/arrived')
    _listening(server, int(port), listener)
    caller = client.start(feed.into(' '.join([*call, server.address, port])), stdout=f'{WORK}/answer')
    if watch:
        watch((caller, 'tx', 1), (listener, 'rx', 1))
        feed.until_lap(feed.laps() + 2, caller)
        feed.stop()
    if back:
        client.guest.until(lambda: len(client.guest.read(f'{WORK}/answer', b'')) >= back or not caller.running(), f'the answer to {caller}')
        if caller.running():
            feed.let_go()
    caller.wait()
    listener.wait()
    _same('to the server', feed.checksum(), checksum(server.guest, f'{WORK}/arrived'))
    _same('to the client', answered, checksum(client.guest, f'{WORK}/answer'))
    return listener, caller


def netcat(server, client, size=1000000, back=300000, watch=None):
    return _netcat(server, client, ['nc', '-N'], ['nc', '-l', '-N'], size, back, watch)


def ncat(server, client, size=1000000, back=0, watch=None):
    return _netcat(server, client, ['ncat', '--send-only'], ['ncat', '--recv-only', '-l'], size, back, watch)


def socat(server, client, size=1000000, watch=None):
    """An echo by a server that forks and runs cat."""
    port = next(_ports)
    feed = Feed(client.guest, make_data(client.guest, 'data', size | 1)[0], watch)
    listener = server.start(['socat', f'TCP4-LISTEN:{port},bind={server.address},fork', 'EXEC:cat'])
    _listening(server, port, listener)
    caller = client.start(feed.into(f'socat -t 1000 STDIO TCP4:{server.address}:{port}'), stdout=f'{WORK}/echoed')
    if watch:
        watch(*((end, way, 1) for end in (caller, listener) for way in ('tx', 'rx')))
        feed.until_lap(feed.laps() + 2, caller)
        feed.stop()
    caller.wait()
    _same('echo', feed.checksum(), checksum(client.guest, f'{WORK}/echoed'))
    return listener.kill(signal.SIGTERM), caller


def redis(server, client, size=30000, requests=1000, watch=None):
    """A value there and back; then redis-benchmark: a few requests one by one, more of them pipelined on many connections."""
    port = next(_ports)
    host = ['-h', server.address, '-p', str(port)]
    data, sent = make_data(client.guest, 'value', size)
    listener = server.start(['redis-server', '--bind', server.address, '--port', str(port), '--save', '', '--protected-mode',
                             'no', '--daemonize', 'no', '--dir', WORK])
    _listening(server, port, listener)
    if watch:
        # It has no way to end well in the middle, so that only the server counts.
        endless = client.start(['redis-benchmark', *host, '-q', '-t', 'set,get', '-c', '4', '-l'])
        watch(*((end, way, 4) for end in (endless, listener) for way in ('tx', 'rx')))
        endless.kill()
    said = client.start(['redis-cli', *host, '-x', 'SET', 'value'], stdin=data).wait().output()
    check(said.strip() == 'OK', f'SET said {said[:200]}')
    client.start(['redis-cli', *host, '--raw', 'GET', 'value'], stdout=f'{WORK}/got').wait()
    _same('GET', sent, checksum(client.guest, f'{WORK}/got', f'truncate -s -1 {WORK}/got;'))
    for shape in (['-c', '1', '-n', '100'], ['-c', '10', '-P', '8', '-n', str(requests)]):
        caller = client.start(['redis-benchmark', *host, '-q', '-t', 'set,get', *shape]).wait()
        check('GET: ' in caller.output(), f'{caller}: {caller.output()}')
    return listener.kill(signal.SIGTERM), caller


def iperf3(server, client, mib=2, words=(), watch=None):
    """It checks no bytes, but counts them. WORDS may have -P N, -R, --bidir."""
    port = next(_ports)
    listener = server.start(['iperf3', '-s', '-1', '-B', server.address, '-p', str(port)])
    _listening(server, port, listener)
    argv = ['iperf3', '-c', server.address, '-p', str(port), *words]
    if watch:
        streams = int(words[words.index('-P') + 1]) if '-P' in words else 1
        caller = client.start([*argv, '-t', '80000'])
        for sender, receiver in ((caller, listener), (listener, caller)) if '--bidir' in words else (
                ((listener, caller),) if '-R' in words else ((caller, listener),)):
            watch((sender, 'tx', streams), (receiver, 'rx', streams))
        caller.kill(signal.SIGINT)
        check('interrupt - the client has terminated' in caller.output(), f'{caller}: {caller.output()[-500:]}')
        return listener.wait(None), caller
    caller = client.start([*argv, '-n', f'{mib}M', '--json']).wait()
    listener.wait(None)
    result = json.loads(caller.output())
    check('error' not in result, f'iperf3: {result.get("error")}')
    got = result['end']['sum_received']['bytes']
    # The client ends the test when it has sent them; what has not been read by then counts for nothing.
    check(got > 0, f'iperf3: {got} bytes were received')
    return listener, caller


def sockperf(server, client, seconds=1, watch=None):
    """Ping-pong."""
    port = next(_ports)
    where = ['--tcp', '-i', server.address, '-p', str(port)]
    listener = server.start(['sockperf', 'sr', *where])
    _listening(server, port, listener)
    # It takes memory for as long as it may go on.
    caller = client.start(['sockperf', 'pp', *where, *(['-t', '3000', '--mps', '1000'] if watch else ['-t', str(seconds)])])
    if watch:
        watch(*((end, way, 1) for end in (caller, listener) for way in ('tx', 'rx')))
        caller.signal(signal.SIGINT)
    caller.wait(None)
    check(re.search(r'Total Run.* ReceivedMessages=[1-9]', caller.output()), f'{caller}: {caller.output()[-800:]}')
    return listener.kill(signal.SIGINT), caller


def rstream(server, client, size, count, iterations, sockets=True):
    """COUNT messages there and as many back, and that again and again. Without SOCKETS over rsockets."""
    port = next(_ports)
    argv = ['rstream', '-p', str(port), '-S', str(size), '-C', str(count), '-I', str(iterations), *(['-T', 's'] if sockets else [])]
    listener = server.start([*argv, '-b', server.address])
    (server.guest.until_listening if sockets else server.guest.until_rdma_listening)(port, listener)
    caller = client.start([*argv, '-s', server.address]).wait()
    return listener.wait(), caller


def microseconds(program):
    """What rstream says of a message, of which there and back makes two."""
    row = program.output().splitlines()[-1].split()
    check(len(row) >= 7, f'{program}: {program.output()}')
    return float(row[-1])


NGINX = '''
daemon off; worker_processes 2; error_log stderr warn; pid {work}/nginx.pid; user root;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; keepalive_requests 1000000000;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
  server {{ listen {address}:{port}; root {work}; }}
}}
'''


def nginx(server, client, size=1000000, requests=100, watch=None):
    """A file by curl, then wrk: small ones, on connections that stay."""
    port = next(_ports)
    _, sent = make_data(server.guest, 'large', size)
    text = NGINX.format(work=WORK, address=server.address, port=port)
    server.guest.run(f"head -c 500 large >small; cat >nginx.conf <<'.'\n{text}.\n")
    listener = server.start(['nginx', '-p', WORK, '-e', 'stderr', '-c', f'{WORK}/nginx.conf'])
    _listening(server, port, listener)
    url = f'http://{server.address}:{port}/'
    client.start(['curl', '-sS', '--fail', '-o', f'{WORK}/fetched', url + 'large']).wait()
    _same('by curl', sent, checksum(client.guest, f'{WORK}/fetched'))
    caller = client.start(['wrk', '-t', '1', '-c', '4', '-d', '80000' if watch else '2', url + 'small'])
    if watch:
        watch(*((end, way, 4) for end in (caller, listener) for way in ('tx', 'rx')))
        caller.signal(signal.SIGINT)
    caller.wait()
    said = caller.output()
    check('Requests/sec' in said and 'Socket errors' not in said and 'Non-2xx' not in said, f'{caller}: {said}')
    return listener.kill(signal.SIGQUIT), caller


SAME_EVERYWHERE = '/bin/bash'  # a file that both guests have, and whose bytes do not repeat


class Stream:
    """A stream from client to server that goes on until something happens to it. What arrives is compared, not kept: it may be more than a guest's memory
    takes. That is done in a session of its own, so that it outlives a server that is killed with all that it has started."""

    def __init__(self, server, client):
        port = next(_ports)
        self.server, self.feed, self.compared = server, Feed(client.guest, SAME_EVERYWHERE, True), f'{WORK}/compared-{port}'
        compare = f'exec setsid cmp - <(while cat {SAME_EVERYWHERE}; do :; done) >{self.compared} 2>&1'
        self.listener = server.start(f'exec socat -d -u TCP-LISTEN:{port},bind={server.address} STDOUT > >({compare})')
        _listening(server, port, self.listener)
        self.caller = client.start(self.feed.into(f'socat -d -u STDIN TCP:{server.address}:{port}'))
        self.lanes, self.port = ((self.caller, 'tx', 1), (self.listener, 'rx', 1)), port

    def until_connected(self):
        self.server.guest.until(lambda: self.server.guest.sockets(self.port, '01'), f'{self.caller} to connect')

    @staticmethod
    def heard(program):
        """Did it hear of an error, or only of the end of a file? A reset while it reads is just a warning to socat."""
        return program.wait(None).status != 0 or 'Connection reset by peer' in program.output()

    def arrived(self):
        """How many bytes, once the server has ended; they are those that were sent."""
        guest = self.server.guest
        found = guest.until(lambda: re.search(r'EOF on - (?:after byte (\d+),|which is empty)|differ', guest.read(self.compared, b'').decode()),
                            f'what {self.listener} has written to be compared')
        check(found[0] != 'differ', f'{self.listener}: the bytes that arrived are not the bytes that were sent')
        return int(found[1] or 0)

    def sent(self):
        """How many bytes the client has been given, once it has ended."""
        return self.feed.laps() * int(self.server.guest.run(['stat', '-Lc', '%s', SAME_EVERYWHERE]))

    def ends_or_goes_on(self):
        """Something has happened: either both ends hear of an error, or nothing is missing. Answers whether it goes on."""
        lap = self.feed.laps() + 8  # more than all buffers take
        self.server.guest.until(lambda: not self.listener.running() or not self.caller.running() or self.feed.laps() >= lap,
                                f'{self.listener} to end, or to go on')
        goes_on = self.listener.running() and self.caller.running()
        if goes_on:
            self.feed.stop()
        heard = self.heard(self.caller), self.heard(self.listener)
        check(heard[0] == heard[1] != goes_on, f'{self.caller}, {self.listener}: heard of an error: {heard}')
        check(self.arrived() == self.sent() or not goes_on, f'{self.listener}: an end of file before the end')
        return goes_on
