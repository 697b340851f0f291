/* SPDX-License-Identifier: MIT */
/* An end of a connection between hosts goes while its link lives (RETREAT.md section 9): what has its socket afterwards knows of no ring. */
#include "tests/unit/far_bench.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/verbs_engine.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_lock.h"
#include "shim/far.h"
#include "shim/options.h"
#include "shim/retreat.h"
#include "shim/retreat_far_go.h"
#include "tests/unit/far_stream.h"

static const size_t sizes[] = { 0, 1, 31, 500, 5000, 8000 };
#define NR_SIZES (sizeof(sizes) / sizeof(*sizes))

/* The successor: nothing but the socket. */
static void take_raw_until(struct stream *s, bool ended)
{
	uint8_t bytes[RING];
	ssize_t n;

	for (int tries = 0; s->got < s->sent && tries < 20000; tries++) {
		conn_ready(s->from, s->from_fd, POLLIN, 0);
		n = recv(s->to_fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		for (ssize_t i = 0; i < n; i++)
			assert_int_equal(bytes[i], byte_at(s->got + (uint64_t)i));
		s->got += n > 0 ? (uint64_t)n : 0;
		if (n < 0)
			poll(&(struct pollfd){ .fd = s->to_fd, .events = POLLIN }, 1, 1);
	}
	assert_int_equal(s->got, s->sent);
	n = recv(s->to_fd, bytes, 1, MSG_DONTWAIT);
	assert_int_equal(n, ended ? 0 : -1);
}

static void take_raw(struct stream *s)
{
	take_raw_until(s, false);
}

static void send_raw(struct stream *s, size_t len)
{
	uint8_t bytes[RING];

	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(s->sent + i);
	assert_int_equal(send(s->from_fd, bytes, len, 0), len);
	s->sent += len;
}

/* As `i` of all ways has it: how much was sent, how much of it read, how much went back. */
static void some_is_under_way(struct stream *there, struct stream *back, size_t i)
{
	size_t sent = sizes[i % NR_SIZES], taken = sizes[i / NR_SIZES % NR_SIZES], back_sent = sizes[i / NR_SIZES / NR_SIZES];

	if (sent)
		assert_int_equal(stream_send(there, sent), sent);
	if (taken && taken <= sent)
		assert_int_equal(stream_take(there, taken), taken);
	if (back_sent)
		assert_int_equal(stream_send(back, back_sent), back_sent);
}

/* Over TCP by now, and to the end. */
static void both_go_on(struct bench *b, struct stream *there, struct stream *back)
{
	streams_talk(there, back, 4);
	assert_true(load_relaxed(&b->a->returned) && load_relaxed(&b->b->returned));
	bench_close_far(b);
}

static void a_successor_finds_what_was_not_read(void **state)
{
	for (size_t i = 0; i < NR_SIZES * NR_SIZES * NR_SIZES; i++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);

		some_is_under_way(&there, &back, i);
		/* Its peer makes no call meanwhile. */
		assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
		assert_true(load_relaxed(&b.b->returned));
		send_raw(&back, 77);
		assert_int_equal(stream_send(&there, 99), 99);
		take_raw(&there);
		stream_end(&back);
		assert_true(load_relaxed(&b.a->returned));
		bench_close_far(&b);
	}
}

/*
 * The ring stays readable, and what lies there comes again. The same where the link is dead by then and nobody has found out: a child has none by
 * which it could.
 */
static void who_forks_goes_on_over_tcp(void **state)
{
	for (size_t i = 0; i < 2 * NR_SIZES * NR_SIZES * NR_SIZES; i++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);

		some_is_under_way(&there, &back, i / 2);
		fake.removed = i & 1;
		retreat_far_all_away(&b.b, &b.b_fd, 1, 0, REASON_SHARED);
		assert_true(load_relaxed(&b.b->link_dead));
		/* Nothing has to be waited for that had come. */
		if (there.got < there.sent)
			assert_true(stream_take(&there, 10) > 0);
		both_go_on(&b, &there, &back);
		fake.removed = false;
	}
}

/* Read by the other end's program while this end says that it goes: from which byte on TCP goes on has been said by then. */
static struct stream *reads_meanwhile;
static const struct verbs_table *engine;

static int flush_and_read(struct ring_link *link, int limit_ms)
{
	struct stream *s = reads_meanwhile;

	if (limit_ms && s && s->got < s->sent)
		assert_true(stream_take(s, RING) > 0);
	return engine->flush(link, limit_ms);
}

static void what_is_read_while_an_end_goes_is_not_missed(void **state)
{
	/* As much as is told of, and a little more or less. */
	for (int more = -1; more < 2; more++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);
		ssize_t all = RING * 3 / 4 - (ssize_t)(b.a->link.tx.tail_pos % (RING / 128)) + more;
		struct verbs_table table = *far_engine;

		assert_int_equal(stream_send(&there, (size_t)all), all);
		engine = far_engine;
		table.flush = flush_and_read;
		reads_meanwhile = &there;
		far_engine = &table;
		retreat_far_all_away(&b.a, &b.a_fd, 1, 0, REASON_SHARED);
		far_engine = engine;
		assert_true(load_relaxed(&b.a->link_dead));
		assert_int_equal(there.got, there.sent);
		for (int n = 0; n < 4; n++) {
			stream_send(&there, 1000);
			stream_send(&back, 700);
			stream_take(&back, 900);
			stream_take(&there, 300);
		}
		stream_end(&there);
		stream_end(&back);
		bench_close_far(&b);
	}
}

/* Its peer has read everything, answers and closes: before it is known that the link lives, or while this end says that it goes. */
static struct bench *closes_meanwhile;
static int closes_at;

static int flush_and_close(struct ring_link *link, int limit_ms)
{
	struct bench *b = closes_meanwhile;
	struct stream back;

	if (limit_ms && b->b && link == &b->a->link && closes_at-- == 0) {
		back = b_to_a(b);
		assert_int_equal(stream_send(&back, 70), 70);
		bench_close_b(b);
	}
	return engine->flush(link, limit_ms);
}

static void who_closes_while_an_end_goes_has_ended(void **state)
{
	for (int i = 0; i < 2 * 2; i++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);
		struct verbs_table table = *far_engine;
		char byte;

		assert_int_equal(stream_send(&there, 500), 500);
		assert_int_equal(stream_take(&there, 500), 500);
		engine = far_engine;
		table.flush = flush_and_close;
		closes_meanwhile = &b;
		closes_at = i / 2;
		far_engine = &table;
		if (i % 2)
			retreat_back_unlocked(b.a, b.a_fd, REASON_OOB);
		else
			retreat_far_all_away(&b.a, &b.a_fd, 1, 0, REASON_SHARED);
		far_engine = engine;
		assert_null(b.b);
		back.sent = 70;
		assert_int_equal(stream_take(&back, RING), 70);
		assert_int_equal(conn_recv(b.a, b.a_fd, &byte, 1, 0), 0);
		bench_close_a(&b);
		assert_int_equal(fake_live(), 0);
	}
}

/* A member of the family, which has read some of it by then. */
static void who_was_forked_hands_on_what_is_left(void **state)
{
	for (size_t i = 0; i < NR_SIZES; i++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b);

		assert_int_equal(stream_send(&there, 8000), 8000);
		retreat_far_all_away(&b.b, &b.b_fd, 1, 0, REASON_SHARED);
		if (sizes[i])
			assert_int_equal(stream_take(&there, sizes[i]), sizes[i]);
		conn_ready(b.a, b.a_fd, POLLIN, 0);
		conn_ready(b.b, b.b_fd, POLLIN, POLLIN);
		assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
		take_raw(&there);
		bench_close_far(&b);
	}
}

/* What the first one has sent is sent again, as far as it is not known to have been read. */
static void both_may_go(void **state)
{
	for (size_t i = 0; i < NR_SIZES; i++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);

		if (sizes[i])
			assert_int_equal(stream_send(&there, sizes[i]), sizes[i]);
		if (sizes[i] > 40)
			assert_int_equal(stream_take(&there, sizes[i] / 3), sizes[i] / 3);
		retreat_far_all_away(&b.a, &b.a_fd, 1, 0, REASON_SHARED);
		assert_int_equal(stream_send(&back, 60), 60);
		assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
		assert_int_equal(stream_send(&there, 50), 50);
		take_raw(&there);
		stream_end(&back);
		bench_close_far(&b);
	}
}

/* Both become other programs, one after the other, and what neither has read is there for either. */
static void both_may_go_for_good(void **state)
{
	for (size_t i = 0; i < NR_SIZES * NR_SIZES; i++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);
		size_t one = sizes[i % NR_SIZES], other = sizes[i / NR_SIZES];

		if (one)
			assert_int_equal(stream_send(&there, one), one);
		if (other)
			assert_int_equal(stream_send(&back, other), other);
		if (one > 40)
			assert_int_equal(stream_take(&there, one / 3), one / 3);
		assert_true(retreat_go_unlocked(b.a, b.a_fd, REASON_EXEC));
		assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
		send_raw(&there, 50);
		send_raw(&back, 60);
		take_raw(&there);
		take_raw(&back);
		bench_close_far(&b);
	}
}

static void *goes(void *arg)
{
	struct bench *b = arg;

	return retreat_go_unlocked(b->b, b->b_fd, REASON_EXEC) ? b : NULL;
}

/* The link is dead, and what the one that leaves has to say comes with its next call. */
static void who_goes_awaits_what_one_says_that_leaves(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	pthread_t thread;
	void *gone;

	assert_int_equal(stream_send(&there, 500), 500);
	assert_int_equal(stream_take(&there, 100), 100);
	assert_int_equal(stream_send(&back, 70), 70);
	assert_true(conn_far_stop(b.a));
	assert_int_equal(pthread_create(&thread, NULL, goes, &b), 0);
	while (!load_relaxed(&b.b->pinned))
		sched_yield();
	assert_int_equal(stream_send(&there, 30), 30);
	assert_int_equal(pthread_join(thread, &gone), 0);
	assert_ptr_equal(gone, &b);
	take_raw(&there);
	send_raw(&back, 10);
	stream_end(&back);
	bench_close_far(&b);
}

static void an_announcement_that_stands_is_void(void **state)
{
	for (int acked = 0; acked < 2; acked++) {
		struct bench b = bench_open();
		struct stream there = a_to_b(&b), back = b_to_a(&b);

		bench_link_far_of(&b, RING);
		for (int i = 0; i < 8 && load_relaxed(&b.b->rx.state) != RX_ACKED; i++)
			stream_take(&there, 1);
		assert_int_equal(load_relaxed(&b.b->rx.state), RX_ACKED);
		assert_int_equal(load_relaxed(&b.a->tx.state), TX_ANNOUNCED);
		assert_true(acked ? retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC) : retreat_go_unlocked(b.a, b.a_fd, REASON_EXEC));
		if (acked) {
			assert_int_equal(stream_send(&there, 100), 100);
			take_raw(&there);
			send_raw(&back, 100);
			stream_end(&back);
		} else {
			send_raw(&there, 100);
			stream_end(&there);
			assert_int_equal(stream_send(&back, 100), 100);
			take_raw(&back);
		}
		bench_close_far(&b);
	}
}

/* The peer's frame is in the stream, and nobody has looked. */
static void a_switch_that_has_come_is_carried_out(void **state)
{
	struct bench b = bench_open();
	struct stream there = a_to_b(&b);

	bench_link_far_of(&b, RING);
	for (int i = 0; i < 8 && load_relaxed(&b.b->rx.state) != RX_ACKED; i++)
		stream_take(&there, 1);
	assert_int_equal(stream_send(&there, 300), 300);
	assert_true(conn_tx_on_ring(b.a));
	assert_int_equal(load_relaxed(&b.b->rx.state), RX_ACKED);
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_int_equal(stream_send(&there, 100), 100);
	take_raw(&there);
	bench_close_far(&b);
}

/* Who ends its stream says so before it writes its frame: no frame behind a receiver that has gone, and none of which that knows nothing. */
static void an_end_and_a_going_know_of_each_other(void **state)
{
	for (int first = 0; first < 2; first++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b);
		char byte;

		assert_int_equal(stream_send(&there, 500), 500);
		if (first) {
			/* Told, and then it sees that the other one has gone. */
			conn_fin_await(b.a, true);
			assert_int_equal(load_relaxed(&b.a->tx.fin), TX_FIN_DUE);
			retreat_far_all_away(&b.b, &b.b_fd, 1, 0, REASON_SHARED);
		} else {
			assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
		}
		assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
		if (first) {
			while (there.got < there.sent)
				assert_true(stream_take(&there, RING) > 0);
			assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), 0);
		} else {
			take_raw_until(&there, true);
		}
		bench_close_far(&b);
	}
}

/* ... as it does where the switch is still to be taken, behind bytes that were not read: told before, told in the same moment, or not told. */
static void an_end_behind_a_switch_that_comes_is_one(void **state)
{
	uint32_t little = switch_little;

	switch_little = 0;
	for (int when = 0; when < 3; when++) {
		struct bench b = bench_open();
		struct stream there = a_to_b(&b);
		char byte;

		bench_link_far_of(&b, RING);
		for (int i = 0; i < 8 && load_relaxed(&b.b->rx.state) != RX_ACKED; i++) {
			assert_int_equal(stream_send(&there, 10), 10);
			assert_int_equal(stream_take(&there, 2), 2);
		}
		assert_int_equal(stream_send(&there, 300), 300);
		assert_true(conn_tx_on_ring(b.a));
		if (when == 2)
			assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
		else if (when)
			conn_fin_await(b.a, true);
		retreat_far_all_away(&b.b, &b.b_fd, 1, 0, REASON_SHARED);
		assert_int_equal(load_relaxed(&b.b->rx.state), RX_ACKED);
		assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
		while (there.got < there.sent)
			assert_true(stream_take(&there, RING) > 0);
		assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), 0);
		bench_close_far(&b);
	}
	switch_little = little;
}

/* An end that has been told leaves nobody who could send again. */
static void behind_an_end_only_what_was_read_is_handed_on(void **state)
{
	for (int read_all = 0; read_all < 2; read_all++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);

		assert_int_equal(stream_send(&there, 500), 500);
		assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
		if (read_all)
			assert_int_equal(stream_take(&there, 500), 500);
		assert_int_equal(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC), read_all);
		if (read_all) {
			send_raw(&back, 100);
			stream_end(&back);
		}
		bench_close_far(&b);
	}
}

/* Its own end keeps nobody from going: the peer finds that behind the ring, as it would have, and goes on sending. */
static void who_has_ended_its_stream_may_go(void **state)
{
	for (size_t i = 0; i < 2 * 2 * NR_SIZES * NR_SIZES * NR_SIZES; i++) {
		bool forks = i & 1, seen = i & 2;
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);

		some_is_under_way(&there, &back, i >> 2);
		assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
		if (seen)
			conn_ready(b.a, b.a_fd, POLLIN, POLLIN | POLLRDHUP);
		if (forks)
			retreat_far_all_away(&b.b, &b.b_fd, 1, 0, REASON_SHARED);
		else
			assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
		assert_true(load_relaxed(&b.b->link_dead));
		assert_int_equal(stream_send(&there, 99), 99);
		if (forks)
			stream_end(&there);
		else
			take_raw(&there);
		while (stream_take(&back, 300) > 0)
			;
		assert_int_equal(back.got, back.sent);
		assert_int_equal(stream_take(&back, 1), 0);
		bench_close_far(&b);
	}
}

/* Where both streams have ended the peer may let go at any moment, and nothing is said: whatever of its stream was read, and by whichever road that came. */
static void behind_both_ends_nothing_is_said(void **state)
{
	for (int i = 0; i < 4; i++) {
		bool on_tcp = i == 3;
		struct bench b = on_tcp ? bench_open() : open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);
		char byte;

		if (on_tcp) {
			bench_link_far_of(&b, RING);
			stream_moves_out(&there, &back);
			assert_true(conn_tx_on_ring(b.a) && !conn_tx_on_ring(b.b));
		}
		assert_int_equal(stream_send(&back, 100), 100);
		assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
		assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
		if (i)
			assert_int_equal(stream_take(&back, RING), 100);
		if (i == 2)
			assert_int_equal(conn_recv(b.a, b.a_fd, &byte, 1, 0), 0);
		retreat_far_all_away(&b.a, &b.a_fd, 1, 0, REASON_SHARED);
		assert_false(load_relaxed(&b.a->link_dead));
		bench_close_b(&b);
		if (!i)
			assert_int_equal(stream_take(&back, RING), 100);
		assert_int_equal(conn_recv(b.a, b.a_fd, &byte, 1, 0), 0);
		bench_close_far(&b);
	}
}

/* What a send announced, and the peer has acknowledged, is void when that goes, whatever comes instead of the frame. */
static void who_has_gone_awaits_no_frame(void **state)
{
	struct bench b = bench_open();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	char byte = 0;

	bench_link_far_of(&b, RING);
	for (int i = 0; i < 8 && load_relaxed(&b.b->rx.state) != RX_ACKED; i++)
		stream_take(&there, 1);
	assert_int_equal(load_relaxed(&b.b->rx.state), RX_ACKED);
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	/* A frame begins so. */
	assert_int_equal(conn_send(b.a, b.a_fd, "R", 1, MSG_NOSIGNAL), 1);
	assert_int_equal(poll(&(struct pollfd){ .fd = b.b_fd, .events = POLLIN }, 1, -1), 1);
	assert_int_equal(recv(b.b_fd, &byte, 1, 0), 1);
	assert_int_equal(byte, 'R');
	send_raw(&back, 100);
	stream_end(&back);
	bench_close_far(&b);
}

/* Other threads go on meanwhile, and afterwards: the end was nobody's to tell. */
static void an_exec_that_fails_leaves_streams_that_go_on(void **state)
{
	for (size_t i = 0; i < NR_SIZES * NR_SIZES * NR_SIZES; i++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);

		some_is_under_way(&there, &back, i);
		conn_exec_all(&b.a, &b.a_fd, 1);
		assert_int_equal(stream_send(&there, 500), 500);
		stream_take(&back, 300);
		conn_exec_failed(b.a, b.a_fd);
		both_go_on(&b, &there, &back);
	}
}

/* A link that is made while it is not known yet whether the exec succeeds is left alone. */
static void nothing_leaves_tcp_during_an_exec(void **state)
{
	struct bench b = bench_open();
	struct stream there = a_to_b(&b);

	conn_exec_all(&b.a, &b.a_fd, 1);
	bench_link_far_of(&b, RING);
	stream_moves_out(&there, NULL);
	assert_int_equal(load_relaxed(&b.a->tx.state), TX_SEEK);
	conn_exec_failed(b.a, b.a_fd);
	stream_moves_out(&there, NULL);
	assert_true(conn_tx_on_ring(b.a));
	stream_end(&there);
	bench_close_far(&b);
}

/* As before an exec that leaves no choice, and fails: nobody goes any more, and nothing comes twice. */
static void behind_an_end_that_was_told_nothing_is_sent_again(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b);
	char byte;

	assert_int_equal(stream_send(&there, 500), 500);
	assert_int_equal(conn_lock_both(b.a), 0);
	conn_end_lanes(b.a, b.a_fd);
	conn_unlock_both(b.a);
	retreat_far_all_away(&b.a, &b.a_fd, 1, 0, REASON_SHARED);
	assert_false(load_relaxed(&b.a->link_dead));
	assert_true(conn_far_stop(b.a));
	bench_close_a(&b);
	assert_int_equal(stream_take(&there, RING), 500);
	assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), 0);
	bench_close_far(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_successor_finds_what_was_not_read),
		cmocka_unit_test(who_forks_goes_on_over_tcp),
		cmocka_unit_test(what_is_read_while_an_end_goes_is_not_missed),
		cmocka_unit_test(who_closes_while_an_end_goes_has_ended),
		cmocka_unit_test(who_was_forked_hands_on_what_is_left),
		cmocka_unit_test(both_may_go),
		cmocka_unit_test(both_may_go_for_good),
		cmocka_unit_test(who_goes_awaits_what_one_says_that_leaves),
		cmocka_unit_test(an_announcement_that_stands_is_void),
		cmocka_unit_test(a_switch_that_has_come_is_carried_out),
		cmocka_unit_test(an_end_and_a_going_know_of_each_other),
		cmocka_unit_test(an_end_behind_a_switch_that_comes_is_one),
		cmocka_unit_test(behind_an_end_only_what_was_read_is_handed_on),
		cmocka_unit_test(who_has_ended_its_stream_may_go),
		cmocka_unit_test(behind_both_ends_nothing_is_said),
		cmocka_unit_test(who_has_gone_awaits_no_frame),
		cmocka_unit_test(an_exec_that_fails_leaves_streams_that_go_on),
		cmocka_unit_test(nothing_leaves_tcp_during_an_exec),
		cmocka_unit_test(behind_an_end_that_was_told_nothing_is_sent_again),
	};

	return cmocka_run_group_tests_name("retreat_gone", tests, bench_setup_group, NULL);
}
