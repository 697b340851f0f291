/* SPDX-License-Identifier: MIT */
/* A link between hosts that both lanes have left is given up, and another may follow (RETREAT.md section 6). */
#include "tests/unit/far_stream.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "shim/conn_far.h"
#include "shim/conn_lock.h"
#include "shim/conn_use.h"
#include "shim/clock.h"
#include "shim/diag.h"
#include "shim/fdtab.h"
#include "shim/frame.h"
#include "shim/idle.h"
#include "shim/options.h"
#include "shim/renew.h"

static enum renew_part part(struct conn *c)
{
	enum renew_part r;

	assert_int_equal(conn_trylock_both(c), 0);
	r = renew_part(c);
	conn_unlock_both(c);
	return r;
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
	assert_int_equal(fake_live(), 0);
	assert_counts_are_the_kernels(b->a, b->a_fd);
	assert_counts_are_the_kernels(b->b, b->b_fd);
	assert_true(conn_is_plain(b->a) && conn_is_plain(b->b));
	assert_int_equal(load_relaxed(&b->a->switches), load_relaxed(&b->b->switches));
	assert_int_equal(load_relaxed(&b->a->pinned) + load_relaxed(&b->b->pinned), 0);
}

/* With bytes of both under way, and some unread. */
static void lose(struct conn *c, struct stream *there, struct stream *back)
{
	assert_int_equal(stream_send(there, 300), 300);
	fake.by_hand = true;
	assert_int_equal(stream_send(there, 500), 500);
	assert_int_equal(stream_send(back, 400), 400);
	fake_fail(qp_of(c), IBV_WC_RETRY_EXC_ERR);
	fake.by_hand = false;
	fake_settle();
}

static void another_link_carries_what_follows(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	uint64_t ring[2];

	for (unsigned round = 1; round <= 10; round++) {
		streams_talk(&there, &back, 8);
		lose(round % 2 ? b.a : b.b, &there, &back);
		streams_talk(&there, &back, 8);
		assert_true(load_relaxed(&b.a->returned) && load_relaxed(&b.b->returned));
		assert_given_up(&b);
		assert_true(renew_is_clear(b.a) && renew_is_clear(b.b));
		assert_false(conn_far_is_dead(b.a) || conn_far_is_dead(b.b));
		streams_talk(&there, &back, 8);
		bench_join_far(&b, RING);
		bench_switch(&b);
		assert_int_equal(load_relaxed(&b.a->switches), 2 * (round + 1));
		ring[0] = b.a->link.tx.tail_pos;
		streams_talk(&there, &back, 8);
		assert_true(conn_tx_on_ring(b.a) && conn_rx_on_ring(b.a) && b.a->link.tx.tail_pos > ring[0]);
	}
	bench_close_far(&b);
}

/* Of which the other lane had not left TCP. */
static void one_lane_was_enough(void **state)
{
	struct bench b = bench_open();
	struct stream there = a_to_b(&b), back = b_to_a(&b);

	bench_link_far_of(&b, RING);
	stream_moves_out(&there, &back);
	assert_true(conn_tx_on_ring(b.a) && !conn_tx_on_ring(b.b));
	far_engine->stop(&b.a->link);
	streams_talk(&there, &back, 8);
	streams_talk(&there, &back, 8);
	assert_given_up(&b);
	streams_talk(&there, &back, 8);
	bench_close_far(&b);
}

/* Who only sends has acknowledged the other's announcement, who only receives never sends behind it; or has not. */
static void what_was_announced_stands_or_does_not(void **state)
{
	for (int stands = 0; stands < 2; stands++) {
		struct bench b = bench_open();
		struct stream there = a_to_b(&b), back = b_to_a(&b);

		bench_link_far_of(&b, RING);
		stream_moves_out(&there, NULL);
		assert_true(conn_tx_on_ring(b.a));
		assert_int_equal(conn_lock_tx(b.b), 0);
		switch_announce(b.b);
		lane_unlock(&b.b->tx.lock);
		far_pump(b.b, 0);
		for (int i = 0; i < 4 && stands; i++)
			assert_int_equal(stream_take(&back, 1), -EAGAIN);
		assert_int_equal(load_relaxed(&b.b->tx.state), TX_ANNOUNCED);
		assert_int_equal(load_relaxed(&b.a->rx.state), stands ? RX_ACKED : RX_SEEK);
		far_engine->stop(&b.a->link);
		assert_int_equal(stream_send(&there, 1000), 1000);
		stream_end(&there);
		for (int i = 0; i < 100 && !load_relaxed(&b.a->returned); i++) {
			conn_ready(b.b, b.b_fd, POLLIN, 0);
			conn_frames_try(b.a, b.a_fd);
		}
		assert_int_equal(load_relaxed(&b.a->switches), stands ? 2 : 1);
		assert_given_up(&b);
		streams_talk(&there, &back, 8);
		bench_close_far(&b);
	}
}

/* Who has acknowledged stands where the other has long been gone from: that one's next announcement is not meant. */
static void an_announcement_that_was_voided_is_not_carried_out(void **state)
{
	struct bench b = bench_open();
	struct stream there = a_to_b(&b), back = b_to_a(&b);

	bench_link_far_of(&b, RING);
	stream_moves_out(&there, NULL);
	far_pump(b.b, 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(stream_take(&back, 1), -EAGAIN);
	assert_int_equal(load_relaxed(&b.a->rx.state), RX_ACKED);
	fake.by_hand = true;
	/* Voided by what is sent on, announced again behind it, and no word of that comes. */
	conn_lock_tx(b.b);
	lane_void(b.b->link.tx.ctl, b.b->tx.announced_seq);
	conn_tx_set(b.b, TX_SEEK);
	assert_int_equal(send(b.b_fd, (uint8_t[]){ byte_at(0), byte_at(1) }, 2, 0), 2);
	store_relaxed(&b.b->tx.tcp_bytes, load_relaxed(&b.b->tx.tcp_bytes) + 2);
	back.sent = 2;
	switch_announce(b.b);
	lane_unlock(&b.b->tx.lock);
	assert_int_equal(load_relaxed(&b.b->tx.state), TX_ANNOUNCED);
	far_engine->stop(&b.a->link);
	assert_int_equal(stream_send(&there, 1000), 1000);
	fake.by_hand = false;
	fake_settle();
	stream_end(&there);
	stream_end(&back);
	assert_int_equal(load_relaxed(&b.b->switches), 1);
	streams_talk(&there, &back, 8);
	assert_given_up(&b);
	bench_close_far(&b);
}

/* As `ringway off` asks. */
static void one_that_is_to_be_off_takes_both_lanes_back(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);

	streams_talk(&there, &back, 8);
	bench_off(true);
	assert_true(conn_hold(b.a, b.a_fd));
	assert_true(renew_wanted(b.a) == REASON_OFF);
	renew_take_back(b.a, b.a_fd);
	assert_true(renew_wanted(b.a) == REASON_NONE);
	conn_drop(b.a);
	bench_off(false);
	assert_false(conn_tx_on_ring(b.a));
	streams_talk(&there, &back, 8);
	assert_true(load_relaxed(&b.a->returned) && load_relaxed(&b.b->returned));
	assert_int_equal(load_relaxed(&b.a->reason), REASON_OFF);
	assert_given_up(&b);
	streams_talk(&there, &back, 8);
	bench_close_far(&b);
}

static void the_link_stays_for_who_uses_it(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	int wait_fd = far_wait_fd(b.a);

	lose(b.a, &there, &back);
	streams_talk(&there, &back, 8);
	assert_true(conn_hold(b.a, b.a_fd));
	assert_int_equal(part(b.a), RENEW_ANEW);
	/* Who has found it linked before. */
	assert_int_equal(conn_pump_far(b.a, VERBS_EMPTY), -ESRCH);
	assert_int_equal(conn_far_fd(b.a), -1);
	assert_false(conn_far_is_orphaned(b.a));
	assert_true(fcntl(wait_fd, F_GETFD) >= 0);
	assert_false(renew_is_clear(b.a));
	conn_drop(b.a);
	assert_int_equal(fcntl(wait_fd, F_GETFD), -1);
	assert_true(renew_is_clear(b.a));
	streams_talk(&there, &back, 8);
	bench_close_far(&b);
}

/* An end in front of it is none, and only the link's words say so. */
static void what_was_promised_comes_first(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b);
	uint8_t frame[FRAME_SIZE], bytes[300];
	uint64_t at = b.a->link.tx.tail_pos;

	frame_make(frame, FRAME_HAVE, b.a->nonce, b.a->peer_nonce, b.b->link.tx.tail_pos);
	assert_int_equal(send(b.a_fd, frame, sizeof(frame), 0), sizeof(frame));
	frame_make(frame, FRAME_UPTO, b.a->nonce, b.a->peer_nonce, at + 300);
	assert_int_equal(send(b.a_fd, frame, sizeof(frame), 0), sizeof(frame));
	frame_make(frame, FRAME_RETREAT, b.a->nonce, b.a->peer_nonce, at);
	assert_int_equal(send(b.a_fd, frame, sizeof(frame), 0), sizeof(frame));
	for (unsigned i = 0; i < 300; i++)
		bytes[i] = byte_at(i);
	for (int i = 0; i < 100 && !load_relaxed(&b.b->returned); i++) {
		conn_ready(b.b, b.b_fd, POLLIN, POLLIN);
		assert_int_equal(stream_take(&there, RING), -EAGAIN);
	}
	assert_true(load_relaxed(&b.b->returned));
	assert_int_equal(part(b.b), RENEW_NOT_NOW);
	there.sent = 300;
	assert_int_equal(send(b.a_fd, bytes, 299, 0), 299);
	while (there.got < 299)
		stream_take(&there, RING);
	assert_int_equal(part(b.b), RENEW_NOT_NOW);
	assert_int_equal(send(b.a_fd, bytes + 299, 1, 0), 1);
	while (there.got < 300)
		stream_take(&there, RING);
	assert_int_equal(part(b.b), RENEW_ANEW);
	bench_close_far(&b);
}

/* For want of traffic, which is nobody's loss: the next traffic does not have to wait for it. */
static void what_nothing_goes_over_is_given_up(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	int64_t at = now_ns();

	options.idle_ns = INT64_C(8000000000);
	store_relaxed(&idle_word, 0);
	idle_linked(b.a);
	streams_talk(&there, &back, 8);
	/* The other end is in a process that does not look: it hears of it where the program waits. */
	assert_ptr_equal(fdtab_remove(b.b_fd), b.b);
	for (int i = 1; i <= 12 && !conn_far_is_dead(b.a); i++) {
		assert_true(conn_tx_on_ring(b.a) && conn_rx_on_ring(b.a));
		idle_look(at += INT64_C(1000000000) + 1);
	}
	assert_true(conn_far_is_dead(b.a) && !conn_tx_on_ring(b.a));
	assert_int_equal(load_relaxed(&b.a->reason), REASON_IDLE);
	assert_true(fdtab_install(b.b_fd, b.b));
	conn_ready(b.b, b.b_fd, POLLIN, 0);
	for (int i = 0; i < 8 && idle_is_watched(); i++)
		idle_look(at += INT64_C(1000000000) + 1);
	streams_talk(&there, &back, 8);
	assert_true(load_relaxed(&b.a->returned) && load_relaxed(&b.b->returned));
	assert_int_equal(load_relaxed(&b.b->reason), REASON_RETREAT);
	assert_given_up(&b);
	options.idle_ns = 0;
	store_relaxed(&idle_word, 0);
	bench_close_far(&b);
}

/* What the peer's program has not read is its own, and what this one's has not is left alone. */
static void what_is_unread_is_not_given_up(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	int64_t at = now_ns();

	options.idle_ns = INT64_C(8000000000);
	store_relaxed(&idle_word, 0);
	idle_linked(b.b);
	assert_ptr_equal(fdtab_remove(b.a_fd), b.a);
	assert_int_equal(stream_send(&there, 300), 300);
	for (int i = 0; i < 30; i++)
		idle_look(at += INT64_C(1000000000) + 1);
	assert_false(conn_far_is_dead(b.b));
	assert_false(idle_is_watched());
	assert_true(fdtab_install(b.a_fd, b.a));
	streams_talk(&there, &back, 8);
	options.idle_ns = 0;
	store_relaxed(&idle_word, 0);
	bench_close_far(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_link_carries_what_follows),
		cmocka_unit_test(one_lane_was_enough),
		cmocka_unit_test(what_was_announced_stands_or_does_not),
		cmocka_unit_test(an_announcement_that_was_voided_is_not_carried_out),
		cmocka_unit_test(one_that_is_to_be_off_takes_both_lanes_back),
		cmocka_unit_test(the_link_stays_for_who_uses_it),
		cmocka_unit_test(what_was_promised_comes_first),
		cmocka_unit_test(what_nothing_goes_over_is_given_up),
		cmocka_unit_test(what_is_unread_is_not_given_up),
	};

	return cmocka_run_group_tests_name("renew_far", tests, bench_setup_group, NULL);
}
