# SPDX-License-Identifier: MIT
"""tools/quickstart and tools/check where they cannot work: one or two lines that say what to do, and nothing is begun. And what
the demonstration does when time is short."""
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile

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


def run(tree, tool, front):
    """(status, lines) of the tool of this tree."""
    done = subprocess.run([os.path.join(tree, 'tools', tool)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, env={**os.environ, 'PATH': f'{front}:{os.environ["PATH"]}'},
                          check=False)
    return done.returncode, done.stdout.splitlines()


def refusals(directory):
    log = os.path.join(directory, 'log')
    front = commands(os.path.join(directory, 'front'), log, 1000, 'echo "sudo: a password is required" >&2; exit 1')
    for name, words, asked in (('good', ('password is required', 'start this as root', 'apt-get install', 'gcc', 'redis-server'), 'sudo -n true\n'),
                               ('a b', ('space', 'a b', 'move it'), ''), ('a:b', ('colon', 'a:b', 'move it'), ''),
                               ('a$b', ('dollar', 'a$b', 'move it'), '')):
        tree = os.path.join(directory, name)
        shutil.copytree(TOOLS, os.path.join(tree, 'tools'), ignore=shutil.ignore_patterns('__pycache__'))
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
    haste()
    for text in problems:
        print(f'FAILED: {text}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
