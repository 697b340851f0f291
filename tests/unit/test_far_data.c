/* SPDX-License-Identifier: MIT */
/* Bytes between hosts through the data calls: what they cost, what a peek, a full ring and a dead link look like, and that a sleeper is woken. */
#include "tests/unit/far_bench.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "shim/clock.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/options.h"
#include "tests/unit/verbs_fixture.h"

#define RING (UINT32_C(1) << 18)
#define CHUNK 65536

static uint8_t chunk[CHUNK];

struct cost {
	uint64_t wr, doorbells, send_cqes, recv_posts, recvs, credits, arms, fetches;
};

static uint64_t now_of(const _Atomic uint64_t *count)
{
	return load_relaxed((_Atomic uint64_t *)count);
}

static struct cost cost_of(struct conn *c)
{
	const struct verbs_counts *n = far_engine->counts(&c->link);

	return (struct cost){ now_of(&n->wr), now_of(&n->doorbells), now_of(&n->send_cqes), now_of(&n->recv_posts), now_of(&n->recvs),
			      now_of(&n->credits), now_of(&n->arms), now_of(&n->fetches) };
}

static struct bench open_far(void)
{
	struct bench b = bench_open();

	bench_link_far_of(&b, RING);
	bench_switch(&b);
	return b;
}

static void quiet_ping_pong_is_one_request_and_one_doorbell_a_message(void **state)
{
	struct bench b = open_far();
	struct cost was = cost_of(b.a), now;
	char got[64];

	for (int i = 0; i < 3000; i++) {
		assert_int_equal(conn_send(b.a, b.a_fd, "question", 8, 0), 8);
		assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 8);
		assert_int_equal(conn_send(b.b, b.b_fd, "answered", 8, 0), 8);
		assert_int_equal(conn_recv(b.a, b.a_fd, got, sizeof(got), 0), 8);
	}
	now = cost_of(b.a);
	assert_int_equal(now.wr - was.wr, 3000);
	assert_int_equal(now.doorbells - was.doorbells, 3000);
	assert_true((now.send_cqes - was.send_cqes) * 16 <= 3000);
	assert_true((now.recv_posts - was.recv_posts) * 8 <= now.recvs - was.recvs);
	assert_int_equal(now.credits, was.credits);
	assert_int_equal(now.arms, was.arms);
	assert_int_equal(now.fetches, was.fetches);
	bench_close_far(&b);
}

static unsigned clock_reads;

static int counting_clock(clockid_t id, struct timespec *t)
{
	clock_reads++;
	return clock_gettime(id, t);
}

/* Where the kernel has no good clock, that is a system call and more: not with each message, nor with each look at a lane that is empty or full. */
static void no_message_asks_for_the_time(void **state)
{
	struct bench b = open_far();
	char got[64];

	clock_use(counting_clock);
	for (int i = 0; i < 300; i++) {
		assert_int_equal(conn_send(b.a, b.a_fd, "question", 8, 0), 8);
		assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 8);
		assert_nothing(b.b, b.b_fd);
	}
	while (conn_send(b.a, b.a_fd, chunk, CHUNK, 0) > 0)
		;
	for (int i = 0; i < 300; i++)
		assert_int_equal(conn_send(b.a, b.a_fd, chunk, CHUNK, 0), -EAGAIN);
	assert_int_equal(clock_reads, 0);
	clock_use(clock_gettime);
	while (conn_recv(b.b, b.b_fd, chunk, CHUNK, 0) > 0)
		;
	bench_close_far(&b);
}

static void saturated_small_messages_share_requests(void **state)
{
	struct bench b = open_far();
	uint64_t wr = cost_of(b.a).wr;
	size_t got = 0;

	fake.by_hand = true;
	for (int sent = 0; sent < 20000;) {
		if (conn_send(b.a, b.a_fd, "8 bytes.", 8, 0) == 8)
			sent++;
		/* The wire is as slow as forty calls. */
		if (sent % 40 == 0) {
			ssize_t n;

			fake_settle();
			n = conn_recv(b.b, b.b_fd, chunk, sizeof(chunk), 0);
			got += n > 0 ? (size_t)n : 0;
		}
	}
	fake.by_hand = false;
	while (got < 8 * 20000) {
		ssize_t n;

		conn_pump(b.a, VERBS_LEAVE);
		fake_settle();
		n = conn_recv(b.b, b.b_fd, chunk, sizeof(chunk), 0);
		assert_true(n > 0);
		got += (size_t)n;
	}
	assert_true((cost_of(b.a).wr - wr) * 10 <= 4 * 20000);
	bench_close_far(&b);
}

static void a_stream_is_large_requests_and_two_credits_a_ring(void **state)
{
	struct bench b = open_far();
	struct cost was = cost_of(b.a), now;
	uint64_t credits = cost_of(b.b).credits, bytes = 0;

	for (int i = 0; i < 400; i++, bytes += CHUNK) {
		assert_int_equal(conn_send(b.a, b.a_fd, chunk, CHUNK, 0), CHUNK);
		assert_int_equal(conn_recv(b.b, b.b_fd, chunk, CHUNK, 0), CHUNK);
	}
	now = cost_of(b.a);
	assert_true(now.wr - was.wr <= bytes / 16384 + bytes / RING + 1);
	assert_int_equal(now.doorbells - was.doorbells, 400);
	assert_true(cost_of(b.b).credits - credits <= 2 * (bytes / RING + 1));
	bench_close_far(&b);
}

/* The peer has not read what went by TCP, so nothing can be acknowledged. */
static void a_send_that_finds_the_socket_full_costs_no_request(void **state)
{
	struct bench b = bench_open();
	uint64_t wr, bytes = 0;
	ssize_t n;

	bench_link_far_of(&b, RING);
	while ((n = conn_send(b.a, b.a_fd, chunk, sizeof(chunk), 0)) > 0)
		bytes += (uint64_t)n;
	assert_int_equal(n, -EAGAIN);
	wr = cost_of(b.a).wr;
	for (int i = 0; i < 100; i++)
		assert_int_equal(conn_send(b.a, b.a_fd, chunk, sizeof(chunk), 0), -EAGAIN);
	assert_true(cost_of(b.a).wr <= wr + 1);
	for (; bytes; bytes -= (uint64_t)n)
		assert_true((n = conn_recv(b.b, b.b_fd, chunk, sizeof(chunk), 0)) > 0);
	bench_switch(&b);
	bench_close_far(&b);
}

static void the_summary_hears_what_it_cost(void **state)
{
	struct bench b = open_far();
	struct cost cost;

	assert_sends(b.a, b.a_fd, "bytes");
	assert_receives(b.b, b.b_fd, "bytes");
	cost = cost_of(b.a);
	assert_int_equal(conn_lock_both(b.a), 0);
	conn_tell_summary(b.a, false);
	conn_unlock_both(b.a);
	assert_int_equal(told.wr, cost.wr);
	assert_int_equal(told.doorbells, cost.doorbells);
	assert_true(told.cqes > 0);
	bench_close_far(&b);
}

static void a_peek_sees_what_has_come_since_the_last_one(void **state)
{
	struct bench b = open_far();
	char got[16];

	assert_sends(b.a, b.a_fd, "one");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), MSG_PEEK), 3);
	assert_sends(b.a, b.a_fd, "two");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), MSG_PEEK), 6);
	assert_int_equal(conn_inq(b.b, b.b_fd), 6);
	assert_receives(b.b, b.b_fd, "onetwo");
	bench_close_far(&b);
}

static void a_full_lane_is_writable_again_when_a_quarter_was_taken(void **state)
{
	struct bench b = open_far();
	size_t sent = 0, got = 0;
	ssize_t n;

	while ((n = conn_send(b.a, b.a_fd, chunk, CHUNK, 0)) > 0)
		sent += (size_t)n;
	assert_int_equal(n, -EAGAIN);
	assert_int_equal(conn_ready(b.a, b.a_fd, POLLOUT, 0), 0);
	while ((n = conn_recv(b.b, b.b_fd, chunk, 4096, 0)) > 0) {
		got += (size_t)n;
		if (conn_ready(b.a, b.a_fd, POLLOUT, 0))
			break;
	}
	assert_true(n > 0 && got <= RING && got < sent);
	assert_true(conn_send(b.a, b.a_fd, chunk, CHUNK, 0) > 0);
	bench_close_far(&b);
}

static void bytes_are_queued_until_the_peers_device_has_them(void **state)
{
	struct bench b = open_far();

	while (conn_outq(b.a, b.a_fd))
		fake_settle();
	fake.hold_acks = true;
	assert_sends(b.a, b.a_fd, "on their way");
	assert_int_equal(conn_outq(b.a, b.a_fd), 12);
	fake_ack(qp_of(&b.a->link));
	fake.hold_acks = false;
	assert_int_equal(conn_outq(b.a, b.a_fd), 0);
	bench_close_far(&b);
}

static void a_dead_link_loses_nothing(void **state)
{
	struct bench b = open_far();

	assert_sends(b.a, b.a_fd, "arrived");
	fake_fail(qp_of(&b.a->link), IBV_WC_RETRY_EXC_ERR);
	assert_sends(b.a, b.a_fd, "lost");
	assert_receives(b.b, b.b_fd, "arrived");
	assert_true(conn_ready(b.a, b.a_fd, POLLIN | POLLOUT, POLLOUT) == POLLOUT);
	assert_receives(b.b, b.b_fd, "lost");
	assert_sends(b.b, b.b_fd, "answer");
	conn_ready(b.a, b.a_fd, POLLIN, POLLIN);
	assert_int_equal(poll(&(struct pollfd){ .fd = b.a_fd, .events = POLLIN }, 1, 10000), 1);
	assert_receives(b.a, b.a_fd, "answer");
	assert_true(load_relaxed(&b.a->returned) && load_relaxed(&b.b->returned));
	bench_close_far(&b);
}

struct sleeper {
	struct bench *b;
	ssize_t result;
};

static void *receive_asleep(void *arg)
{
	struct sleeper *s = arg;
	char got[8];

	s->result = conn_recv(s->b->b, s->b->b_fd, got, sizeof(got), 0);
	return NULL;
}

static void *send_asleep(void *arg)
{
	struct sleeper *s = arg;

	s->result = conn_send(s->b->b, s->b->b_fd, chunk, CHUNK, 0);
	return NULL;
}

/* Until a thread sleeps, or is about to: from then on only the link can wake it. */
static void await_arming(peer_u32 *wake)
{
	while ((peer_read_u32(wake) & WAKE_STATE_MASK) != WAKE_ARMED)
		sched_yield();
}

static void a_sleeping_receiver_is_woken(void **state)
{
	struct bench b = open_far();
	struct sleeper s = { .b = &b };
	pthread_t thread;

	conn_set_nonblock(b.b, false);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(pthread_create(&thread, NULL, receive_asleep, &s), 0);
		await_arming(&b.b->link.rx.ctl->rx_state.wake);
		assert_sends(b.a, b.a_fd, "awake");
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(s.result, 5);
	}
	bench_close_far(&b);
}

static void a_sleeping_sender_is_woken(void **state)
{
	struct bench b = open_far();
	struct sleeper s = { .b = &b };
	pthread_t thread;

	for (int i = 0; i < 20; i++) {
		while (conn_send(b.b, b.b_fd, chunk, CHUNK, MSG_DONTWAIT) > 0)
			continue;
		conn_set_nonblock(b.b, false);
		assert_int_equal(pthread_create(&thread, NULL, send_asleep, &s), 0);
		await_arming(&b.b->link.tx.ctl->tx_state.wake);
		while (conn_recv(b.a, b.a_fd, chunk, CHUNK, 0) > 0)
			continue;
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(s.result, CHUNK);
		conn_set_nonblock(b.b, true);
	}
	bench_close_far(&b);
}

/* The lane that is waited for is on TCP, where nothing is wrong: what the other one has lost goes out all the same. */
static void who_receives_by_tcp_sends_again_what_a_ring_has_lost(void **state)
{
	struct bench b = bench_open();
	char got[8];

	bench_link_far_of(&b, RING);
	for (int i = 0; i < 8 && !conn_tx_on_ring(b.a); i++) {
		assert_sends(b.a, b.a_fd, "x");
		assert_receives(b.b, b.b_fd, "x");
		assert_int_equal(conn_recv(b.a, b.a_fd, got, 1, 0), -EAGAIN);
	}
	assert_true(conn_tx_on_ring(b.a) && !conn_rx_on_ring(b.a));
	fake.by_hand = true;
	assert_sends(b.a, b.a_fd, "lost");
	far_engine->stop(&b.a->link);
	for (int i = 0; i < 2; i++)
		assert_int_equal(conn_recv(b.a, b.a_fd, got, 1, 0), -EAGAIN);
	conn_ready(b.b, b.b_fd, POLLIN, POLLIN);
	assert_receives(b.b, b.b_fd, "lost");
	bench_close_far(&b);
}

#define MUCH (UINT64_C(3) << 20)

static void write_some(struct conn *c, int fd, uint64_t *sent)
{
	uint8_t bytes[10007];
	size_t len = MUCH - *sent < sizeof(bytes) ? (size_t)(MUCH - *sent) : sizeof(bytes);
	ssize_t n;

	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(*sent + i);
	n = conn_send(c, fd, bytes, len, MSG_DONTWAIT);
	*sent += n > 0 ? (uint64_t)n : 0;
}

static void read_all(struct conn *c, int fd)
{
	uint8_t bytes[5003];
	ssize_t n;

	for (uint64_t got = 0; got < MUCH; got += (uint64_t)n) {
		n = conn_recv(c, fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		assert_true(n > 0);
		for (ssize_t i = 0; i < n; i++)
			assert_int_equal(bytes[i], byte_at(got + (uint64_t)i));
	}
	assert_int_equal(conn_recv(c, fd, bytes, sizeof(bytes), MSG_DONTWAIT), -EAGAIN);
}

/* As the kernel's sockets let them: twelve rings in each direction. */
static void both_ends_may_write_much_before_they_read(void **state)
{
	struct bench b = open_far();

	for (int round = 0; round < 3; round++) {
		uint64_t sent_a = 0, sent_b = 0;

		for (int turns = 0; (sent_a < MUCH || sent_b < MUCH) && turns < 100000; turns++) {
			if (sent_a < MUCH)
				write_some(b.a, b.a_fd, &sent_a);
			if (sent_b < MUCH)
				write_some(b.b, b.b_fd, &sent_b);
			/* Who has written all waits for room no more, but may for its answer. */
			conn_far_make_way(b.a);
			conn_far_make_way(b.b);
		}
		assert_int_equal(sent_a, MUCH);
		assert_int_equal(sent_b, MUCH);
		assert_int_equal(conn_inq(b.a, b.a_fd), MUCH);
		read_all(b.a, b.a_fd);
		read_all(b.b, b.b_fd);
	}
	bench_close_far(&b);
}

struct writer {
	struct conn *c;
	int fd;
};

static uint8_t much[1 << 20];

static void *write_then_read(void *arg)
{
	static const size_t len = sizeof(much);
	struct writer *w = arg;
	uint8_t bytes[CHUNK];
	size_t got = 0;

	if (conn_send(w->c, w->fd, much, len, MSG_NOSIGNAL) != (ssize_t)len)
		return NULL;
	while (got < len) {
		ssize_t n = conn_recv(w->c, w->fd, bytes, sizeof(bytes), 0);

		if (n <= 0)
			return NULL;
		got += (size_t)n;
	}
	return w;
}

static void two_that_write_a_megabyte_each_before_they_read_do_not_hang(void **state)
{
	struct bench b = open_far();
	struct writer ends[2] = { { b.a, b.a_fd }, { b.b, b.b_fd } };
	pthread_t threads[2];
	void *result;

	conn_set_nonblock(b.a, false);
	conn_set_nonblock(b.b, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_then_read, &ends[i]), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(threads[i], &result), 0);
		assert_ptr_equal(result, &ends[i]);
	}
	bench_close_far(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quiet_ping_pong_is_one_request_and_one_doorbell_a_message),
		cmocka_unit_test(no_message_asks_for_the_time),
		cmocka_unit_test(saturated_small_messages_share_requests),
		cmocka_unit_test(a_stream_is_large_requests_and_two_credits_a_ring),
		cmocka_unit_test(a_send_that_finds_the_socket_full_costs_no_request),
		cmocka_unit_test(the_summary_hears_what_it_cost),
		cmocka_unit_test(a_peek_sees_what_has_come_since_the_last_one),
		cmocka_unit_test(a_full_lane_is_writable_again_when_a_quarter_was_taken),
		cmocka_unit_test(bytes_are_queued_until_the_peers_device_has_them),
		cmocka_unit_test(a_dead_link_loses_nothing),
		cmocka_unit_test(who_receives_by_tcp_sends_again_what_a_ring_has_lost),
		cmocka_unit_test(a_sleeping_receiver_is_woken),
		cmocka_unit_test(a_sleeping_sender_is_woken),
		cmocka_unit_test(both_ends_may_write_much_before_they_read),
		cmocka_unit_test(two_that_write_a_megabyte_each_before_they_read_do_not_hang),
	};

	alarm(50);
	return cmocka_run_group_tests_name("far_data", tests, bench_setup_group, NULL);
}
