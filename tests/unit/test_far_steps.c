/* SPDX-License-Identifier: MIT */
/* A device that goes at whichever of a call's own steps, at both ends: what was said arrives, and the end behind it. */
#include "tests/unit/far_bench.h"

#include <sys/socket.h>

#include "tests/unit/verbs_fixture.h"

enum { MANY = 100 };

/* Does the next call still have a step at which it could? */
static bool went(void)
{
	bool removed = fake.removed;

	fake.posts_left = 0;
	return removed;
}

static void close_both(struct bench *b)
{
	bench_close_far(b);
	fake.removed = false;
}

static void of_a_close(void **state)
{
	for (unsigned step = 1, more = 1; more; step++) {
		struct bench b = bench_open_far();

		assert_sends(b.a, b.a_fd, "lost");
		fake.posts_left = step;
		bench_close_a(&b);
		more = went();
		bench_gets(b.b, b.b_fd, "lost");
		assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
		close_both(&b);
		assert_true(step < MANY);
	}
}

static void of_a_shutdown(void **state)
{
	for (unsigned step = 1, more = 1; more; step++) {
		struct bench b = bench_open_far();

		assert_sends(b.a, b.a_fd, "lost");
		fake.posts_left = step;
		assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
		more = went();
		bench_gets(b.b, b.b_fd, "lost");
		assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
		assert_sends(b.b, b.b_fd, "answer");
		bench_close_b(&b);
		bench_gets(b.a, b.a_fd, "answer");
		assert_int_equal(bench_end_of(b.a, b.a_fd), 0);
		close_both(&b);
		assert_true(step < MANY);
	}
}

/* Of both ends' last calls. */
static void of_a_last_answer(void **state)
{
	for (unsigned step = 1, more = 1; more; step++) {
		struct bench b = bench_open_far();

		assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
		assert_int_equal(bench_end_of(b.b, b.b_fd), 0);
		fake.posts_left = step;
		assert_sends(b.b, b.b_fd, "answer");
		bench_close_b(&b);
		more = went();
		bench_gets(b.a, b.a_fd, "answer");
		assert_int_equal(bench_end_of(b.a, b.a_fd), 0);
		close_both(&b);
		assert_true(step < MANY);
	}
}

/* By a program that calls nothing afterwards. */
static void of_a_send(void **state)
{
	for (unsigned step = 1, more = 1; more; step++) {
		struct bench b = bench_open_far();

		fake.posts_left = step;
		assert_sends(b.a, b.a_fd, "the last");
		more = went();
		bench_gets(b.b, b.b_fd, "the last");
		close_both(&b);
		assert_true(step < MANY);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_a_send),
		cmocka_unit_test(of_a_close),
		cmocka_unit_test(of_a_shutdown),
		cmocka_unit_test(of_a_last_answer),
	};

	return cmocka_run_group_tests_name("far_steps", tests, bench_setup_group, NULL);
}
