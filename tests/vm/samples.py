# SPDX-License-Identifier: MIT
"""Tests that go wrong in every way, for selftest.py. Not part of the suite."""
from guest import check, limit

LIMIT = 60


def test_that_passes(one):
    check(one.run('echo said') == 'said\n', 'the output of a program')


def test_that_fails(one):
    one.run('echo too bad; exit 3')


@limit(2)
def test_that_hangs(one):
    one.run('echo before; exec sleep 1000')


def test_after_the_hang(one):
    check('sleep' not in one.run('ps ax'), 'the test before has left something running')
    check(one.run('ls /run') .count('work') == 1, 'no directory to work in')


@limit(1)
def test_that_computes(one):
    while True:
        pass


def test_that_is_wrong(one):
    return one.no_such_thing


def test_of_limits(one, record):
    said = one.run('ulimit -l; ulimit -n; id -u', user=65534, memlock=65536, nofile=77)
    check(said.split() == ['64', '77', '65534'], said)
    record(limits=said.split())


def test_that_panics(one):
    one.run('echo c >/proc/sysrq-trigger; sleep 1000')


def test_after_the_panic(one):
    check(one.run('echo again') == 'again\n', 'a new guest')
