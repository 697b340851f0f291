/* SPDX-License-Identifier: MIT */
/* A lane between hosts comes back to TCP when its link is dead (RETREAT.md section 9), step by step. */
#include "tests/unit/far_bench.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/sys.h"
#include "ringbuf/verbs_engine.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_lock.h"
#include "shim/conn_probe.h"
#include "shim/far.h"
#include "shim/frame.h"
#include "shim/options.h"
#include "shim/retreat.h"
#include "shim/retreat_far.h"
#include "shim/switch.h"
#include "tests/unit/far_stream.h"

static void assert_is_back(struct bench *b)
{
	assert_true(load_relaxed(&b->a->returned) && load_relaxed(&b->b->returned));
}

/* `taken` of `landed` bytes are, and of those sent behind them nothing lands; the other lane has as much under way. */
static void streams_go_on(size_t landed, size_t taken, size_t lost)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);

	if (landed)
		assert_int_equal(stream_send(&there, landed), landed);
	if (taken)
		assert_int_equal(stream_take(&there, taken), taken);
	if (landed)
		assert_int_equal(stream_send(&back, landed), landed);
	fake.by_hand = true;
	if (lost)
		assert_int_equal(stream_send(&there, lost), lost);
	fake_fail(qp_of(b.a), IBV_WC_RETRY_EXC_ERR);
	fake.by_hand = false;
	fake_settle();
	for (int i = 0; i < 8; i++) {
		stream_send(&there, 1000);
		stream_send(&back, 700);
		stream_take(&back, 900);
		stream_take(&there, 300);
	}
	stream_end(&there);
	stream_end(&back);
	if (lost)
		assert_is_back(&b);
	bench_close_far(&b);
}

static void no_byte_is_lost_or_doubled_wherever_the_link_dies(void **state)
{
	static const size_t sizes[] = { 0, 1, 31, 32, 500, 5000, 8000 };
	const size_t nr = sizeof(sizes) / sizeof(*sizes);

	for (size_t i = 0; i < nr * nr * nr; i++) {
		size_t landed = sizes[i % nr], taken = sizes[i / nr % nr], lost = sizes[i / nr / nr];

		if (taken <= landed)
			streams_go_on(landed, taken, lost);
	}
}

/* What is not told by any other way: the peer's end of the link is well until the frames come. */
static void a_peer_whose_link_lives_is_taken_along(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);

	assert_int_equal(stream_send(&there, 100), 100);
	assert_int_equal(stream_send(&back, 100), 100);
	/* Without a word to the other end. */
	verbs_die(engine_of(&b.a->link), -ENODEV);
	fake_settle();
	assert_int_equal(conn_lock_tx(b.a), 0);
	store_relaxed(&b.a->link_dead, -ENODEV);
	store_release(&engine_of(&b.a->link)->told_dead, -ENODEV);
	lane_unlock(&b.a->tx.lock);
	assert_int_equal(stream_send(&there, 100), 100);
	stream_end(&there);
	stream_end(&back);
	assert_int_equal(stream_send(&back, 100), 100);
	stream_end(&back);
	assert_is_back(&b);
	bench_close_far(&b);
}

static void one_lane_on_the_ring_is_enough(void **state)
{
	for (int sends = 0; sends < 2; sends++) {
		struct bench b = bench_open();
		struct stream there = a_to_b(&b), back = b_to_a(&b);

		bench_link_far_of(&b, RING);
		stream_moves_out(&there, &back);
		assert_true(conn_tx_on_ring(b.a) && !conn_tx_on_ring(b.b));
		fake.by_hand = true;
		assert_int_equal(stream_send(&there, 300), 300);
		fake_fail(qp_of(sends ? b.a : b.b), IBV_WC_RETRY_EXC_ERR);
		fake.by_hand = false;
		fake_settle();
		assert_int_equal(stream_send(&back, 200), 200);
		if (sends)
			assert_int_equal(stream_send(&there, 50), 50);
		else
			conn_pump(b.a, 0);
		stream_end(&there);
		stream_end(&back);
		bench_close_far(&b);
	}
}

/* The switch's frame, and what stands in front of the leaving, are finished first. */
static void a_frame_that_was_begun_is_finished(void **state)
{
	for (unsigned cut = 1; cut < FRAME_SIZE; cut += 5) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b);
		uint8_t probe[FRAME_SIZE];

		assert_int_equal(stream_send(&there, 100), 100);
		frame_make(probe, FRAME_PROBE, b.a->nonce, b.a->peer_nonce, 0);
		assert_int_equal(send(b.a_fd, probe, cut, 0), cut);
		b.a->tx.probe_done = (uint8_t)cut;
		fake_fail(qp_of(b.a), IBV_WC_RETRY_EXC_ERR);
		assert_int_equal(stream_send(&there, 100), 100);
		fake_settle();
		assert_int_equal(stream_send(&there, 100), 100);
		stream_end(&there);
		bench_close_far(&b);
	}
}

static void a_switch_that_was_begun_is_carried_out(void **state)
{
	for (unsigned cut = 1; cut < FRAME_SIZE; cut += 5) {
		struct bench b = bench_open();
		struct stream there = a_to_b(&b);
		uint8_t frame[FRAME_SIZE];

		bench_link_far_of(&b, RING);
		for (int i = 0; i < 8 && load_relaxed(&b.b->rx.state) != RX_ACKED; i++)
			stream_take(&there, 1);
		assert_int_equal(load_relaxed(&b.b->rx.state), RX_ACKED);
		far_pump(b.a, 0);
		frame_make(frame, FRAME_SWITCH, b.a->nonce, b.a->peer_nonce, b.a->tx.announced_pos);
		assert_int_equal(send(b.a_fd, frame, cut, 0), cut);
		assert_int_equal(conn_lock_tx(b.a), 0);
		conn_tx_set(b.a, TX_FRAMING);
		b.a->tx.rest_done = (uint8_t)cut;
		lane_unlock(&b.a->tx.lock);
		far_engine->stop(&b.a->link);
		assert_int_equal(stream_send(&there, 100), 100);
		stream_end(&there);
		assert_int_equal(load_relaxed(&b.a->tx.state) == TX_RING, false);
		bench_close_far(&b);
	}
}

/* The socket takes a few bytes at a time. */
static void a_full_socket_is_waited_for(void **state)
{
	struct bench b = bench_open();
	struct stream there = a_to_b(&b);
	int small = 8192;
	size_t sent;

	bench_link_far_of(&b, 16 * RING);
	bench_switch(&b);

	setsockopt(b.a_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	setsockopt(b.b_fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	fake.by_hand = true;
	while (stream_send(&there, RING) > 0)
		;
	fake_fail(qp_of(b.a), IBV_WC_RETRY_EXC_ERR);
	fake.by_hand = false;
	fake_settle();
	conn_pump(b.a, 0);
	assert_int_equal(stream_send(&there, 100), -EAGAIN);
	assert_false(conn_ready(b.a, b.a_fd, POLLOUT, 0) & POLLOUT);
	assert_true(conn_kernel_events(b.a, POLLIN) & POLLOUT);
	sent = there.sent;
	stream_end(&there);
	assert_int_equal(there.got, sent);
	assert_int_equal(stream_send(&there, 100), 100);
	stream_end(&there);
	bench_close_far(&b);
}

/* Its calls would not come by what the other lane owes. */
static void who_receives_does_not_sleep_in_the_kernel_meanwhile(void **state)
{
	struct bench b = bench_open();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	int small = 8192;

	bench_link_far_of(&b, 16 * RING);
	stream_moves_out(&there, &back);
	setsockopt(b.a_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	setsockopt(b.b_fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	fake.by_hand = true;
	while (stream_send(&there, RING) > 0)
		;
	far_engine->stop(&b.a->link);
	for (int i = 0; i < 4; i++)
		assert_int_equal(stream_take(&back, 1), -EAGAIN);
	assert_int_equal(load_relaxed(&b.a->tx.state), TX_LEFT);
	assert_int_equal(load_relaxed(&b.a->rx.mode), MODE_SLOW);
	stream_end(&there);
	bench_close_far(&b);
}

/* Who ends its stream has said all before, whatever has become of the link. */
static void an_end_comes_behind_what_is_sent_again(void **state)
{
	for (int how = 0; how < 2; how++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);
		char byte;

		assert_int_equal(stream_send(&there, 500), 500);
		fake.by_hand = true;
		assert_int_equal(stream_send(&there, 500), 500);
		fake_fail(qp_of(b.a), IBV_WC_RETRY_EXC_ERR);
		fake.by_hand = false;
		fake_settle();
		options.patience_ms = 20;
		if (how)
			bench_close_a(&b);
		else
			assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
		while (there.got < there.sent)
			assert_true(stream_take(&there, RING) > 0);
		assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), 0);
		if (!how) {
			assert_int_equal(stream_send(&back, 100), 100);
			stream_end(&back);
		}
		options.patience_ms = 1000;
		bench_close_far(&b);
	}
}

/* The process has told its end, and has not gone yet. */
static void behind_an_end_that_was_told_nothing_is_said(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b);
	char byte;

	assert_int_equal(stream_send(&there, 500), 500);
	conn_exit_flush(b.a, b.a_fd);
	far_engine->stop(&b.a->link);
	for (int i = 0; i < 4; i++)
		conn_ready(b.a, b.a_fd, POLLIN, 0);
	options.patience_ms = 20;
	bench_close_a(&b);
	while (there.got < there.sent)
		assert_true(stream_take(&there, RING) > 0);
	assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), 0);
	options.patience_ms = 1000;
	bench_close_far(&b);
}

/* It is dead behind its frames: what they promise never comes, and that is no end. */
static void a_sender_that_dies_while_it_sends_again_has_not_ended(void **state)
{
	for (uint64_t resent = 0; resent <= 300; resent += 100) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b);
		uint8_t frame[FRAME_SIZE], bytes[300];
		uint64_t at = b.a->link.tx.tail_pos;
		ssize_t n = -EAGAIN;

		assert_int_equal(stream_send(&there, 100), 100);
		frame_make(frame, FRAME_HAVE, b.a->nonce, b.a->peer_nonce, b.b->link.tx.tail_pos);
		assert_int_equal(send(b.a_fd, frame, sizeof(frame), 0), sizeof(frame));
		frame_make(frame, FRAME_UPTO, b.a->nonce, b.a->peer_nonce, at + 300);
		assert_int_equal(send(b.a_fd, frame, sizeof(frame), 0), sizeof(frame));
		frame_make(frame, FRAME_RETREAT, b.a->nonce, b.a->peer_nonce, at);
		assert_int_equal(send(b.a_fd, frame, sizeof(frame), 0), sizeof(frame));
		for (uint64_t i = 0; i < resent; i++)
			bytes[i] = byte_at(i);
		assert_int_equal(send(b.a_fd, bytes, resent, 0), resent);
		assert_int_equal(shutdown(b.a_fd, SHUT_WR), 0);
		for (int i = 0; i < 100 && (n > 0 || n == -EAGAIN); i++)
			n = stream_take(&there, RING);
		assert_int_equal(there.got, resent > 100 ? resent : 100);
		assert_int_equal(n, resent == 300 ? 0 : -ECONNRESET);
		bench_close_far(&b);
	}
}

/* What a peer says of its leaving is bounded before it is believed. */
static void a_leaving_that_cannot_be_is_a_lie(void **state)
{
	static const struct {
		enum frame_type type[3];
		int64_t from_tail[3];
	} rows[] = {
		{ { FRAME_UPTO, FRAME_RETREAT, FRAME_HAVE }, { 0, 0, 0 } },
		{ { FRAME_HAVE, FRAME_HAVE, FRAME_RETREAT }, { 0, 0, 0 } },
		{ { FRAME_HAVE, FRAME_RETREAT, FRAME_UPTO }, { 0, 0, 0 } },
		{ { FRAME_HAVE, FRAME_UPTO, FRAME_RETREAT }, { 0, 0, 1 } },
		{ { FRAME_HAVE, FRAME_UPTO, FRAME_RETREAT }, { 0, -1, 0 } },
		{ { FRAME_HAVE, FRAME_UPTO, FRAME_RETREAT }, { 0, RING + 1, 0 } },
		{ { FRAME_HAVE, FRAME_UPTO, FRAME_RETREAT }, { 0, 0, INT64_MIN } },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b);
		ssize_t n = -EAGAIN;

		assert_int_equal(stream_send(&there, 100), 100);
		for (int k = 0; k < 3; k++) {
			uint8_t frame[FRAME_SIZE];

			frame_make(frame, rows[i].type[k], b.a->nonce, b.a->peer_nonce,
				   b.a->link.tx.tail_pos + (uint64_t)rows[i].from_tail[k]);
			assert_int_equal(send(b.a_fd, frame, sizeof(frame), 0), sizeof(frame));
		}
		for (int k = 0; k < 100 && (n > 0 || n == -EAGAIN); k++)
			n = stream_take(&there, RING);
		assert_int_equal(n, -ECONNRESET);
		assert_int_equal(b.b->reason, REASON_BAD_POSITION);
		bench_close_far(&b);
	}
}

/* The frames come in any pieces, and a probe in front of them. */
static void a_leaving_is_understood_however_it_is_cut(void **state)
{
	for (size_t cut = 1; cut < 4 * FRAME_SIZE; cut += 7) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b);
		uint8_t f[4 * FRAME_SIZE];
		uint64_t at = b.a->link.tx.tail_pos;

		assert_int_equal(stream_send(&there, 100), 100);
		frame_make(f, FRAME_PROBE, b.a->nonce, b.a->peer_nonce, 0);
		frame_make(f + FRAME_SIZE, FRAME_HAVE, b.a->nonce, b.a->peer_nonce, b.b->link.tx.tail_pos);
		frame_make(f + 2 * FRAME_SIZE, FRAME_UPTO, b.a->nonce, b.a->peer_nonce, at + 100);
		frame_make(f + 3 * FRAME_SIZE, FRAME_RETREAT, b.a->nonce, b.a->peer_nonce, at + 100);
		assert_int_equal(send(b.a_fd, f, cut, 0), cut);
		while (there.got < 100)
			assert_true(stream_take(&there, RING) > 0);
		for (int i = 0; i < 70; i++)
			assert_int_equal(stream_take(&there, RING), -EAGAIN);
		assert_int_equal(send(b.a_fd, f + cut, sizeof(f) - cut, 0), sizeof(f) - cut);
		assert_int_equal(send(b.a_fd, (uint8_t[]){ byte_at(100) }, 1, 0), 1);
		there.sent++;
		while (there.got < there.sent)
			assert_int_not_equal(stream_take(&there, RING), 0);
		bench_close_far(&b);
	}
}

/* Having told that it has everything, it is sent nothing, which would draw a reset. */
static void who_has_everything_and_closes_is_not_answered(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	char byte;

	assert_int_equal(stream_send(&back, 3000), 3000);
	while (back.got < 3000)
		assert_true(stream_take(&back, RING) > 0);
	assert_int_equal(stream_send(&there, 50), 50);
	far_engine->stop(&b.a->link);
	options.patience_ms = 20;
	bench_close_a(&b);
	while (there.got < 50)
		assert_true(stream_take(&there, RING) > 0);
	for (int i = 0; i < 4; i++)
		conn_ready(b.b, b.b_fd, POLLIN | POLLOUT, POLLIN | POLLRDHUP);
	assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), 0);
	assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), 0);
	options.patience_ms = 1000;
	bench_close_far(&b);
}

/* A peek sees what lies in the ring, and behind it what TCP brings. */
static void a_peek_sees_across(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b);
	uint8_t bytes[1000];
	ssize_t n = 0;

	assert_int_equal(stream_send(&there, 400), 400);
	fake.by_hand = true;
	assert_int_equal(stream_send(&there, 300), 300);
	fake_fail(qp_of(b.a), IBV_WC_RETRY_EXC_ERR);
	fake.by_hand = false;
	fake_settle();
	conn_ready(b.a, b.a_fd, POLLIN, 0);
	conn_ready(b.a, b.a_fd, POLLIN, 0);
	conn_ready(b.b, b.b_fd, POLLIN, POLLIN);
	for (int i = 0; i < 100 && n < 700; i++)
		n = conn_recv(b.b, b.b_fd, bytes, sizeof(bytes), MSG_PEEK);
	assert_int_equal(n, 700);
	for (int i = 0; i < 700; i++)
		assert_int_equal(bytes[i], byte_at((uint64_t)i));
	stream_end(&there);
	bench_close_far(&b);
}

struct asleep {
	struct stream *s;
	ssize_t result;
};

static void *receive_asleep(void *arg)
{
	struct asleep *a = arg;

	a->result = stream_take(a->s, 100);
	return NULL;
}

static void *send_asleep(void *arg)
{
	struct asleep *a = arg;

	a->result = stream_send(a->s, RING);
	return NULL;
}

static void await_sleeper(peer_u32 *word)
{
	while (!(peer_read_u32(word) & WAKE_SLEEPERS_MAX))
		sched_yield();
}

/* By the bytes that the other end sends again. */
static void who_sleeps_for_bytes_goes_on(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b);
	struct asleep a = { &there, 0 };
	pthread_t thread;

	conn_set_nonblock(b.b, false);
	assert_int_equal(pthread_create(&thread, NULL, receive_asleep, &a), 0);
	await_sleeper(&b.b->link.rx.ctl->rx_state.wake);
	far_engine->stop(&b.a->link);
	there.sent = 0;
	assert_int_equal(stream_send(&there, 100), 100);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(a.result, 100);
	bench_close_far(&b);
}

static void who_sleeps_for_room_goes_on(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	struct asleep a = { &there, 0 };
	pthread_t thread;

	while (stream_send(&there, RING) > 0)
		;
	conn_set_nonblock(b.a, false);
	assert_int_equal(pthread_create(&thread, NULL, send_asleep, &a), 0);
	await_sleeper(&b.a->link.tx.ctl->tx_state.wake);
	far_engine->stop(&b.b->link);
	assert_int_equal(stream_send(&back, 10), 10);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(a.result, RING);
	conn_set_nonblock(b.a, true);
	stream_end(&there);
	stream_end(&back);
	bench_close_far(&b);
}

/* Who waits for edges is told of room by us alone: the kernel's socket was never full. */
static void who_found_a_ring_full_hears_of_room_when_it_is_left(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	unsigned patience = options.patience_ms;

	while (stream_send(&there, RING) > 0)
		;
	options.patience_ms = 0;
	assert_int_not_equal(conn_tx_edge(b.a), conn_tx_full_seq(b.a));
	far_engine->stop(&b.a->link);
	for (int i = 0; i < 1000 && load_relaxed(&b.a->tx.state) != TX_SEEK; i++) {
		conn_pump_look(b.b);
		stream_send(&back, 10);
		conn_pump_look(b.a);
		conn_ready(b.a, b.a_fd, POLLIN | POLLOUT, 0);
	}
	options.patience_ms = patience;
	assert_int_equal(load_relaxed(&b.a->tx.state), TX_SEEK);
	assert_int_equal(conn_tx_edge(b.a), conn_tx_full_seq(b.a));
	stream_end(&there);
	stream_end(&back);
	bench_close_far(&b);
}

static void who_is_put_off_by_a_dead_link_hears_of_room_too(void **state)
{
	struct bench b = open_far();
	struct stream there = a_to_b(&b), back = b_to_a(&b);
	unsigned patience = options.patience_ms;
	uint64_t full;

	options.patience_ms = 1000000;
	full = conn_tx_full_seq(b.a);
	far_engine->stop(&b.a->link);
	conn_pump_look(b.a);
	/* Its end may be on its way. */
	store_relaxed(&b.a->tx.gone_hint, 1);
	assert_int_equal(stream_send(&there, 10), -EAGAIN);
	assert_int_equal(conn_tx_full_seq(b.a), full + 1);
	assert_int_equal(conn_tx_edge(b.a), full);
	options.patience_ms = 0;
	assert_int_equal(conn_tx_edge(b.a), full + 1);
	store_relaxed(&b.a->tx.gone_hint, 0);
	options.patience_ms = patience;
	stream_end(&there);
	stream_end(&back);
	bench_close_far(&b);
}

/* Sent by a peer that calls nothing afterwards, while this end says that it reads its ring no more, and goes on: before it is known that the link lives, or after that. */
static struct stream *sends_meanwhile;
static int sends_at;
static const struct verbs_table *engine;

static int flush_and_send(struct ring_link *link, int limit_ms)
{
	if (limit_ms && link == &sends_meanwhile->to->link && sends_at-- == 0)
		assert_int_equal(stream_send(sends_meanwhile, 70), 70);
	return engine->flush(link, limit_ms);
}

static void what_comes_while_an_end_goes_back_is_read(void **state)
{
	for (int at = 0; at < 2; at++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);
		struct verbs_table table = *far_engine;

		engine = far_engine;
		table.flush = flush_and_send;
		sends_meanwhile = &back;
		sends_at = at;
		far_engine = &table;
		retreat_back_unlocked(b.a, b.a_fd, REASON_OOB);
		far_engine = engine;
		assert_int_equal(back.sent, 70);
		assert_int_equal(stream_take(&back, RING), 70);
		streams_talk(&there, &back, 4);
		bench_close_far(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_byte_is_lost_or_doubled_wherever_the_link_dies),
		cmocka_unit_test(a_peer_whose_link_lives_is_taken_along),
		cmocka_unit_test(one_lane_on_the_ring_is_enough),
		cmocka_unit_test(a_frame_that_was_begun_is_finished),
		cmocka_unit_test(a_switch_that_was_begun_is_carried_out),
		cmocka_unit_test(a_full_socket_is_waited_for),
		cmocka_unit_test(who_receives_does_not_sleep_in_the_kernel_meanwhile),
		cmocka_unit_test(an_end_comes_behind_what_is_sent_again),
		cmocka_unit_test(behind_an_end_that_was_told_nothing_is_said),
		cmocka_unit_test(a_sender_that_dies_while_it_sends_again_has_not_ended),
		cmocka_unit_test(a_leaving_that_cannot_be_is_a_lie),
		cmocka_unit_test(a_leaving_is_understood_however_it_is_cut),
		cmocka_unit_test(who_has_everything_and_closes_is_not_answered),
		cmocka_unit_test(a_peek_sees_across),
		cmocka_unit_test(who_sleeps_for_bytes_goes_on),
		cmocka_unit_test(who_sleeps_for_room_goes_on),
		cmocka_unit_test(who_found_a_ring_full_hears_of_room_when_it_is_left),
		cmocka_unit_test(who_is_put_off_by_a_dead_link_hears_of_room_too),
		cmocka_unit_test(what_comes_while_an_end_goes_back_is_read),
	};

	return cmocka_run_group_tests_name("retreat_far", tests, bench_setup_group, NULL);
}
