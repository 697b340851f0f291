# SPDX-License-Identifier: MIT
"""A wrong word for one of the tools is quoted, with status 2, before it looks for packages or builds anything."""
import os
import subprocess
import sys
import tempfile

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'tools')


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
                                    ('check', ['--all', '--budget=soon'], 'soon'), ('check', ['--budget'], 'none'),
                                    ('quickstart', ['--fast'], '--fast')):
            done = subprocess.run([os.path.join(TOOLS, tool), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=60, env=env, check=False)
            if done.returncode != 2 or f'"{quoted}"' not in done.stderr or os.path.exists(asked):
                print(f'FAILED: {tool} {words}: status {done.returncode}, packages looked for: {os.path.exists(asked)}: '
                      f'{done.stdout}{done.stderr}')
                return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
