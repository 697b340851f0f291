# SPDX-License-Identifier: MIT
"""What a message costs that goes between hosts: a plain program under the preload, over the double, and its summary."""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'support'))
from ringway_support import Failed, check, die_with_parent, preload_env, read_summary  # noqa: E402

COUNTS, SHIM, DOUBLE = (os.environ[name] for name in ('TESTS_COUNTS', 'TESTS_SHIM', 'VERBS_DOUBLE_DIR'))
SECONDS = 60  # of one talk; the program ends by itself before that
RING = 256 << 10
WARM_UP = 50
SLACK = WARM_UP + 32  # what the rendezvous, the switch and the end take, too


def start(env, *words):
    return subprocess.Popen([COUNTS, *map(str, words)], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                            preexec_fn=die_with_parent)


def talk(mode, count, size, device='', **options):
    """The summaries of who sends first and of the other, each with `slept`; all but what the rendezvous takes has gone by the rings."""
    children, ends = [], []
    with tempfile.TemporaryDirectory(prefix='ringway-counts-') as work:
        def env(name):
            made = preload_env(SHIM, after=0, transports='verbs', ring=RING, patience=20000, summary=f'{work}/{name}', **options)
            return {**made, 'LD_LIBRARY_PATH': DOUBLE, 'VERBS_DOUBLE': device}
        try:
            children.append(start(env('accept'), 'accept', mode, count, size))
            port = children[0].stdout.readline().strip()
            check(port, 'no port')
            children.append(start(env('connect'), 'connect', port, mode, count, size))
            for child, name in zip(reversed(children), ('connect', 'accept')):
                out = child.communicate(timeout=SECONDS)[0]
                check(child.returncode == 0, f'{name} ended with {child.returncode}')
                lines = read_summary(f'{work}/{name}')
                check(len(lines) == 1 and lines[0]['switched']['verbs'] == 1, f'{name}: {lines}')
                ends.append({**lines[0], 'slept': int(out.split()[-1])})
        finally:
            for child in children:
                child.kill()
                child.communicate()
    check(ends[0]['ring_tx_bytes'] > size * count * 9 // 10, f'so little went by the ring: {ends[0]}')
    return ends


def quiet_ping_pong():
    """A work request and a doorbell a message; a completion for each that comes, and one for sixteen that go, or fewer."""
    count = 3000
    for end in talk('ping', count, 64):
        check(count * 9 // 10 < end['wr'] <= count + SLACK and end['doorbells'] <= count + SLACK, f'of {count} messages: {end}')
        check(end['cqes'] <= count + count // 16 + 2 * SLACK, f'of {count} messages: {end}')


def nobody_blocks_while_both_are_busy():
    """Ends that may wait as long as they like spin until the answer comes; ends that may not sleep for each."""
    count = 200
    for end in talk('ping', count, 64, spin=1000000):
        check(end['slept'] * 10 <= count, f'of {count} messages: {end}')
    check(sum(end['slept'] for end in talk('ping', count, 64, spin=0)) >= count, 'sleeps are not counted')


def saturated_small_messages():
    """Where the device is not done with the last ones, messages share work requests."""
    count = 100000
    ends = talk('stream', count, 8, device='late=40')
    check(0 < sum(end['wr'] for end in ends) <= 4 * count // 10, f'of {count} messages: {ends}')
    check(ends[0]['cqes'] <= 4 * count // 10, f'of {count} messages: {ends[0]}')


def large_messages():
    """A work request for 16 KiB, one more where the ring wraps; what goes back is two credits a ring at most."""
    count, size = 1000, 65536
    first, other = talk('stream', count, size)
    laps = first['ring_tx_bytes'] // RING + 1
    check(0 < first['wr'] <= first['ring_tx_bytes'] // 16384 + laps + SLACK, str(first))
    check(first['doorbells'] <= first['wr'], str(first))
    check(other['wr'] <= 2 * laps + SLACK, str(other))


def main():
    bad = 0
    for test in (quiet_ping_pong, nobody_blocks_while_both_are_busy, saturated_small_messages, large_messages):
        try:
            test()
            print(f'ok {test.__name__}', flush=True)
        except Failed as failure:
            bad += 1
            print(f'FAILED: {test.__name__}: {failure}', flush=True)
    sys.exit(bad != 0)


main()
