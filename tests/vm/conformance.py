# SPDX-License-Identifier: MIT
"""The differential scripts of tests/conformance in a guest: each step is compared with what that guest's own TCP does."""
import os
import sys

from guest import check

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'conformance')
COUNTERS = '/sys/class/infiniband/rxe0/ports/1/hw_counters'
STEP_SECONDS = 100  # how long a step may take, in a machine that stands still for seconds


def path_of(script):
    return script if script.startswith('random:') else os.path.join(HERE, 'scripts', script + '.steps')


def compare(guest, mode, *scripts, verbs=False):
    """MODE is a glob of the harness's own. With VERBS over the guest's device, with the rows of deviations that hold over the double of verbs."""
    paths = [path_of(script) for script in scripts]
    check(all(path.startswith('random:') or os.path.exists(path) for path in paths), 'a script is missing')
    env = {'CONFORM_SECONDS': str(STEP_SECONDS)}
    road = []
    if verbs:
        env |= {'CONFORM_ADDRESS': guest.address, 'CONFORM_ADDRESS6': guest.address6, 'CONFORM_COUNTERS': COUNTERS}
        road = ['--verbs', 'device']
    said = guest.start([sys.executable, '-B', os.path.join(HERE, 'run.py'), '--shim', os.environ['TESTS_SHIM'], *road, '--mode', mode,
                        os.environ['RINGWAY_CONFORM'], *paths], env=env).wait(None).output()
    check(' script(s), 0 complaint(s)' in said, said)
