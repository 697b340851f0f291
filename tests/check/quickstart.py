# SPDX-License-Identifier: MIT
"""tools/quickstart and tools/check where they cannot work: one or two lines that say what to do, and nothing is begun. What is left
of them after Ctrl-C. And what the demonstration does when time, or room, is short."""
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import types

TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), 'tools')
sys.path.insert(0, os.path.join(TOOLS, 'lib'))
import quickstart  # noqa: E402

problems = []


def check(good, text):
    if not good:
        problems.append(text)


def command(directory, name, script):
    with open(os.path.join(directory, name), 'w', encoding='ascii') as f:
        f.write(f'#!/bin/sh\n{script}\n')
    os.chmod(f.name, 0o755)


def commands(directory, log, uid, sudo):
    """A directory for the front of PATH: no package is there, apt-get is told on in LOG and fails, and we are UID."""
    os.mkdir(directory)
    command(directory, 'dpkg-query', 'exit 1')
    command(directory, 'apt-get', f'echo apt-get >>{log}; exit 1')
    command(directory, 'id', f'echo {uid}')
    command(directory, 'sudo', f'echo "sudo $*" >>{log}; {sudo}')
    return directory


def run(tree, tool, front, user=None):
    """(status, lines) of the tool of this tree."""
    done = subprocess.run([os.path.join(tree, 'tools', tool)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, env={**os.environ, 'PATH': f'{front}:{os.environ["PATH"]}'},
                          user=user, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), check=False)
    return done.returncode, done.stdout.splitlines()


def copy_tools(tree):
    shutil.copytree(TOOLS, os.path.join(tree, 'tools'), ignore=shutil.ignore_patterns('__pycache__'))
    return tree


def refusals(directory):
    log = os.path.join(directory, 'log')
    front = commands(os.path.join(directory, 'front'), log, 1000, 'echo "sudo: a password is required" >&2; exit 1')
    for name, words, asked in (('good', ('password is required', 'start this as root', 'apt-get install', 'gcc', 'redis-server'), 'sudo -n true\n'),
                               ('a b', ('space', 'a b', 'move it'), ''), ('a:b', ('colon', 'a:b', 'move it'), ''),
                               ('a$b', ('dollar', 'a$b', 'move it'), '')):
        tree = copy_tools(os.path.join(directory, name))
        for tool, last in (('quickstart', 'quickstart: FAILED: '), ('check', '0 passed, 1 failed, 0 skipped')):
            with open(log, 'w', encoding='ascii'):
                pass
            status, lines = run(tree, tool, front)
            said = '\n'.join(lines)
            check(status == 1 and lines and lines[-1].startswith(last), f'{tool} in "{name}": status {status}: {said}')
            check(all(word in said for word in words), f'{tool} in "{name}" does not say {words}: {said}')
            check(len(lines) <= (2 if tool == 'quickstart' else 3), f'{tool} in "{name}" says too much: {said}')
            with open(log, encoding='ascii') as f:
                did = f.read()
            check(did == asked, f'{tool} in "{name}" has run: {did}')
            check(asked or os.listdir(tree) == ['tools'], f'{tool} in "{name}" leaves {os.listdir(tree)}')


def strangers():
    """What another user has built before; where that one may look, whatever TMPDIR is."""
    with tempfile.TemporaryDirectory(prefix='ringway-quickstart-test.', dir='/tmp') as directory:
        os.chmod(directory, 0o755)
        front, tree = os.path.join(directory, 'front'), copy_tools(os.path.join(directory, 'owned'))
        commands(front, '/dev/null', 1000, 'exit 1')
        for tool in ('quickstart', 'check'):
            os.mkdir(os.path.join(tree, f'build-{tool}'), 0o555)
            status, lines = run(tree, tool, front, 65534 if os.geteuid() == 0 else None)
            check(status == 1 and f'cannot write to {tree}/build-{tool}' in lines[0], f'{tool} in a directory of another user: {status}: {lines}')


def interrupted(directory):
    """Ctrl-C, which the terminal sends to all in the foreground, while packages are installed."""
    log, policy = os.path.join(directory, 'stopped-log'), os.path.join(directory, 'policy-rc.d')
    front, tree = os.path.join(directory, 'stopped-front'), copy_tools(os.path.join(directory, 'stopped'))
    commands(front, log, 1000, 'shift; exec "$@"')
    command(front, 'apt-get', f'read -r stat </proc/self/stat; set -- $stat; [ -x {policy} ] && echo begun >>{log}; kill -INT -$6; echo went on >>{log}')
    script = os.path.join(tree, 'tools', 'lib', 'install.sh')
    with open(script, encoding='utf-8') as f:
        text = f.read().replace('/usr/sbin/policy-rc.d', policy)
    with open(script, 'w', encoding='utf-8') as f:
        f.write(text)
    for tool, last in (('quickstart', 'quickstart: FAILED: '), ('check', '0 passed, 1 failed, 0 skipped')):
        with open(log, 'w', encoding='ascii'):
            pass
        status, lines = run(tree, tool, front)
        with open(log, encoding='ascii') as f:
            did = [line for line in f.read().splitlines() if not line.startswith('sudo')]
        check(status == 1 and lines[-1].startswith(last), f'{tool} that is interrupted: status {status}: {lines}')
        check(did == ['begun'], f'{tool} that is interrupted: {did}')
        check(not os.path.exists(policy), f'{tool} that is interrupted leaves {policy}')


# Ctrl-C twice, the second time while the directory is removed.
TWICE = """
import os, shutil, signal, sys
sys.path.insert(0, sys.argv[1])
import programs
remove, me = shutil.rmtree, os.getpid()
shutil.rmtree = lambda *words, **named: (os.kill(me, signal.SIGINT), remove(*words, **named))
print(programs.own_directory('ringway-twice.', sys.argv[2]), flush=True)
os.kill(me, signal.SIGINT)
signal.pause()
"""


def interrupted_twice(directory):
    done = subprocess.run([sys.executable, '-B', '-c', TWICE, os.path.join(TOOLS, 'lib'), directory], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False)
    check(done.returncode == 1 and 'ringway-twice.' in done.stdout and not os.path.exists(done.stdout.strip()),
          f'interrupted twice: {done.returncode}, leaves {done.stdout}{done.stderr}')


def unbuilt(directory):
    """A build that was stopped for time is not called one that does not compile. timeout(1) says 124, and so does this ninja."""
    tree = copy_tools(os.path.join(directory, 'unbuilt'))
    for status, words in ((124, 'too slow'), (1, 'does not compile')):
        front = os.path.join(directory, f'front-{status}')
        os.mkdir(front)
        command(front, 'dpkg-query', 'echo install ok installed')
        command(front, 'meson', 'exit 0')
        command(front, 'ninja', f'exit {status}')
        done, lines = run(tree, 'quickstart', front)
        check(done == 1 and words in lines[-1], f'a ninja of status {status}: {done}: {lines}')


def interrupted_at_work(directory):
    """Ctrl-C while it builds, or one that ends the shell alone: what was begun ends, and the last line is said."""
    tree, front, log = copy_tools(os.path.join(directory, 'worked')), os.path.join(directory, 'worked-front'), os.path.join(directory, 'worked-log')
    os.mkdir(front)
    command(front, 'dpkg-query', 'echo install ok installed')
    command(front, 'meson', 'read -r stat </proc/self/stat; set -- $stat; kill -INT -$6; exit 1')
    status, lines = run(tree, 'quickstart', front)
    check(status == 1 and lines[-1] == 'quickstart: FAILED: it was interrupted', f'quickstart, building: status {status}: {lines}')
    with open(os.path.join(tree, 'tools', 'lib', 'check.py'), 'w', encoding='ascii') as f:
        f.write(f'import signal, sys\ndef told(*_):\n    open({log!r}, "w").write("told")\n    sys.exit(143)\n'
                'signal.signal(signal.SIGTERM, told)\nprint("begun", flush=True)\nsignal.pause()\n')
    with subprocess.Popen([os.path.join(tree, 'tools', 'check'), '--quick'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, 'PATH': f'{front}:{os.environ["PATH"]}'}, start_new_session=True) as shell:
        said = [shell.stdout.readline()]
        shell.terminate()
        status = shell.wait(60)
        told = os.path.exists(log)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        said += shell.stdout.read().splitlines()
    check(said[0] == 'begun\n' and status == 1 and said[-1] == '0 passed, 1 failed, 0 skipped', f'check that is told to end: {status}: {said}')
    check(told, 'check that is told to end does not tell its driver')


def moved(directory):
    """A build that came along when the tree was copied is made anew, with the names of its new place."""
    front, tree = os.path.join(directory, 'front'), copy_tools(os.path.join(directory, 'moved'))
    for tool, build in (('quickstart', 'build-quickstart'), ('check', 'build-check/gcc')):
        for recorded, kept in ((directory, False), (tree, True)):
            info = os.path.join(tree, build, 'meson-info')
            os.makedirs(info, exist_ok=True)
            with open(os.path.join(info, 'meson-info.json'), 'w', encoding='utf-8') as f:
                json.dump({'directories': {'source': recorded, 'build': os.path.join(recorded, build), 'info': info}}, f)
            run(tree, tool, front)
            check(os.path.exists(info) == kept, f'{tool}: {build} of {recorded} is {"gone" if kept else "kept"} in {tree}')


def no_room():
    """A full disk is told before anything is written to it."""
    usage, quickstart.shutil.disk_usage = shutil.disk_usage, lambda _: types.SimpleNamespace(free=1 << 20)
    try:
        quickstart.roomy_directory()
        problems.append('a full disk is taken for roomy')
    except quickstart.Trouble as error:
        check('TMPDIR' in str(error), f'of a full disk it says: {error}')
    finally:
        quickstart.shutil.disk_usage = usage


def haste():
    """Time that is up is told once, and then each thing is measured once."""
    for seconds, told, measured in ((1000, 0, 2), (-1, 1, 1)):
        pace, seen, said = quickstart.Pace(seconds), [], io.StringIO()

        def measure(ringway, seen=seen):
            seen.append(ringway)
            return {'speed': len(seen)}, 1.0

        with contextlib.redirect_stdout(said):
            for what in ('one', 'two', 'three'):
                quickstart.both_ways(what, measure, pace)
        check(seen == [False, True] * measured * 3, f'{seconds} seconds: measured {seen}')
        check(said.getvalue().count('slow or busy') == told, f'{seconds} seconds: {said.getvalue()}')


def main():
    with tempfile.TemporaryDirectory(prefix='ringway-quickstart-test.') as directory:
        refusals(directory)
        interrupted(directory)
        interrupted_twice(directory)
        interrupted_at_work(directory)
        unbuilt(directory)
        moved(directory)
    strangers()
    no_room()
    haste()
    for text in problems:
        print(f'FAILED: {text}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
