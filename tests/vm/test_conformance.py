# SPDX-License-Identifier: MIT
"""One guest, whose programs use the device even among themselves: the differential scripts over real verbs. test_forced_verbs.py begins with
some of them."""
from conformance import compare

LIMIT = 240
WARM, COLD = 'procs-v4-both-after-0-spin-0-warm-verbs', 'procs-v4-both-after-0-spin-auto-cold-verbs'


def test_streams(one):
    compare(one, WARM, 'stream', 'vectors', 'peek_waitall', 'small_messages', 'more', 'queues', 'sendfile', verbs=True)


def test_streams_by_ipv6(one):
    compare(one, 'procs-v6-both-*-warm-verbs', 'stream', 'vectors', 'half_close', 'reset', verbs=True)


def test_waits_by_ipv6(one):
    compare(one, 'procs-v6-both-*-warm-verbs', 'poll', 'epoll_level', 'epoll_edge', 'half_close_waits', 'small_messages', 'unread', verbs=True)


def test_streams_by_mapped_addresses(one):
    compare(one, 'procs-vm-both-*-verbs', 'stream', 'half_close', 'reset', verbs=True)


def test_streams_that_move_in_the_middle(one):
    compare(one, COLD, 'stream', 'vectors', 'peek_waitall', 'half_close', 'reset', 'epoll_level', 'epoll_edge', verbs=True)


def test_ends(one):
    compare(one, WARM, 'half_close', 'reset_half', 'shutdown_read', 'shutdown_both', 'unread', 'linger', 'exits', 'peek_ends', verbs=True)


def test_waits(one):
    compare(one, WARM, 'half_close_waits', 'poll', 'select', 'poll_waits', 'timeouts', 'waitall_waits', 'interrupts', verbs=True)


def test_epoll(one):
    compare(one, WARM, 'epoll_level', 'epoll_edge', 'epoll_oneshot', 'epoll_nested', 'epoll_removed', 'epoll_waits', 'exclusive', verbs=True)


def test_loops(one):
    compare(one, WARM, 'loops', 'many_connections', 'dups', 'zero_and_bad', verbs=True)


def test_full_rings(one):
    compare(one, WARM, 'full', 'full_waits', 'full_stays', verbs=True)


def test_more_calls(one):
    compare(one, WARM, 'inq', 'names', 'messages_errors', 'options_buffers', 'oob', 'splice', 'splice_waits', 'zero_waits', 'stdio', verbs=True)


def test_more_ends(one):
    compare(one, WARM, 'errors_and_pipes', 'reset_waits', 'reset_waits_full', 'waitall_reset', 'shutdown_read_sends', 'connect', 'connect_waits', verbs=True)


def test_more_of_epoll(one):
    compare(one, WARM, 'epoll_edge_shut', 'epoll_many', 'one_two_sets', verbs=True)


def test_processes(one):
    compare(one, WARM, 'prefork', 'fork_bystanders', 'exec_cloexec', 'close_ranges', 'comes_between', 'handlers', verbs=True)


def test_threads_that_close(one):
    compare(one, 'threads-v4-both-*-verbs', 'threads_close', 'threads_close_poll', 'threads_close_recv', 'threads_close_send', verbs=True)


def test_threads(one):
    compare(one, 'threads-v4-both-*-verbs', 'stream', 'threads_shared', 'threads_waits', verbs=True)


def test_one_side_only(one):
    compare(one, 'procs-v4-[AB]-*-verbs', 'stream', 'half_close', verbs=True)


def test_random_scripts(one):
    compare(one, WARM, 'random:1-4', verbs=True)
