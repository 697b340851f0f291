/* SPDX-License-Identifier: MIT */
/* Back to TCP for a while, and a second link after the first: RETREAT.md section 6. */
#include "tests/unit/conn_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/doorbell.h"
#include "shim/conn_use.h"
#include "shim/diag.h"
#include "shim/renew.h"
#include "shim/retreat.h"

static struct bench linked(void)
{
	struct bench b = bench_open();

	memset(&told, 0, sizeof(told));
	setsockopt(b.a_fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
	setsockopt(b.b_fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
	bench_link(&b);
	return b;
}

static struct bench switched(void)
{
	struct bench b = linked();

	bench_switch(&b);
	return b;
}

static void take_back(struct conn *c, int fd)
{
	bench_off(true);
	assert_true(conn_hold(c, fd));
	assert_true(renew_wanted(c) == REASON_OFF);
	renew_take_back(c, fd);
	assert_true(renew_wanted(c) == REASON_NONE);
	conn_drop(c);
	bench_off(false);
}

static enum renew_part part(struct conn *c)
{
	enum renew_part r;

	assert_int_equal(conn_trylock_both(c), 0);
	r = renew_part(c);
	conn_unlock_both(c);
	return r;
}

/* A message each way, in whatever state the lanes are. */
static void talk(struct bench *b)
{
	for (int i = 0; i < 3; i++) {
		assert_sends(b->a, b->a_fd, "question");
		assert_receives(b->b, b->b_fd, "question");
		assert_sends(b->b, b->b_fd, "the answer");
		assert_receives(b->a, b->a_fd, "the answer");
	}
}

/* What a switch, and a new link, ask for. */
static void assert_counts_are_the_kernels(struct conn *c, int fd)
{
	struct diag_bytes kernel;
	int r;

	do
		r = diag_counts(fd, c->role == CONN_CONNECTED, &kernel);
	while (r == -EAGAIN);
	assert_int_equal(r, 0);
	assert_int_equal(kernel.written, load_relaxed(&c->tx.tcp_bytes));
	assert_int_equal(kernel.read, load_relaxed(&c->rx.tcp_bytes));
}

static void assert_given_up(struct bench *b)
{
	assert_int_equal(part(b->a), RENEW_ANEW);
	assert_int_equal(part(b->b), RENEW_ANEW);
	assert_counts_are_the_kernels(b->a, b->a_fd);
	assert_counts_are_the_kernels(b->b, b->b_fd);
	assert_true(conn_is_plain(b->a) && conn_is_plain(b->b));
	assert_int_equal(load_relaxed(&b->a->switches), load_relaxed(&b->b->switches));
	assert_int_equal(load_relaxed(&b->a->pinned) + load_relaxed(&b->b->pinned), 0);
	assert_int_equal(load_relaxed(&b->a->tx.mode) + load_relaxed(&b->a->rx.mode), 2 * MODE_PLAIN);
}

static void link_again(struct bench *b)
{
	assert_true(renew_is_clear(b->a) && renew_is_clear(b->b));
	bench_link(b);
	bench_switch(b);
}

static void one_that_is_to_be_off_takes_both_lanes_back(void **state)
{
	struct bench b = switched();

	(void)state;
	take_back(b.a, b.a_fd);
	assert_false(conn_tx_on_ring(b.a));
	assert_false(load_relaxed(&b.a->returned));
	talk(&b);
	assert_true(load_relaxed(&b.a->returned) && load_relaxed(&b.b->returned));
	assert_int_equal(load_relaxed(&b.a->reason), REASON_OFF);
	assert_int_equal(load_relaxed(&b.b->reason), REASON_RETREAT);
	assert_int_equal(told.retreats, 2);
	assert_int_equal(told.retreated, 2);
	assert_given_up(&b);
	talk(&b);
	bench_close(&b);
}

static void another_link_carries_what_follows(void **state)
{
	struct bench b = switched();

	(void)state;
	for (unsigned round = 1; round <= 20; round++) {
		take_back(round % 2 ? b.a : b.b, round % 2 ? b.a_fd : b.b_fd);
		talk(&b);
		assert_given_up(&b);
		link_again(&b);
		talk(&b);
		assert_true(conn_tx_on_ring(b.a) && conn_rx_on_ring(b.a));
		assert_int_equal(load_relaxed(&b.a->switches), 2 * (round + 1));
	}
	assert_int_equal(told.retreats, 2 * 20);
	assert_int_equal(told.retreated, 2);
	bench_close(&b);
	assert_int_equal(told.tcp_tx, told.tcp_rx);
	assert_int_equal(told.ring_tx, told.ring_rx);
}

static void bytes_that_no_program_wrote_are_not_told(void **state)
{
	struct bench b = switched();
	uint64_t sent = load_relaxed(&b.a->tx.tcp_bytes) + load_relaxed(&b.b->tx.tcp_bytes) + b.a->link.tx.tail_pos + b.b->link.tx.tail_pos;

	(void)state;
	assert_sends(b.a, b.a_fd, "unread by then, so that it goes twice");
	take_back(b.a, b.a_fd);
	take_back(b.b, b.b_fd);
	assert_receives(b.b, b.b_fd, "unread by then, so that it goes twice");
	talk(&b);
	assert_given_up(&b);
	assert_true(load_relaxed(&b.a->own_bytes[0]) >= 32 + 37);
	bench_close(&b);
	assert_int_equal(told.tcp_tx + told.ring_tx, sent + 37 + 3 * (8 + 10));
	assert_int_equal(told.tcp_rx + told.ring_rx, sent + 37 + 3 * (8 + 10));
}

static void both_ends_at_once(void **state)
{
	struct bench b = switched();

	(void)state;
	take_back(b.a, b.a_fd);
	take_back(b.b, b.b_fd);
	talk(&b);
	assert_given_up(&b);
	link_again(&b);
	bench_close(&b);
}

static void a_link_that_was_never_used_is_given_up(void **state)
{
	struct bench b = linked();

	(void)state;
	take_back(b.a, b.a_fd);
	assert_true(load_relaxed(&b.a->returned));
	talk(&b);
	assert_given_up(&b);
	assert_int_equal(told.retreats, 0);
	link_again(&b);
	bench_close(&b);
}

/* The peer has acknowledged, or has been acknowledged: either is undone. */
static void an_announcement_comes_to_nothing(void **state)
{
	(void)state;
	for (int calls = 1; calls < 8; calls++) {
		struct bench b = linked();
		char byte;

		for (int i = 0; i < calls; i++) {
			struct conn *from = i / 2 % 2 ? b.b : b.a, *to = i / 2 % 2 ? b.a : b.b;
			int from_fd = i / 2 % 2 ? b.b_fd : b.a_fd, to_fd = i / 2 % 2 ? b.a_fd : b.b_fd;

			if (i % 2)
				assert_int_equal(conn_recv(to, to_fd, &byte, 1, 0), 1);
			else
				assert_int_equal(conn_send(from, from_fd, "x", 1, 0), 1);
		}
		take_back(b.a, b.a_fd);
		if (calls % 2)
			assert_int_equal(conn_recv(calls / 2 % 2 ? b.a : b.b, calls / 2 % 2 ? b.a_fd : b.b_fd, &byte, 1, 0), 1);
		talk(&b);
		talk(&b);
		assert_given_up(&b);
		link_again(&b);
		talk(&b);
		bench_close(&b);
	}
}

static void the_link_stays_for_who_uses_it(void **state)
{
	struct bench b = switched();
	uint8_t *base = b.a->link.segment.base;
	int bell = b.a->link.rx.bells.bell_fd;
	uint32_t generation = b.a->generation;

	(void)state;
	take_back(b.a, b.a_fd);
	talk(&b);
	assert_true(conn_hold(b.a, b.a_fd));
	assert_int_equal(part(b.a), RENEW_ANEW);
	assert_true(conn_is_plain(b.a));
	/* A poll that sleeps on it is woken, and finds another connection. */
	assert_true(b.a->generation != generation);
	assert_int_equal(bell_drain(bell), 1);
	assert_false(renew_is_clear(b.a));
	assert_int_equal(msync(base, 4096, MS_ASYNC), 0);
	conn_drop(b.a);
	assert_int_equal(msync(base, 4096, MS_ASYNC), -1);
	assert_int_equal(fcntl(bell, F_GETFD), -1);
	assert_true(renew_is_clear(b.a));
	bench_close(&b);
}

static void a_close_under_a_use_takes_it_down_as_well(void **state)
{
	struct bench b = switched();
	uint8_t *base = b.a->link.segment.base;
	struct conn *a = b.a;

	(void)state;
	take_back(b.a, b.a_fd);
	talk(&b);
	assert_true(conn_hold(a, b.a_fd));
	assert_int_equal(part(a), RENEW_ANEW);
	bench_close_a(&b);
	assert_int_equal(msync(base, 4096, MS_ASYNC), 0);
	conn_drop(a);
	assert_int_equal(msync(base, 4096, MS_ASYNC), -1);
	assert_false(load_relaxed(&a->live));
	bench_close(&b);
}

static void not_while_another_process_may_look_at_it(void **state)
{
	struct bench b = switched();

	(void)state;
	take_back(b.a, b.a_fd);
	talk(&b);
	fetch_add(&b.a->nr_maps, 1);
	assert_int_equal(part(b.a), RENEW_NOT_NOW);
	fetch_sub(&b.a->nr_maps, 1);
	told.no_part = -EAGAIN;
	assert_int_equal(part(b.a), RENEW_NOT_NOW);
	told.no_part = 0;
	assert_true(conn_is_linked(b.a));
	assert_int_equal(part(b.a), RENEW_ANEW);
	bench_close(&b);
}

static void a_connection_that_ends_keeps_its_link(void **state)
{
	struct bench b = switched();

	(void)state;
	take_back(b.a, b.a_fd);
	talk(&b);
	assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
	assert_int_equal(part(b.b), RENEW_NOT_NOW);
	bench_close(&b);
}

static void what_stays_keeps_it_on_tcp(void **state)
{
	struct bench b = switched();

	(void)state;
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_PASSED));
	talk(&b);
	assert_int_equal(part(b.b), RENEW_NEVER);
	assert_int_equal(part(b.a), RENEW_NEVER);
	assert_true(load_relaxed(&b.a->pinned) && load_relaxed(&b.b->pinned));
	bench_close(&b);

	/* What stays comes later. */
	b = switched();
	take_back(b.a, b.a_fd);
	conn_pin(b.a, REASON_OOB);
	talk(&b);
	assert_int_equal(part(b.a), RENEW_NEVER);
	assert_int_equal(load_relaxed(&b.a->reason), REASON_OOB);
	assert_int_equal(part(b.b), RENEW_ANEW);
	bench_close(&b);
}

/* More unread than a socket takes: what is left when the receiver has drained its ring is not sent again, and who only waits hears of it. */
static void a_sender_that_sleeps_is_told_that_all_was_taken(void **state)
{
	static char much[1 << 16];
	struct bench b = switched();
	size_t sent = 0, got = 0;
	ssize_t n;

	(void)state;
	setsockopt(b.a_fd, SOL_SOCKET, SO_SNDBUF, &(int){ 4096 }, sizeof(int));
	setsockopt(b.b_fd, SOL_SOCKET, SO_RCVBUF, &(int){ 4096 }, sizeof(int));
	while ((n = conn_send(b.a, b.a_fd, much, sizeof(much), 0)) > 0)
		sent += (size_t)n;
	take_back(b.a, b.a_fd);
	assert_int_equal(load_relaxed(&b.a->tx.state), TX_LEFT);
	while (got < sent && (n = conn_recv(b.b, b.b_fd, much, sizeof(much), 0)) > 0)
		got += (size_t)n;
	assert_int_equal(got, sent);
	assert_true(conn_tx_attention(b.a));
	/* As poll does. */
	for (int i = 0; i < 100 && !load_relaxed(&b.b->returned); i++) {
		conn_ready(b.a, b.a_fd, POLLIN, 0);
		conn_ready(b.b, b.b_fd, POLLIN, POLLIN);
	}
	assert_given_up(&b);
	bench_close(&b);
}

/* The other direction goes on by its ring. */
static void an_end_of_one_direction_takes_back_that_one_only(void **state)
{
	struct bench b = switched();

	(void)state;
	assert_sends(b.b, b.b_fd, "the last");
	assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
	assert_receives(b.a, b.a_fd, "the last");
	for (int i = 0; i < 200; i++) {
		assert_sends(b.a, b.a_fd, "more");
		conn_ready(b.a, b.a_fd, POLLIN | POLLOUT, POLLIN | POLLRDHUP);
		assert_receives(b.b, b.b_fd, "more");
		assert_true(conn_tx_on_ring(b.a) && conn_rx_on_ring(b.b));
	}
	/* But it can be asked for. */
	take_back(b.a, b.a_fd);
	assert_false(conn_tx_on_ring(b.a));
	assert_sends(b.a, b.a_fd, "by TCP");
	assert_receives(b.b, b.b_fd, "by TCP");
	bench_close(&b);
}

/* The peer reads in a loop with poll, always finds something, and never sends: its own lane has never left TCP. */
static void who_only_reads_gives_up_its_announcement(void **state)
{
	struct bench b = linked();
	char got[64];

	(void)state;
	for (int i = 0; i < 8; i++) {
		assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, 0), 1);
		conn_ready(b.a, b.a_fd, POLLIN, 0);
		assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 1);
	}
	assert_true(conn_tx_on_ring(b.a));
	assert_int_equal(load_relaxed(&b.b->tx.state), TX_ANNOUNCED);
	assert_int_equal(load_relaxed(&b.a->rx.state), RX_ACKED);
	take_back(b.a, b.a_fd);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, 0), 1);
		conn_ready(b.a, b.a_fd, POLLIN | POLLOUT, POLLOUT);
		conn_ready(b.b, b.b_fd, POLLIN, POLLIN);
		assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 1);
	}
	assert_given_up(&b);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_that_is_to_be_off_takes_both_lanes_back),
		cmocka_unit_test(another_link_carries_what_follows),
		cmocka_unit_test(bytes_that_no_program_wrote_are_not_told),
		cmocka_unit_test(both_ends_at_once),
		cmocka_unit_test(a_link_that_was_never_used_is_given_up),
		cmocka_unit_test(an_announcement_comes_to_nothing),
		cmocka_unit_test(the_link_stays_for_who_uses_it),
		cmocka_unit_test(a_close_under_a_use_takes_it_down_as_well),
		cmocka_unit_test(not_while_another_process_may_look_at_it),
		cmocka_unit_test(a_connection_that_ends_keeps_its_link),
		cmocka_unit_test(what_stays_keeps_it_on_tcp),
		cmocka_unit_test(an_end_of_one_direction_takes_back_that_one_only),
		cmocka_unit_test(who_only_reads_gives_up_its_announcement),
		cmocka_unit_test(a_sender_that_sleeps_is_told_that_all_was_taken),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
