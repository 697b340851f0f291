/* SPDX-License-Identifier: MIT */
/* Looks at connections that nothing goes over: RETREAT.md, "Idle". The time is the test's: a look is told what it is. */
#include "tests/unit/conn_bench.h"

#include <poll.h>
#include <sys/socket.h>

#include "shim/clock.h"
#include "shim/conn_lock.h"
#include "shim/conn_use.h"
#include "shim/fdtab.h"
#include "shim/idle.h"
#include "shim/options.h"
#include "shim/renew.h"

#define S INT64_C(1000000000)
#define IDLE (8 * S)

static int64_t start;

static int64_t next_look(void)
{
	return (int64_t)(load_relaxed(&idle_word) & ~UINT64_C(1));
}

/* A look at that time, which must be due. */
static void look(int64_t after)
{
	assert_true(idle_is_due(start + after));
	idle_look(start + after);
}

/* On rings, and looked at once. */
static struct bench watched(void)
{
	struct bench b;

	options.idle_ns = IDLE;
	store_relaxed(&idle_word, 0);
	b = bench_on_rings();
	start = now_ns() + 2 * S;
	look(0);
	return b;
}

static void end(struct bench *b)
{
	bench_close(b);
	options.idle_ns = 0;
	store_relaxed(&idle_word, 0);
}

static void talk(struct bench *b)
{
	assert_sends(b->a, b->a_fd, "question");
	assert_receives(b->b, b->b_fd, "question");
	assert_sends(b->b, b->b_fd, "the answer");
	assert_receives(b->a, b->a_fd, "the answer");
}

static bool goes_back(struct conn *c)
{
	return load_relaxed(&c->asked_back) || load_relaxed(&c->returned);
}

static void what_is_quiet_for_the_time_goes_back(void **state)
{
	struct bench b = watched();

	(void)state;
	/* It had moved: the next look is an eighth of the time later, then when the time is over. */
	assert_in_range(next_look(), start + S - 1, start + S);
	look(S);
	assert_in_range(next_look(), start + IDLE - 1, start + IDLE);
	assert_false(idle_is_due(start + IDLE - 2));
	assert_true(conn_tx_on_ring(b.a) && conn_tx_on_ring(b.b));
	look(IDLE);
	assert_true(load_relaxed(&b.a->asked_back));
	/* The other end has answered in the same look; the next one finds that. */
	look(IDLE + S);
	assert_false(conn_tx_on_ring(b.a) || conn_tx_on_ring(b.b) || conn_rx_on_ring(b.a) || conn_rx_on_ring(b.b));
	assert_int_equal(load_relaxed(&b.a->reason), REASON_IDLE);
	assert_true(load_relaxed(&b.a->returned) && load_relaxed(&b.b->returned));
	assert_int_equal(told.retreats, 2);
	talk(&b);
	end(&b);
}

static void the_time_counts_from_the_last_bytes(void **state)
{
	struct bench b = watched();

	(void)state;
	for (int64_t at = 1; at < 4 * IDLE / S; at++) {
		talk(&b);
		idle_look(start + at * S);
		assert_false(goes_back(b.a));
	}
	look(5 * IDLE - S);
	assert_true(goes_back(b.a));
	end(&b);
}

static void one_direction_that_flows_is_no_silence(void **state)
{
	struct bench b = watched();

	(void)state;
	for (int64_t at = 1; at < 4 * IDLE / S; at++) {
		assert_sends(b.a, b.a_fd, "more");
		assert_receives(b.b, b.b_fd, "more");
		idle_look(start + at * S);
		assert_false(goes_back(b.a) || goes_back(b.b));
	}
	end(&b);
}

/* Neither program is woken for what only one of them can change; and who changes it sees to the rest. */
static void unread_bytes_stay_where_they_are(void **state)
{
	struct bench b = watched();

	(void)state;
	assert_sends(b.a, b.a_fd, "unread");
	look(S);
	assert_false(idle_is_watched());
	assert_int_equal(idle_until(-1), -1);
	idle_look(start + 9 * IDLE);
	assert_false(goes_back(b.a) || goes_back(b.b));
	/* Who only sleeps on it changes nothing. */
	assert_false(conn_arm_edge(b.b, POLLIN, conn_rx_edge(b.b), conn_tx_edge(b.b)));
	conn_disarm(b.b, POLLIN);
	assert_false(idle_is_watched());
	assert_receives(b.b, b.b_fd, "unread");
	assert_false(conn_arm(b.b, POLLIN));
	conn_disarm(b.b, POLLIN);
	assert_true(idle_is_watched());
	start = now_ns() + IDLE;
	look(0);
	look(S);
	look(IDLE);
	assert_true(goes_back(b.a) && goes_back(b.b));
	end(&b);
}

static void what_could_not_be_given_up_stays(void **state)
{
	struct bench b = watched();

	(void)state;
	fetch_add(&b.a->nr_maps, 1);
	fetch_add(&b.b->nr_maps, 1);
	look(S);
	assert_false(idle_is_watched());
	fetch_sub(&b.a->nr_maps, 1);
	fetch_sub(&b.b->nr_maps, 1);
	idle_watch();
	assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
	idle_look(start + 3 * IDLE);
	idle_look(start + 5 * IDLE);
	assert_false(goes_back(b.a) || goes_back(b.b));
	end(&b);
}

/* As if the other end were in another process, which makes no call. */
static void a_peer_that_does_not_answer_is_not_waited_for(void **state)
{
	struct bench b = watched();
	unsigned looks = 0;

	(void)state;
	look(S);
	assert_ptr_equal(fdtab_remove(b.b_fd), b.b);
	look(IDLE);
	assert_true(load_relaxed(&b.a->asked_back) && !load_relaxed(&b.a->returned));
	assert_false(conn_tx_on_ring(b.a));
	for (int64_t at = IDLE + S; idle_is_watched(); at += S, looks++) {
		look(at);
		assert_true(looks < 20);
	}
	assert_true(looks > 1);
	/* It comes when it comes. */
	assert_true(fdtab_install(b.b_fd, b.b));
	talk(&b);
	talk(&b);
	assert_true(load_relaxed(&b.a->returned) && load_relaxed(&b.b->returned));
	assert_int_equal(load_relaxed(&b.b->reason), REASON_RETREAT);
	end(&b);
}

static void sleeps_last_until_the_next_look(void **state)
{
	struct bench b = watched();
	int64_t ns;

	(void)state;
	assert_int_equal(idle_until(5), 5);
	ns = idle_until(-1);
	assert_in_range(ns, 1, 3 * S + 1000000);
	ns = idle_until(INT64_MAX / 2);
	assert_in_range(ns, 1, 3 * S + 1000000);
	store_relaxed(&idle_word, 0);
	assert_int_equal(idle_until(-1), -1);
	assert_int_equal(idle_until(7), 7);
	end(&b);
}

static void news_during_a_look_is_not_lost(void **state)
{
	struct bench b = watched();
	uint64_t word = load_relaxed(&idle_word);

	(void)state;
	idle_watch();
	assert_int_equal(load_relaxed(&idle_word), word | 1);
	store_relaxed(&idle_word, 0);
	idle_watch();
	assert_true(idle_is_watched());
	end(&b);
}

static void zero_is_never(void **state)
{
	struct bench b;

	(void)state;
	options.idle_ns = 0;
	store_relaxed(&idle_word, 0);
	b = bench_on_rings();
	assert_false(idle_is_watched());
	idle_look(now_ns() + 1000 * S);
	assert_true(conn_tx_on_ring(b.a));
	end(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_quiet_for_the_time_goes_back),
		cmocka_unit_test(the_time_counts_from_the_last_bytes),
		cmocka_unit_test(one_direction_that_flows_is_no_silence),
		cmocka_unit_test(unread_bytes_stay_where_they_are),
		cmocka_unit_test(what_could_not_be_given_up_stays),
		cmocka_unit_test(a_peer_that_does_not_answer_is_not_waited_for),
		cmocka_unit_test(sleeps_last_until_the_next_look),
		cmocka_unit_test(news_during_a_look_is_not_lost),
		cmocka_unit_test(zero_is_never),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
