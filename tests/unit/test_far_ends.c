/* SPDX-License-Identifier: MIT */
/* How connections end whose rings lie on two hosts (ringbuf/VERBS.md). */
#include "tests/unit/far_bench.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ringbuf/sys.h"
#include "ringbuf/verbs_engine.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_lock.h"
#include "shim/far.h"
#include "shim/frame.h"
#include "shim/options.h"
#include "shim/plain.h"
#include "shim/real.h"
#include "tests/unit/verbs_fixture.h"

static void the_last_byte_comes_before_the_end(void **state)
{
	struct bench b = bench_open_far();

	assert_sends(b.a, b.a_fd, "the tail");
	bench_close_a(&b);
	bench_gets(b.b, b.b_fd, "the tail");
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	bench_close_far(&b);
}

static void one_direction_ends_and_the_other_goes_on(void **state)
{
	struct bench b = bench_open_far();

	assert_sends(b.a, b.a_fd, "question");
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	bench_gets(b.b, b.b_fd, "question");
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	assert_sends(b.b, b.b_fd, "answer");
	bench_gets(b.a, b.a_fd, "answer");
	bench_close_b(&b);
	assert_int_equal(bench_end_of(b.a, b.a_fd), 0);
	bench_close_far(&b);
}

/* As the kernel of a process that was killed. */
static void an_end_that_was_not_told_is_a_reset(void **state)
{
	struct bench b = bench_open_far();

	assert_sends(b.a, b.a_fd, "some");
	assert_int_equal(shutdown(b.a_fd, SHUT_WR), 0);
	bench_gets(b.b, b.b_fd, "some");
	assert_int_equal(bench_end_of(b.b, b.b_fd), -ECONNRESET);
	assert_int_equal(conn_send(b.b, b.b_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	assert_int_equal(b.b->reason, REASON_LINK_LOST);
	bench_close_far(&b);
}

/* The device does nothing any more: what was sent goes by TCP, and the end behind it. */
static void an_end_behind_lost_bytes_comes_behind_them(void **state)
{
	struct bench b = bench_open_far();

	fake.by_hand = true;
	options.patience_ms = 10;
	assert_sends(b.a, b.a_fd, "lost");
	bench_close_a(&b);
	bench_gets(b.b, b.b_fd, "lost");
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	options.patience_ms = 1000;
	bench_close_far(&b);
}

/* A lane that is still on TCP ends as it always did. */
static void a_lane_on_tcp_needs_no_word(void **state)
{
	struct bench b = bench_open();

	bench_link_far(&b);
	assert_sends(b.a, b.a_fd, "plain");
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	bench_gets(b.b, b.b_fd, "plain");
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	bench_close_far(&b);
}

static void what_is_left_unread_makes_a_reset(void **state)
{
	struct bench b = bench_open_far();

	assert_sends(b.a, b.a_fd, "unread");
	bench_close_b(&b);
	assert_int_equal(bench_end_of(b.a, b.a_fd), -ECONNRESET);
	bench_close_far(&b);
}

static void close_resets(int fd)
{
	struct linger zero = { .l_onoff = 1 };

	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &zero, sizeof(zero)), 0);
}

static void a_close_that_is_to_reset_tells_no_end(void **state)
{
	struct bench b = bench_open_far();

	close_resets(b.a_fd);
	bench_close_a(&b);
	assert_int_equal(bench_end_of(b.b, b.b_fd), -ECONNRESET);
	bench_close_far(&b);
}

/* a sends by a ring, b by TCP. */
static struct bench open_half_switched(void)
{
	struct bench b = bench_open();
	char byte;

	bench_link_far(&b);
	for (int i = 0; i < 8 && !conn_tx_on_ring(b.a); i++) {
		assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, 0), 1);
		assert_int_equal(bench_receive(b.b, b.b_fd, &byte, 1), 1);
		assert_int_equal(bench_end_of(b.a, b.a_fd), -EAGAIN);
	}
	assert_true(conn_tx_on_ring(b.a) && conn_rx_on_ring(b.b) && !conn_tx_on_ring(b.b));
	return b;
}

/* One lane of each on TCP: there a kernel's end would be an end. */
static void a_lane_on_tcp_is_reset_with_the_other(void **state)
{
	struct bench b = open_half_switched();

	/* a's stream ends without a word: b is reset, and a must not read an end. */
	assert_int_equal(shutdown(b.a_fd, SHUT_WR), 0);
	assert_int_equal(bench_end_of(b.b, b.b_fd), -ECONNRESET);
	assert_int_equal(bench_end_of(b.a, b.a_fd), -ECONNRESET);
	bench_close_far(&b);
}

/* The wrapper's way of a lane that stays on TCP, for as long as the other one is on a ring or not, as libc's call. */
static ssize_t stays_recv(struct conn *c, int fd, char *buf, size_t len)
{
	enum plain_pass pass = plain_rx_enter(c);
	ssize_t n = pass == PASS_NOT ? bench_receive(c, fd, buf, len) : plain_rx_leave(c, fd, pass, recv(fd, buf, len, 0), 0);

	return n < -1 ? (errno = (int)-n, -1) : n;
}

/* With bytes of a's under way; b's lane stays on TCP. */
static void lose_link(struct bench *b)
{
	conn_pin(b->b, REASON_COUNT_MISMATCH);
	assert_int_equal(bench_end_of(b->a, b->a_fd), -EAGAIN);
	conn_pin(b->a, REASON_COUNT_MISMATCH);
	fake.by_hand = true;
	assert_sends(b->a, b->a_fd, "lost");
	fake_fail(engine_of(&b->a->link)->qp, IBV_WC_RETRY_EXC_ERR);
	fake.by_hand = false;
	fake_settle();
}

static void judge(struct bench *b)
{
	options.patience_ms = 0;
	far_pump(b->a, VERBS_RUNG);
	conn_pump_far(b->a, 0);
	conn_frames_try(b->a, b->a_fd);
	options.patience_ms = 1000;
}

/* The other lane's loss is none of its own. */
static void a_lane_that_stays_on_tcp_goes_on_without_the_other(void **state)
{
	struct bench b = open_half_switched();
	char got[8];

	lose_link(&b);
	assert_int_equal(send(b.b_fd, "last", 4, 0), 4);
	judge(&b);
	assert_int_equal(stays_recv(b.a, b.a_fd, got, sizeof(got)), 4);
	conn_ready(b.a, b.a_fd, POLLIN, 0);
	bench_gets(b.b, b.b_fd, "lost");
	bench_close_b(&b);
	assert_int_equal(stays_recv(b.a, b.a_fd, got, sizeof(got)), 0);
	bench_close_far(&b);
}

/* Of which no lane has left TCP, or both have come back there: an end would tell the peer that it has all. */
static void a_cut_is_a_reset_where_all_is_on_tcp(void **state)
{
	struct bench b = bench_open();

	bench_link_far(&b);
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, 0), 1);
	bench_gets(b.b, b.b_fd, "x");
	assert_false(conn_tx_on_ring(b.a) || conn_rx_on_ring(b.a));
	assert_int_equal(conn_lock_both(b.a), 0);
	conn_cut(b.a, b.a_fd, REASON_LINK_LOST);
	conn_unlock_both(b.a);
	assert_int_equal(bench_end_of(b.b, b.b_fd), -ECONNRESET);
	assert_int_equal(bench_end_of(b.a, b.a_fd), -ECONNRESET);
	assert_int_equal(bench_end_of(b.a, b.a_fd), 0);
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	bench_close_far(&b);
}

/* Told by a send, a reset is not told by a receive again. */
static void a_reset_is_told_once(void **state)
{
	struct bench b = bench_open_far();
	ssize_t n = 1;

	close_resets(b.a_fd);
	bench_close_a(&b);
	/* The device may be slower than the kernel. */
	for (int i = 0; i < 4 && n > 0; i++, far_pump(b.b, VERBS_RUNG))
		n = conn_send(b.b, b.b_fd, "x", 1, MSG_NOSIGNAL);
	assert_int_equal(n, -ECONNRESET);
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	bench_close_far(&b);
}

/* By a send on a lane that is still on TCP, too, whichever way it goes. */
static void a_reset_that_tcp_tells_is_told_once(void **state)
{
	for (int pinned = 0; pinned < 2; pinned++) {
		struct bench b = open_half_switched();

		if (pinned)
			conn_pin(b.b, REASON_COUNT_MISMATCH);
		assert_sends(b.a, b.a_fd, "last");
		close_resets(b.a_fd);
		bench_close_a(&b);
		bench_gets(b.b, b.b_fd, "last");
		if (pinned) {
			assert_int_equal(plain_tx_enter(b.b), PASS_COUNT);
			assert_int_equal(plain_tx_leave(b.b, b.b_fd, PASS_COUNT, send(b.b_fd, "x", 1, MSG_NOSIGNAL)), -1);
			assert_int_equal(errno, ECONNRESET);
		} else {
			assert_int_equal(conn_send(b.b, b.b_fd, "x", 1, MSG_NOSIGNAL), -ECONNRESET);
		}
		assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
		bench_close_far(&b);
	}
}

/* a sends by a ring, which is lost, and receives by TCP: what the kernel tells of it and what we do is one reset. */
static void a_lost_link_is_no_second_reset(void **state)
{
	struct bench b = open_half_switched();
	char got[8];

	lose_link(&b);
	/* As the kernel of a peer that is killed with bytes unread. */
	close_resets(b.b_fd);
	bench_close_b(&b);
	assert_int_equal(stays_recv(b.a, b.a_fd, got, sizeof(got)), -1);
	assert_int_equal(errno, ECONNRESET);
	judge(&b);
	assert_true(load_relaxed(&b.a->link_judged));
	assert_int_equal(stays_recv(b.a, b.a_fd, got, sizeof(got)), 0);
	bench_close_far(&b);
}

/* An end that is shut both ways answers everything with a reset: a frame, too. */
static void who_wants_nothing_more_is_told_no_end(void **state)
{
	struct bench b = bench_open_far();
	int err = -1;
	socklen_t len = sizeof(err);

	assert_sends(b.a, b.a_fd, "last");
	assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_RDWR), 0);
	assert_int_equal(bench_end_of(b.a, b.a_fd), 0);
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	bench_gets(b.b, b.b_fd, "last");
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	assert_int_equal(getsockopt(b.a_fd, SOL_SOCKET, SO_ERROR, &err, &len), 0);
	assert_int_equal(err, 0);
	bench_close_far(&b);
}

/* The process ends, and destructors go on. */
static void nothing_goes_behind_an_end(void **state)
{
	struct bench b = bench_open_far();

	assert_sends(b.a, b.a_fd, "before");
	conn_exit_flush(b.a, b.a_fd);
	assert_int_equal(conn_send(b.a, b.a_fd, "behind", 6, MSG_NOSIGNAL), -EPIPE);
	bench_gets(b.b, b.b_fd, "before");
	bench_close_a(&b);
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	bench_close_far(&b);
}

/* A frame of the peer's about a position that cannot be. */
static void an_end_too_far_off_is_a_lie(void **state)
{
	struct bench b = bench_open_far();
	uint8_t frame[FRAME_SIZE];

	frame_make(frame, FRAME_FIN, b.a->nonce, b.a->peer_nonce, b.b->link.rx.head_pos + FAR_BENCH_RING + 1);
	assert_int_equal(send(b.a_fd, frame, FRAME_SIZE, 0), FRAME_SIZE);
	assert_int_equal(shutdown(b.a_fd, SHUT_WR), 0);
	assert_int_equal(bench_end_of(b.b, b.b_fd), -ECONNRESET);
	assert_int_equal(b.b->reason, REASON_BAD_POSITION);
	bench_close_far(&b);
}

/* It comes in pieces, and behind a probe. */
static void an_end_is_understood_however_it_is_cut(void **state)
{
	for (size_t cut = 1; cut < FRAME_SIZE; cut++) {
		struct bench b = bench_open_far();
		uint8_t frame[2 * FRAME_SIZE];

		frame_make(frame, FRAME_PROBE, b.a->nonce, b.a->peer_nonce, 0);
		frame_make(frame + FRAME_SIZE, FRAME_FIN, b.a->nonce, b.a->peer_nonce, b.a->link.tx.tail_pos);
		assert_int_equal(send(b.a_fd, frame, FRAME_SIZE + cut, 0), FRAME_SIZE + cut);
		for (int i = 0; i < 100; i++)
			assert_nothing(b.b, b.b_fd);
		assert_int_equal(send(b.a_fd, frame + FRAME_SIZE + cut, FRAME_SIZE - cut, 0), FRAME_SIZE - cut);
		assert_int_equal(shutdown(b.a_fd, SHUT_WR), 0);
		assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
		bench_close_far(&b);
	}
}

/* It sees the end, and none of the bytes in front of it. */
static void a_child_without_the_link_resets_nobody(void **state)
{
	struct bench b = bench_open_far();
	uint8_t frame[FRAME_SIZE];
	int status = -1;
	pid_t pid;

	fake.by_hand = true;
	assert_sends(b.a, b.a_fd, "on its way");
	frame_make(frame, FRAME_FIN, b.a->nonce, b.a->peer_nonce, b.a->link.tx.tail_pos);
	assert_int_equal(send(b.a_fd, frame, FRAME_SIZE, 0), FRAME_SIZE);
	assert_int_equal(shutdown(b.a_fd, SHUT_WR), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		for (int i = 0; i < 100; i++) {
			char byte;

			if (conn_recv(b.b, b.b_fd, &byte, 1, 0) != -ECONNRESET)
				_exit(1);
		}
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	fake.by_hand = false;
	fake_settle();
	bench_gets(b.b, b.b_fd, "on its way");
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	bench_close_far(&b);
}

struct ending {
	struct bench *b;
	void (*act)(struct bench *b);
};

static void *end_it(void *arg)
{
	struct ending *e = arg;

	e->act(e->b);
	return NULL;
}

static void shut_it(struct bench *b)
{
	assert_int_equal(conn_shutdown(b->a, b->a_fd, SHUT_WR), 0);
}

static void exit_it(struct bench *b)
{
	conn_exit_flush(b->a, b->a_fd);
}

/* Other threads' calls go on meanwhile, but that nothing may be sent behind it. */
static void an_end_is_waited_for_without_the_locks(void **state)
{
	void (*const ways[])(struct bench *) = { shut_it, exit_it };

	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		struct bench b = bench_open_far();
		struct ending e = { &b, ways[i] };
		pthread_t thread;

		assert_sends(b.b, b.b_fd, "question");
		fake.by_hand = true;
		options.patience_ms = 20000;
		assert_sends(b.a, b.a_fd, "answer");
		assert_int_equal(pthread_create(&thread, NULL, end_it, &e), 0);
		while (!load_relaxed(&b.a->tx.fin))
			sched_yield();
		bench_gets(b.a, b.a_fd, "question");
		assert_int_equal(conn_lock_both(b.a), 0);
		conn_unlock_both(b.a);
		assert_int_equal(conn_send(b.a, b.a_fd, "more", 4, MSG_NOSIGNAL), -EPIPE);
		assert_int_equal(load_relaxed(&b.a->tx.fin), TX_FIN_DUE);
		fake.by_hand = false;
		fake_settle();
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(load_relaxed(&b.a->tx.fin), TX_FIN_SENT);
		options.patience_ms = 1000;
		bench_gets(b.b, b.b_fd, "answer");
		if (ways[i] == shut_it)
			assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
		bench_close_far(&b);
	}
}

struct going_all {
	struct conn *conns[2];
	int fds[2];
};

static void *exit_all(void *arg)
{
	struct going_all *g = arg;

	conn_exit_all(g->conns, g->fds, 2);
	return NULL;
}

/* The first one's device answers when the second is waited for, too. */
static void many_ends_are_waited_for_together(void **state)
{
	struct bench first = bench_open_far(), second = bench_open();
	struct going_all g = { { first.a, second.a }, { first.a_fd, second.a_fd } };
	struct verbs_memory of_a, of_b;
	pthread_t thread;

	far_join(&second.b->link, &of_b, &second.a->link, &of_a, FAR_BENCH_RING);
	bench_agree(&second);
	bench_switch(&second);
	fake.by_hand = true;
	assert_sends(first.a, first.a_fd, "one");
	assert_sends(second.a, second.a_fd, "two");
	assert_int_equal(pthread_create(&thread, NULL, exit_all, &g), 0);
	while (!load_relaxed(&second.a->tx.fin))
		sched_yield();
	fake.by_hand = false;
	fake_settle();
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(load_relaxed(&first.a->tx.fin), TX_FIN_SENT);
	assert_int_equal(load_relaxed(&second.a->tx.fin), TX_FIN_SENT);
	bench_gets(first.b, first.b_fd, "one");
	bench_gets(second.b, second.b_fd, "two");
	bench_close(&second);
	bench_close_far(&first);
}

/* It has read everything, and its device has gone before it could say so. */
static void who_has_let_go_is_told_no_end(void **state)
{
	struct bench b = open_half_switched();

	fake.hold_acks = true;
	options.patience_ms = 10;
	assert_sends(b.a, b.a_fd, "answer");
	bench_gets(b.b, b.b_fd, "answer");
	bench_close_b(&b);
	conn_fin_await(b.a, true);
	assert_int_equal(conn_lock_tx(b.a), 0);
	assert_int_equal(conn_fin_send(b.a, b.a_fd), 0);
	assert_int_equal(load_relaxed(&b.a->tx.fin), TX_FIN_LOST);
	lane_unlock(&b.a->tx.lock);
	options.patience_ms = 1000;
	fake.hold_acks = false;
	bench_close_far(&b);
}

/* The kernel's socket is at its end from now on, and says so at each look. */
static void say_end(struct bench *b, uint64_t pos)
{
	uint8_t frame[FRAME_SIZE];

	frame_make(frame, FRAME_FIN, b->a->nonce, b->a->peer_nonce, pos);
	assert_int_equal(send(b->a_fd, frame, FRAME_SIZE, 0), FRAME_SIZE);
	assert_int_equal(shutdown(b->a_fd, SHUT_WR), 0);
}

static void who_waits_for_bytes_before_an_end_sleeps(void **state)
{
	for (int shut = 0; shut < 2; shut++) {
		struct bench b = bench_open_far();
		char byte;

		if (shut)
			assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
		say_end(&b, b.a->link.tx.tail_pos + 100);
		told.sleeps = 0;
		conn_set_nonblock(b.b, false);
		store_relaxed(&b.b->rcv_timeout_ns, 50000000);
		assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), -EAGAIN);
		/* One finds the frame, one the end, one the time over. */
		assert_in_range(told.sleeps, 1, 3);
		bench_close_far(&b);
	}
}

/* Nor is a wait told of it: on TCP it would come behind the bytes. */
static void an_end_before_its_bytes_is_not_told(void **state)
{
	const short end = POLLIN | POLLRDHUP, hung = end | POLLHUP;
	struct bench b = bench_open_far();

	fake.by_hand = true;
	assert_sends(b.a, b.a_fd, "on its way");
	say_end(&b, b.a->link.tx.tail_pos);
	assert_int_equal(conn_ready(b.b, b.b_fd, end, end), 0);
	assert_int_equal(conn_kernel_events(b.b, POLLIN), 0);
	assert_int_equal(conn_ready(b.b, b.b_fd, end, hung), 0);
	fake.by_hand = false;
	fake_settle();
	far_pump(b.b, VERBS_EMPTY);
	assert_int_equal(conn_kernel_events(b.b, POLLIN), POLLIN);
	assert_int_equal(conn_ready(b.b, b.b_fd, end, end), end);
	bench_gets(b.b, b.b_fd, "on its way");
	assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
	bench_close_far(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_byte_comes_before_the_end),
		cmocka_unit_test(one_direction_ends_and_the_other_goes_on),
		cmocka_unit_test(an_end_that_was_not_told_is_a_reset),
		cmocka_unit_test(an_end_behind_lost_bytes_comes_behind_them),
		cmocka_unit_test(a_lane_on_tcp_needs_no_word),
		cmocka_unit_test(what_is_left_unread_makes_a_reset),
		cmocka_unit_test(a_close_that_is_to_reset_tells_no_end),
		cmocka_unit_test(a_lane_on_tcp_is_reset_with_the_other),
		cmocka_unit_test(a_lane_that_stays_on_tcp_goes_on_without_the_other),
		cmocka_unit_test(a_cut_is_a_reset_where_all_is_on_tcp),
		cmocka_unit_test(a_reset_is_told_once),
		cmocka_unit_test(a_reset_that_tcp_tells_is_told_once),
		cmocka_unit_test(a_lost_link_is_no_second_reset),
		cmocka_unit_test(who_wants_nothing_more_is_told_no_end),
		cmocka_unit_test(nothing_goes_behind_an_end),
		cmocka_unit_test(a_child_without_the_link_resets_nobody),
		cmocka_unit_test(an_end_too_far_off_is_a_lie),
		cmocka_unit_test(an_end_is_understood_however_it_is_cut),
		cmocka_unit_test(an_end_is_waited_for_without_the_locks),
		cmocka_unit_test(many_ends_are_waited_for_together),
		cmocka_unit_test(who_has_let_go_is_told_no_end),
		cmocka_unit_test(who_waits_for_bytes_before_an_end_sleeps),
		cmocka_unit_test(an_end_before_its_bytes_is_not_told),
	};

	return cmocka_run_group_tests_name("far_ends", tests, bench_setup_group, NULL);
}
