/* SPDX-License-Identifier: MIT */
/* Ends of a stream on rings: what the program is told is what TCP would have told it. */
#include "tests/unit/conn_bench.h"
#include "shim/conn_use.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/unheard.h"

static struct bench on_rings(void)
{
	struct bench b = bench_open();

	bench_link(&b);
	bench_switch(&b);
	return b;
}

static void end_follows_the_bytes(void **state)
{
	struct bench b = on_rings();
	char got[8];

	(void)state;
	assert_sends(b.a, b.a_fd, "last");
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	assert_receives(b.b, b.b_fd, "last");
	for (int i = 0; i < 3; i++)
		assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	assert_sends(b.b, b.b_fd, "the other way is open");
	assert_receives(b.a, b.a_fd, "the other way is open");
	bench_close(&b);
}

static void end_that_came_after_the_kernel_was_asked_is_told_whole(void **state)
{
	struct bench b = on_rings();

	(void)state;
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	/* POLLIN is what the kernel says of a probe or of a frame; the end is met only when that is looked at. */
	assert_int_equal(conn_ready(b.b, b.b_fd, POLLIN | POLLRDHUP, POLLIN), POLLIN | POLLRDHUP);
	assert_int_equal(conn_ready(b.b, b.b_fd, POLLIN, POLLIN), POLLIN);
	assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
	assert_int_equal(conn_ready(b.b, b.b_fd, POLLIN, POLLIN), POLLIN | POLLHUP);
	bench_close(&b);
}

/* Another thread has brought the lane back, or has given the link up, since the kernel was asked, which then was not of its bytes. */
static void an_end_is_something_to_read_whatever_the_kernel_was_asked(void **state)
{
	struct bench b = bench_open();

	(void)state;
	assert_int_equal(shutdown(b.a_fd, SHUT_WR), 0);
	assert_int_equal(conn_ready(b.b, b.b_fd, POLLIN | POLLRDHUP, POLLRDHUP), POLLIN | POLLRDHUP);
	bench_link(&b);
	store_relaxed(&b.b->rx.state, RX_SEEK);
	assert_int_equal(conn_ready(b.b, b.b_fd, POLLIN | POLLRDHUP, POLLRDHUP), POLLIN | POLLRDHUP);
	bench_close(&b);
}

static void close_leaves_the_tail_to_the_reader(void **state)
{
	struct bench b = on_rings();
	char got[8];

	(void)state;
	assert_sends(b.a, b.a_fd, "tail");
	bench_close_a(&b);
	assert_receives(b.b, b.b_fd, "tail");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	bench_close(&b);
}

static void close_with_bytes_unread_is_a_reset(void **state)
{
	struct bench b = on_rings();
	char got[8];

	(void)state;
	assert_sends(b.a, b.a_fd, "nobody reads this");
	bench_close_b(&b);
	assert_int_equal(conn_recv(b.a, b.a_fd, got, sizeof(got), 0), -ECONNRESET);
	assert_int_equal(conn_recv(b.a, b.a_fd, got, sizeof(got), 0), 0);
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	bench_close(&b);
}

static void reset_that_came_after_the_kernel_was_asked_is_told_whole(void **state)
{
	struct bench b = on_rings();

	(void)state;
	assert_sends(b.a, b.a_fd, "nobody reads this");
	bench_close_b(&b);
	assert_int_equal(conn_ready(b.a, b.a_fd, POLLIN | POLLRDHUP, POLLIN), POLLIN | POLLRDHUP | POLLERR | POLLHUP);
	assert_int_equal(conn_ready(b.a, b.a_fd, POLLOUT, POLLIN), POLLOUT | POLLERR | POLLHUP);
	bench_close(&b);
}

/* b receives by the ring and sends by TCP: what the kernel has told the one is not told the other again. */
static void reset_that_tcp_has_told_is_not_told_by_the_ring(void **state)
{
	struct linger zero = { .l_onoff = 1 };
	struct bench b = bench_open();
	char got[8];

	bench_link(&b);
	for (int i = 0; i < 8 && !conn_tx_on_ring(b.a); i++) {
		assert_sends(b.a, b.a_fd, "x");
		assert_receives(b.b, b.b_fd, "x");
		assert_nothing(b.a, b.a_fd);
	}
	assert_true(conn_tx_on_ring(b.a) && !conn_tx_on_ring(b.b));
	assert_sends(b.a, b.a_fd, "last");
	assert_int_equal(setsockopt(b.a_fd, SOL_SOCKET, SO_LINGER, &zero, sizeof(zero)), 0);
	bench_close_a(&b);
	assert_receives(b.b, b.b_fd, "last");
	assert_int_equal(conn_send(b.b, b.b_fd, "x", 1, MSG_NOSIGNAL), -ECONNRESET);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	bench_close(&b);
}

static void close_before_the_frame_was_read_is_a_reset_if_bytes_follow_it(void **state)
{
	struct bench b = bench_open();
	char got[8];

	(void)state;
	bench_link(&b);
	assert_nothing(b.b, b.b_fd);
	assert_sends(b.a, b.a_fd, "unread");
	bench_close_b(&b);
	assert_int_equal(conn_recv(b.a, b.a_fd, got, sizeof(got), 0), -ECONNRESET);
	bench_close(&b);
}

static void send_after_the_peers_close_succeeds_once(void **state)
{
	struct bench b = on_rings();

	(void)state;
	bench_close_b(&b);
	assert_sends(b.a, b.a_fd, "into the void");
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	bench_close(&b);
}

static void urgent_byte_to_a_peer_that_is_gone_is_a_broken_pipe(void **state)
{
	struct bench b = on_rings();
	struct pollfd p = { .fd = b.a_fd };

	(void)state;
	bench_close_b(&b);
	assert_int_equal(conn_send(b.a, b.a_fd, "u", 1, MSG_OOB | MSG_NOSIGNAL), 1);
	/* The peer's kernel answers with a reset. */
	assert_int_equal(poll(&p, 1, 5000), 1);
	assert_int_equal(conn_send(b.a, b.a_fd, "u", 1, MSG_OOB | MSG_NOSIGNAL), -EPIPE);
	bench_close(&b);
}

static void probes_are_not_seen_and_do_not_turn_close_into_a_reset(void **state)
{
	struct bench b = on_rings();
	char got[8];

	(void)state;
	assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
	assert_int_equal(conn_recv(b.a, b.a_fd, got, sizeof(got), 0), 0);
	/* The peer's end was seen: is it half closed, or gone? A probe goes in front of these. */
	assert_sends(b.a, b.a_fd, "to a half-closed peer");
	assert_int_equal(load_relaxed(&b.a->tx.probe_due), 0);
	assert_receives(b.b, b.b_fd, "to a half-closed peer");
	bench_close_b(&b);
	assert_int_equal(conn_recv(b.a, b.a_fd, got, sizeof(got), 0), 0);
	bench_close(&b);
}

static void peer_that_vanishes_with_bytes_unread_is_a_reset(void **state)
{
	struct bench b = on_rings();
	char got[8];

	(void)state;
	assert_sends(b.a, b.a_fd, "unread");
	/* Killed: its kernel closes the socket, nobody says a word in the segment. */
	shutdown(b.b_fd, SHUT_RDWR);
	store_relaxed(&b.a->rx.looks_skipped, 1000);
	assert_int_equal(conn_recv(b.a, b.a_fd, got, sizeof(got), 0), -ECONNRESET);
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	bench_close(&b);
}

static void peer_that_vanishes_with_nothing_unread_is_an_end(void **state)
{
	struct bench b = on_rings();
	char got[8];

	(void)state;
	shutdown(b.b_fd, SHUT_RDWR);
	store_relaxed(&b.a->rx.looks_skipped, 1000);
	assert_int_equal(conn_recv(b.a, b.a_fd, got, sizeof(got), 0), 0);
	bench_close(&b);
}

static void tail_that_lies_is_a_reset(void **state)
{
	struct bench b = on_rings();
	char got[8];

	(void)state;
	peer_publish_u64(&b.a->link.tx.front->tail_pos, UINT64_C(1) << 40);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), -ECONNRESET);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	assert_int_equal(conn_send(b.b, b.b_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	assert_int_equal(load_relaxed(&b.b->reason), REASON_BAD_POSITION);
	bench_close(&b);
}

/* The lane of the other direction is honest: there an end of the kernel's would be an end. */
static void lie_on_one_lane_is_a_reset_on_the_other_that_is_on_tcp(void **state)
{
	struct bench b = bench_open();
	char got[8];

	(void)state;
	bench_link(&b);
	for (int i = 0; i < 8 && !conn_tx_on_ring(b.a); i++) {
		assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, 0), 1);
		assert_int_equal(conn_recv(b.b, b.b_fd, got, 1, 0), 1);
		assert_nothing(b.a, b.a_fd);
	}
	assert_true(conn_tx_on_ring(b.a) && conn_rx_on_ring(b.b) && !conn_tx_on_ring(b.b));
	peer_publish_u64(&b.a->link.tx.front->tail_pos, UINT64_C(1) << 40);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), -ECONNRESET);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	assert_int_equal(conn_recv(b.a, b.a_fd, got, sizeof(got), 0), -ECONNRESET);
	bench_close(&b);
}

static void head_that_lies_is_a_reset(void **state)
{
	struct bench b = on_rings();
	char full[4096] = { 0 };
	ssize_t n;

	(void)state;
	peer_publish_u64(&b.b->link.rx.ctl->rx.head_pos, UINT64_C(1) << 40);
	do
		n = conn_send(b.a, b.a_fd, full, sizeof(full), MSG_NOSIGNAL);
	while (n > 0);
	assert_int_equal(n, -ECONNRESET);
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	bench_close(&b);
}

static void bytes_in_the_socket_that_are_no_probe_are_a_reset(void **state)
{
	struct bench b = on_rings();
	char got[8];

	(void)state;
	assert_int_equal(send(b.a_fd, "program data where only frames may be", 37, MSG_NOSIGNAL), 37);
	store_relaxed(&b.b->rx.looks_skipped, 1000);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), -ECONNRESET);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	assert_int_equal(load_relaxed(&b.b->reason), REASON_BAD_FRAME);
	bench_close(&b);
}

/* Only the sender's own lane is on a ring: what TCP has brought it is still read, and the peer sees no end. */
static void a_peer_that_takes_nothing_for_too_long_is_reset(void **state)
{
	static char bytes[4096];

	(void)state;
	for (int closes = 0; closes < 2; closes++) {
		struct bench b = bench_open();
		size_t sent = 0, got = 0;
		ssize_t n;

		bench_link(&b);
		for (int i = 0; i < 8 && !conn_tx_on_ring(b.a); i++) {
			assert_sends(b.a, b.a_fd, "x");
			assert_receives(b.b, b.b_fd, "x");
		}
		assert_true(conn_tx_on_ring(b.a) && !conn_rx_on_ring(b.a));
		assert_sends(b.b, b.b_fd, "unread");
		while ((n = conn_send(b.a, b.a_fd, bytes, sizeof(bytes), MSG_NOSIGNAL)) > 0)
			sent += (size_t)n;
		assert_int_equal(n, -EAGAIN);
		store_relaxed(&b.a->user_timeout_ns, 1);
		while ((n = conn_send(b.a, b.a_fd, bytes, 1, MSG_NOSIGNAL)) == -EAGAIN)
			;
		assert_int_equal(n, -ETIMEDOUT);
		assert_receives(b.a, b.a_fd, "unread");
		assert_int_equal(conn_recv(b.a, b.a_fd, bytes, 1, 0), 0);
		if (closes)
			bench_close_a(&b);
		while ((n = conn_recv(b.b, b.b_fd, bytes, sizeof(bytes), 0)) > 0)
			got += (size_t)n;
		assert_int_equal(got, sent);
		assert_int_equal(n, -ECONNRESET);
		assert_int_equal(conn_recv(b.b, b.b_fd, bytes, 1, 0), 0);
		bench_close_b(&b);
		if (!closes)
			bench_close_a(&b);
	}
}

static void shutdown_of_reading_ends_reads_but_not_arrivals(void **state)
{
	struct bench b = on_rings();
	char got[8];

	(void)state;
	assert_sends(b.a, b.a_fd, "one");
	assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_RD), 0);
	assert_receives(b.b, b.b_fd, "one");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	assert_sends(b.a, b.a_fd, "two");
	assert_receives(b.b, b.b_fd, "two");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	bench_close(&b);
}

static void full_ring_is_eagain_and_room_makes_it_writable(void **state)
{
	struct bench b = on_rings();
	char block[1000] = { 0 };
	size_t sent = 0;
	ssize_t n;

	(void)state;
	while ((n = conn_send(b.a, b.a_fd, block, sizeof(block), MSG_NOSIGNAL)) > 0)
		sent += (size_t)n;
	assert_int_equal(n, -EAGAIN);
	assert_int_equal(sent, ring_rx_bytes(&b.b->link.rx));
	assert_false(conn_ready(b.a, b.a_fd, POLLOUT, 0) & POLLOUT);
	for (size_t taken = 0; taken < sent / 2; taken += sizeof(block))
		assert_int_equal(conn_recv(b.b, b.b_fd, block, sizeof(block), 0), sizeof(block));
	assert_true(conn_ready(b.a, b.a_fd, POLLOUT, 0) & POLLOUT);
	bench_close(&b);
}

/* In a child, since a filter is for ever: what is wrong by number, 0: nothing. */
static int woken_by_its_socket(struct bench *b)
{
	struct pollfd socket = { .fd = b->b_fd, .events = POLLIN }, bell = { .fd = conn_bell_fd(b->b, POLLIN), .events = POLLIN };
	char got[8];

	if (conn_arm(b->b, POLLIN) || !refuse_rings_from(b->a->link.tx.bells.bell_fd, ENOBUFS))
		return 1;
	if (conn_send(b->a, b->a_fd, "x", 1, MSG_NOSIGNAL) != 1)
		return 2;
	if (poll(&bell, 1, 0) != 0 || poll(&socket, 1, 10000) != 1)
		return 3;
	/* And it finds its byte, and no other. */
	if (conn_ready(b->b, b->b_fd, POLLIN, POLLIN) != POLLIN || conn_recv(b->b, b->b_fd, got, sizeof(got), 0) != 1)
		return 4;
	conn_disarm(b->b, POLLIN);
	return poll(&socket, 1, 0) == 0 ? 0 : 5;
}

static void receiver_that_cannot_be_rung_is_woken_by_its_socket(void **state)
{
	struct bench b = on_rings();
	pid_t pid = fork();
	int status;

	(void)state;
	assert_true(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(woken_by_its_socket(&b));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	bench_close(&b);
}

static void record_is_given_back_when_the_last_use_is_dropped(void **state)
{
	struct bench b = on_rings();
	struct conn *c = b.b;

	(void)state;
	assert_true(conn_hold(c, b.b_fd));
	bench_close_b(&b);
	assert_true(load_relaxed(&c->live));
	assert_true(load_relaxed(&c->linked)); /* and its memory may still be looked at */
	assert_int_equal(conn_tx_room(c), ring_rx_bytes(&c->link.rx));
	conn_drop(c);
	assert_false(load_relaxed(&c->live));
	bench_close(&b);
}

/* A thread that looks by a stale pointer at a record that is taken anew meanwhile. */
static void late_use_of_a_former_connection_leaves_the_new_one_whole(void **state)
{
	struct conn *c = conn_opened(CONN_CONNECTED, false);
	struct bench b;

	(void)state;
	assert_non_null(c);
	conn_discard(c);
	conn_hold_locked(c);
	b = on_rings();
	assert_true(b.a == c || b.b == c);
	conn_drop(c);
	bench_close_a(&b);
	bench_close_b(&b);
	assert_false(load_relaxed(&c->live));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(end_follows_the_bytes),
		cmocka_unit_test(end_that_came_after_the_kernel_was_asked_is_told_whole),
		cmocka_unit_test(an_end_is_something_to_read_whatever_the_kernel_was_asked),
		cmocka_unit_test(close_leaves_the_tail_to_the_reader),
		cmocka_unit_test(close_with_bytes_unread_is_a_reset),
		cmocka_unit_test(reset_that_came_after_the_kernel_was_asked_is_told_whole),
		cmocka_unit_test(reset_that_tcp_has_told_is_not_told_by_the_ring),
		cmocka_unit_test(close_before_the_frame_was_read_is_a_reset_if_bytes_follow_it),
		cmocka_unit_test(send_after_the_peers_close_succeeds_once),
		cmocka_unit_test(urgent_byte_to_a_peer_that_is_gone_is_a_broken_pipe),
		cmocka_unit_test(probes_are_not_seen_and_do_not_turn_close_into_a_reset),
		cmocka_unit_test(peer_that_vanishes_with_bytes_unread_is_a_reset),
		cmocka_unit_test(peer_that_vanishes_with_nothing_unread_is_an_end),
		cmocka_unit_test(tail_that_lies_is_a_reset),
		cmocka_unit_test(lie_on_one_lane_is_a_reset_on_the_other_that_is_on_tcp),
		cmocka_unit_test(head_that_lies_is_a_reset),
		cmocka_unit_test(bytes_in_the_socket_that_are_no_probe_are_a_reset),
		cmocka_unit_test(a_peer_that_takes_nothing_for_too_long_is_reset),
		cmocka_unit_test(shutdown_of_reading_ends_reads_but_not_arrivals),
		cmocka_unit_test(full_ring_is_eagain_and_room_makes_it_writable),
		cmocka_unit_test(receiver_that_cannot_be_rung_is_woken_by_its_socket),
		cmocka_unit_test(record_is_given_back_when_the_last_use_is_dropped),
		cmocka_unit_test(late_use_of_a_former_connection_leaves_the_new_one_whole),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
