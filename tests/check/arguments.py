# SPDX-License-Identifier: MIT
"""A wrong word for one of the tools is quoted, with status 2, before it looks for packages or builds or measures anything."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS, BENCH = os.path.join(TOP, 'tools'), os.path.join(TOP, 'tests', 'bench', 'run')


def bench_refusals(directory):
    """What is wrong with each answer of tests/bench/run to a BUILD that it cannot measure: it is to be one line."""
    spaced = os.path.join(directory, 'a b')
    for name in ('shim', 'a b/tests/bench', 'a b/shim'):
        os.makedirs(os.path.join(directory, name))
    for name in ('shim/libringway.so', 'a b/shim/libringway.so', 'a b/tests/bench/ringbench', 'a b/tests/bench/sockbench'):
        shutil.copy('/bin/true', os.path.join(directory, name))
    for build, words in ((directory, 'built with the tests'), (spaced, 'space'), (os.path.join(directory, 'none'), 'built with the tests')):
        done = subprocess.run([sys.executable, BENCH, build, '1', '1'], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60, check=False)
        if done.returncode != 2 or done.stdout or done.stderr.count('\n') != 1 or f'"{build}"' not in done.stderr or words not in done.stderr:
            yield f'tests/bench/run {build}: status {done.returncode}: {done.stdout}{done.stderr}'
    told = subprocess.run([sys.executable, BENCH, '--help'], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          check=False).stdout
    for word in ('BUILD', 'ROUNDS', 'PERCENT'):
        if not re.search(rf'^  {word} +[^ ]', told, re.M):
            yield f'tests/bench/run --help says nothing about {word}: {told}'


def main():
    with tempfile.TemporaryDirectory(prefix='ringway-arguments.') as directory:
        # Found first: what asks for a package is told on, and gets no further than that.
        asked = os.path.join(directory, 'asked')
        for name in ('dpkg-query', 'apt-get', 'sudo'):
            with open(os.path.join(directory, name), 'w', encoding='ascii') as f:
                f.write(f'#!/bin/sh\n: >{asked}\nexit 1\n')
            os.chmod(f.name, 0o755)
        env = {**os.environ, 'PATH': f'{directory}:{os.environ["PATH"]}'}
        for tool, words, quoted in (('check', ['--fast'], '--fast'), ('check', ['--quick', 'unit'], 'unit'),
                                    ('check', ['--quick', '--all'], '--all'), ('check', ['--budget', '5', '7'], '7'),
                                    ('check', ['--all', '--budget=soon'], 'soon'), ('check', ['--budget'], '--budget'), ('check', ['--budget='], '--budget'),
                                    ('quickstart', ['--fast'], '--fast')):
            done = subprocess.run([os.path.join(TOOLS, tool), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=60, env=env, check=False)
            if done.returncode != 2 or f'"{quoted}"' not in done.stderr or os.path.exists(asked):
                print(f'FAILED: {tool} {words}: status {done.returncode}, packages looked for: {os.path.exists(asked)}: '
                      f'{done.stdout}{done.stderr}')
                return 1
        problems = list(bench_refusals(directory))
        for problem in problems:
            print(f'FAILED: {problem}')
        return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
