#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""libc.py: does calls.def know every function of this machine's libc that takes a descriptor?

A function is one that does if a header of libc gives it a parameter that is named so, or if its name is another's with an
underscore, a `_chk` or a `64` more. Each has to be a row of calls.def or to stand in `left_alone`, which says why.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
HEADERS = """aio.h arpa/inet.h dirent.h fcntl.h fts.h mqueue.h poll.h pty.h sched.h spawn.h stdio.h stdlib.h sys/epoll.h sys/eventfd.h
sys/fanotify.h sys/file.h sys/inotify.h sys/ioctl.h sys/mman.h sys/mount.h sys/pidfd.h sys/random.h sys/select.h sys/sendfile.h
sys/signalfd.h sys/socket.h sys/stat.h sys/statfs.h sys/statvfs.h sys/syscall.h sys/time.h sys/timerfd.h sys/timex.h sys/uio.h
sys/vfs.h sys/wait.h sys/xattr.h termios.h unistd.h utmp.h netdb.h error.h err.h syslog.h wchar.h printf.h execinfo.h
rpc/netdb.h netinet/in.h sys/resource.h sys/sysinfo.h sys/fsuid.h argz.h grp.h pwd.h ifaddrs.h resolv.h threads.h pthread.h
sys/ptrace.h sys/quota.h sys/swap.h sys/reboot.h sys/klog.h sys/personality.h sys/prctl.h sys/sem.h sys/shm.h sys/msg.h""".split()
FD_NAMES = r'(?:\w*fds?\d*|\w*fildes|\w*fdin|\w*fdout|__s|__sockfd|__socket|sock|__first|__fdes\w*|fdlist)'


def exported():
    """The functions of libc.so.6 that a program can be linked with, or an old one was; not those for libc's own parts."""
    libc = re.search(r'libc\.so\.6 => (\S+)', subprocess.run(['ldd', sys.executable], capture_output=True, text=True,
                                                              check=True).stdout)[1]
    out = subprocess.run(['nm', '-D', '--defined-only', libc], capture_output=True, text=True, check=True).stdout
    return {m[1] for m in re.finditer(r'^\S+ [TWi] (\w+)@{1,2}(?!@|GLIBC_PRIVATE)', out, re.M)}


def declared():
    """name -> parameters, of all that the headers declare."""
    found = {}
    for header in HEADERS:
        done = subprocess.run(['cc', '-E', '-P', '-D_GNU_SOURCE', '-xc', '-'], input=f'#include <{header}>\n', capture_output=True,
                              text=True)
        for m in re.finditer(r'(\w+)\s*\(((?:[^(){};]|\([^(){};]*\)(?:\s*\([^(){};]*\))?)*)\)[^;{}]*;', done.stdout):
            found.setdefault(m[1], m[2])
    return found


def takes_fd(params):
    return any(re.search(r'^\s*(?:const\s+)?(?:unsigned\s+)?int\s+(?:\*\s*)?' + FD_NAMES + r'(?:\[.*)?$', p) or 'pollfd' in p or
               'fd_set' in p or 'aiocb' in p for p in params.split(','))


def base(name):
    name = re.sub(r'^(__libc_|__GI_|_+)', '', name)
    return re.sub(r'(_chk|_nocancel|_2|64v2|64|v2)$', '', name)


def rows():
    text = (HERE.parent.parent / 'shim' / 'calls.def').read_text(encoding='utf-8')
    return set(re.findall(r'^(?:CALL|CALL_BARE|CALL_VA)\([^,]+(?:\([^)]*\))?, (\w+),', text, re.M)) | set(
        re.findall(r'^EXPORT_ONLY\((\w+)\)', text, re.M))


def left_alone():
    patterns = {}
    for line in (HERE / 'left_alone').read_text(encoding='utf-8').splitlines():
        if line and not line.startswith('#'):
            names, reason = line.split('|')
            for name in names.split():
                patterns[name] = reason.strip()
    return patterns


def main():
    functions, prototypes, known, left = exported(), declared(), rows(), left_alone()
    taking = {name for name in functions if name in prototypes and takes_fd(prototypes[name])}
    bases = {base(name) for name in taking | known}
    taking |= {name for name in functions if base(name) in bases}
    problems = [f'{name}({prototypes.get(name, "not declared")}) is neither in calls.def nor in tests/check/left_alone'
                for name in sorted(taking - known) if not any(fnmatch.fnmatchcase(name, pattern) for pattern in left)]
    problems += [f'{name} is in calls.def and in tests/check/left_alone' for name in sorted(known & set(left))]
    if len(taking) < 150:
        problems.append(f'only {len(taking)} functions found that take a descriptor: the headers are not understood any more')
    for problem in problems:
        print(problem)
    print(f'{len(taking)} functions of libc take a descriptor: {len(taking & known)} in calls.def. {len(problems)} problems')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
