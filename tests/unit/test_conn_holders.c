/* SPDX-License-Identifier: MIT */
/* Who holds a connection, when relatives are killed, or live in a PID namespace of their own. */
#include "tests/unit/conn_bench.h"

#include <sys/syscall.h>

#include "shim/conn_arena.h"
#include "shim/conn_holders.h"
#include "tests/support/asleep.h"
#include "tests/unit/family_fork.h"

static struct relative relative_with(struct bench *b, bool own_namespace)
{
	struct conn *held[2] = { b->a, b->b };
	struct relative r;
	int rc = relative_fork(&r, held, 2, own_namespace);

	if (rc < 0) {
		bench_close(b);
		skip();
	}
	if (r.pid == 0)
		relative_stay(&r);
	relative_heard(&r);
	return r;
}

static void the_killed_are_not_counted(void **state)
{
	struct bench b = bench_open();
	struct relative r;

	(void)state;
	r = relative_with(&b, false);
	assert_int_equal(conn_count_holders(b.a), 2);
	relative_kill(&r);
	assert_int_equal(conn_count_holders(b.a), 1);
	assert_int_equal(load_relaxed(&b.a->nr_maps), 1);
	relative_bury(&r);
	bench_close(&b);
}

static void who_is_in_another_namespace_is_counted(void **state)
{
	struct bench b = bench_open();
	struct relative r;

	(void)state;
	r = relative_with(&b, true);
	assert_int_equal(conn_count_holders(b.a), 2);
	relative_kill(&r);
	assert_int_equal(conn_count_holders(b.a), 1);
	relative_bury(&r);
	bench_close(&b);
}

/* The last of the living ends the lanes: the peer hears of it, and unread bytes make a reset. */
static void close_ends_the_lanes_after_a_relative_was_killed(void **state)
{
	struct bench b = bench_open();
	struct relative r;
	char byte;

	(void)state;
	bench_link(&b);
	bench_switch(&b);
	r = relative_with(&b, false);
	relative_kill(&r);
	relative_bury(&r);
	assert_sends(b.b, b.b_fd, "never read");
	bench_close_a(&b);
	assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), -ECONNRESET);
	bench_close_b(&b);
}

static void close_leaves_the_lanes_to_a_living_relative(void **state)
{
	struct bench b = bench_open();
	struct relative r;

	(void)state;
	bench_link(&b);
	bench_switch(&b);
	r = relative_with(&b, false);
	bench_close_a(&b);
	assert_nothing(b.b, b.b_fd);
	relative_kill(&r);
	relative_bury(&r);
	bench_close_b(&b);
}

/* Destructors close what the end of the process has announced already. */
static void close_after_the_announced_end_counts_once(void **state)
{
	struct bench b = bench_open();
	struct relative r;

	(void)state;
	r = relative_with(&b, false);
	conn_exit_flush(b.a, b.a_fd);
	assert_int_equal(load_relaxed(&b.a->nr_holders), 1);
	{
		struct conn *a = b.a;

		bench_close_a(&b);
		assert_int_equal(load_relaxed(&a->nr_holders), 1);
	}
	relative_kill(&r);
	relative_bury(&r);
	bench_close_b(&b);
}

static void more_relatives_than_places_are_counted_while_they_live(void **state)
{
	enum { NR = CONN_MAX_HOLDERS + 3 };
	struct bench b = bench_open();
	struct relative r[NR];

	(void)state;
	for (int i = 0; i < NR; i++) {
		r[i] = relative_with(&b, false);
		assert_int_equal(conn_count_holders(b.a), 2);
		relative_kill(&r[i]);
	}
	assert_int_equal(conn_count_holders(b.a), 1);
	for (int i = 0; i < NR; i++)
		relative_bury(&r[i]);
	bench_close(&b);
}

/* A record whose holders are all gone is found when the arena is swept. */
static void what_only_the_dead_held_is_given_back(void **state)
{
	struct bench b = bench_open();
	struct relative r;
	uint32_t index = b.a->index;
	bool found = false;

	(void)state;
	r = relative_with(&b, false);
	bench_close(&b);
	relative_kill(&r);
	relative_bury(&r);
	assert_int_equal(load_relaxed(&conn_at(index)->live), 1);
	conn_reap_holders(conn_at(index));
	assert_int_equal(load_relaxed(&conn_at(index)->live), 0);
	for (int i = 0; i < 4 && !found; i++)
		found = arena_take()->index == index;
	assert_true(found);
}

static void a_lane_is_taken_over_from_the_killed_by_who_only_tries(void **state)
{
	struct bench b = bench_open();
	struct conn *held[1] = { b.a };
	struct relative r;

	(void)state;
	assert_int_equal(relative_fork(&r, held, 1, false), 0);
	if (r.pid == 0) {
		if (conn_lock_both(b.a) == 0)
			relative_stay(&r);
		_exit(1);
	}
	relative_heard(&r);
	assert_int_equal(conn_trylock_both(b.a), -EBUSY);
	relative_kill(&r);
	assert_int_equal(conn_trylock_both(b.a), 0);
	conn_unlock_both(b.a);
	relative_bury(&r);
	bench_close(&b);
}

static size_t sleepers(const struct conn *c)
{
	struct conn *m = (struct conn *)c;

	return load_acquire(&m->link.rx.bells.nr_threads) + load_acquire(&m->link.tx.bells.nr_threads);
}

/* Or the living would leave their rings to it for ever, and look again and again instead of sleeping. */
static void who_is_killed_in_its_sleep_is_no_sleeper_any_more(void **state)
{
	struct bench b = bench_open();
	struct conn *held[1] = { b.a };
	struct relative r;
	char byte;

	(void)state;
	bench_link(&b);
	bench_switch(&b);
	conn_set_nonblock(b.a, false);
	assert_int_equal(relative_fork(&r, held, 1, false), 0);
	if (r.pid == 0) {
		if (write(r.says, "x", 1) == 1)
			(void)conn_recv(b.a, b.a_fd, &byte, 1, 0);
		_exit(1);
	}
	relative_heard(&r);
	/* It may arm and look once more before. */
	while (!sleepers(b.a) || !asleep(r.pid))
		sched_yield();
	relative_kill(&r);
	assert_int_equal(sleepers(b.a), 1);
	assert_int_equal(conn_count_holders(b.a), 1);
	assert_int_equal(sleepers(b.a), 0);
	relative_bury(&r);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_killed_are_not_counted),
		cmocka_unit_test(who_is_in_another_namespace_is_counted),
		cmocka_unit_test(close_ends_the_lanes_after_a_relative_was_killed),
		cmocka_unit_test(close_leaves_the_lanes_to_a_living_relative),
		cmocka_unit_test(close_after_the_announced_end_counts_once),
		cmocka_unit_test(more_relatives_than_places_are_counted_while_they_live),
		cmocka_unit_test(what_only_the_dead_held_is_given_back),
		cmocka_unit_test(a_lane_is_taken_over_from_the_killed_by_who_only_tries),
		cmocka_unit_test(who_is_killed_in_its_sleep_is_no_sleeper_any_more),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
