# SPDX-License-Identifier: MIT
"""One guest, whose programs use the device even among themselves: the soak (tests/soak) over real verbs. A seed makes the same programs here as over the double."""
import os
import sys

LIMIT = 500
RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'soak', 'run.py')
PATIENCE = 200  # seconds that a connection may stand still, where everything is slow and the device is away at times


def soak(guest, seeds, *more):
    words = ['--soak', os.environ['TESTS_SOAK'], '--shim', os.environ['TESTS_SHIM'], '--tool', os.environ['TESTS_TOOL'], '--transports', 'verbs',
             '--rdma-patience', '10000', '--conns', '60', '--patience', str(PATIENCE), '--limit', str(LIMIT - 50), '--seeds', seeds]
    return guest.start([sys.executable, '-B', RUN, *words, *more], env={'SOAK_ADDRESS': guest.address, 'SOAK_ADDRESS6': guest.address6}).wait().output()


def test_everything_befalls_them(one, record):
    record(said=soak(one, '1-2'))


def test_the_device_goes_and_comes(one, record):
    record(said=soak(one, '3', '--device', 'rxe0:rnic0', '--removals', '4'))
