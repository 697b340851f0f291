# SPDX-License-Identifier: MIT
"""Inside a guest: the first process, and the only one until it is told to start another. It takes requests, one JSON
object a line, over a virtio-serial port, answers each with the request's "id", and tells by itself when a program that it
started has ended: {"ended": id, "status": exit status, or minus the signal}.

It knows nothing of tests; what belongs to one is decided by guest.py, at the other end of the port. Should it fail, the
kernel panics for want of a first process, and its last words are on the console.
"""
import base64
import glob
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess

PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
OUT = '/run/out/'
READ_MOST = 16 << 20


class Agent:
    def __init__(self, port):
        self.port, self.buffer = port, b''
        self.running = {}  # pid: (id, Popen)

    def tell(self, **message):
        line = json.dumps(message).encode() + b'\n'
        while line:
            line = line[os.write(self.port, line):]

    # -- requests

    def do_start(self, request):
        """A program, in a session of its own. Its output is kept outside; stdin and stdout may be files in here."""
        limits = [(getattr(resource, 'RLIMIT_' + name.upper()), value) for name, value in request['limits'].items()]
        user = request['user']

        def in_child():
            for which, value in limits:
                resource.setrlimit(which, (value, value))
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)

        env = {'PATH': PATH, 'HOME': '/root', 'TERM': 'dumb', 'LC_ALL': 'C.UTF-8', 'TMPDIR': request['cwd'], **request['env']}
        os.makedirs(request['cwd'], exist_ok=True)
        os.chmod(request['cwd'], 0o1777)

        fds = []
        try:
            fds.append(os.open(request['stdin'] or '/dev/null', os.O_RDONLY))
            output = OUT + request['output']
            for name in (request['stdout'] or output, output):
                fds.append(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if name == output else os.O_TRUNC), 0o666))
            child = subprocess.Popen(request['argv'], stdin=fds[0], stdout=fds[1], stderr=fds[2], env=env, cwd=request['cwd'],
                                     start_new_session=True, preexec_fn=in_child)
        finally:
            for fd in fds:
                os.close(fd)
        self.running[child.pid] = request['id'], child
        return {'pid': child.pid}

    def do_kill(self, request):
        """Send a signal to a program, or with "all" to everything in its session that has not left its group."""
        if request['pid'] in self.running:
            (os.killpg if request['all'] else os.kill)(request['pid'], request['signal'])
        return {}

    def do_read(self, request):
        try:
            with open(request['path'], 'rb') as f:
                return {'data': base64.b64encode(f.read(READ_MOST)).decode()}
        except FileNotFoundError:
            return {}

    def do_look(self, request):
        """Every process of a program: what it is, and where in the kernel it is."""
        return {'processes': [self._look(int(pid)) for pid in os.listdir('/proc') if pid.isdigit() and self._of_a_program(pid)]}

    def do_tidy(self, request):
        """End everything that is not this process and remove a directory; answers how many there were."""
        count = sum(1 for pid in os.listdir('/proc') if pid.isdigit() and self._of_a_program(pid))
        while True:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                self.ended(*os.waitpid(-1, 0))
            except ChildProcessError:
                break
        shutil.rmtree(request['remove'], ignore_errors=True)
        return {'ended': count}

    # -- processes

    @staticmethod
    def _of_a_program(pid):
        try:
            with open(f'/proc/{pid}/cmdline', 'rb') as f:
                return pid != '1' and f.read() != b''  # a thread of the kernel has none
        except OSError:
            return False

    @staticmethod
    def _look(pid):
        seen = {}
        for name in ('cmdline', 'wchan', 'syscall', 'stack', 'status'):
            try:
                with open(f'/proc/{pid}/{name}', 'rb') as f:
                    seen[name] = f.read(3000).replace(b'\0', b' ').decode(errors='replace').strip()
            except OSError:
                seen[name] = '?'
        state = [line.split()[1] for line in seen.pop('status').splitlines() if line.startswith('State:')]
        return {'pid': pid, 'state': ''.join(state), **seen}

    def ended(self, pid, status):
        number, child = self.running.pop(pid, (None, None))
        if child:
            child.returncode = os.waitstatus_to_exitcode(status)
            self.tell(ended=number, status=child.returncode)

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.ended(pid, status)

    # -- the loop

    def serve(self, line):
        request = json.loads(line)
        try:
            answer = getattr(self, 'do_' + request['do'])(request)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            answer = {'error': f'{type(error).__name__}: {error}'}
        self.tell(id=request['id'], **answer)

    def loop(self, wakeups):
        poll = select.poll()
        poll.register(self.port, select.POLLIN)
        poll.register(wakeups, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if wakeups.fileno() in ready:
                wakeups.recv(4096)
                self.reap()
            if self.port in ready:
                self.buffer += os.read(self.port, 65536)
                *lines, self.buffer = self.buffer.split(b'\n')
                for line in lines:
                    self.serve(line)


def find_port():
    for path in glob.glob('/sys/class/virtio-ports/*/name'):
        with open(path, encoding='ascii') as f:
            if f.read().strip() == 'ringway':
                return os.open('/dev/' + path.split('/')[-2], os.O_RDWR)
    raise SystemExit('no virtio-serial port is named ringway')


def main():
    os.umask(0o022)
    os.symlink('/proc/self/fd', '/dev/fd')  # for bash's <(...)
    os.environ['PATH'] = PATH  # where Popen looks for programs
    wakeups, writer = socket.socketpair()
    for end in (wakeups, writer):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    agent = Agent(find_port())
    agent.tell(hello=os.uname().release)
    agent.loop(wakeups)


main()
