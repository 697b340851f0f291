# SPDX-License-Identifier: MIT
"""What tools/check runs its phases in: it ends whatever the phase does, nothing outlives it, and leftovers are told."""
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'tools', 'lib'))
import check  # noqa: E402

MARK = f'ringway-jail-{os.getpid()}'
# A daemon that has left its session and holds the phase's output open, deaf to whoever asks it to end.
DAEMON = f"setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 100; done' {MARK} &"


def expect(good, what):
    if not good:
        print(f'FAILED: {what}', flush=True)
        sys.exit(1)


def alive():
    """Processes that carry this test's mark."""
    found = []
    for name in os.listdir('/proc'):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f'/proc/{name}/cmdline', 'rb') as f:
                    if MARK.encode() in f.read().split(b'\0'):
                        found.append(name)
            except OSError:
                pass
    return found


def main():
    with tempfile.TemporaryDirectory(prefix='ringway-jail.') as logs:
        jail = check.Jail(time.monotonic() + 100, logs)
        try:
            report = jail.run('plain', ['sh', '-c', 'echo said; exit 3'], 20)
            expect(report == {'status': 3, 'timed_out': False, 'processes': [], 'files': [], 'sockets': []}, f'plain: {report}')
            expect(check.tail_of(os.path.join(logs, 'plain.log'), 5) == 'said\n', 'the output of the phase')

            report = jail.run('daemon', ['sh', '-c', DAEMON + ' echo > "$TMPDIR/left"; exit 0'], 20)
            expect(report and report['status'] == 0 and not report['timed_out'], f'daemon: {report}')
            expect(any(MARK in p for p in report['processes']), f'the daemon is not reported: {report}')
            expect([os.path.basename(f) for f in report['files']] == ['left'], f'the file is not reported: {report}')
            expect(not alive(), 'the daemon outlived its phase')

            report = jail.run('endless', ['sh', '-c', DAEMON + ' trap "" TERM; while :; do sleep 1; done'], 1)
            expect(report and report['timed_out'] and report['status'] != 0, f'endless: {report}')
            expect(not alive(), 'the daemon outlived the phase that was stopped')

            jail.deadline = time.monotonic() + 1
            report = jail.run('late', ['sleep', '100'], 60)
            expect(report and report['timed_out'], f'a phase ran longer than the budget: {report}')
        finally:
            jail.close()


if __name__ == '__main__':
    main()
