/* SPDX-License-Identifier: MIT */
/* How the spin's budget follows results. Results and times are told: none is measured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <signal.h>

#include "shim/counted.h"
#include "shim/options.h"
#include "shim/wait.h"

#define MANY 10000
#define MS INT64_C(1000000)

/* Long past whatever an earlier test has lost. */
static int64_t now = INT64_C(1) << 50;

struct options options;

static void tell(bool hit, uint32_t spent_ns)
{
	spin_result(hit, spin_budget_at(now), spent_ns, now);
}

static bool never(void *arg)
{
	++*(unsigned *)arg;
	return false;
}

static bool third_time(void *arg)
{
	return ++*(unsigned *)arg == 3;
}

static void fixed_budget_is_what_was_set(void **state)
{
	unsigned looks = 0;

	(void)state;
	options.spin_us = 0;
	assert_int_equal(spin_budget_ns(), 0);
	assert_false(spin_until(never, &looks));
	assert_int_equal(looks, 0);
	options.spin_us = 30;
	assert_int_equal(spin_budget_ns(), 30000);
	tell(false, 30000);
	assert_int_equal(spin_budget_ns(), 30000);
	assert_false(spin_until(never, &looks));
	assert_true(looks > 0);
	options.spin_us = INT64_C(1) << 40;
	assert_int_equal(spin_budget_ns(), UINT32_MAX);
}

static void handler(int sig)
{
}

static bool interrupted(void *arg)
{
	if (++*(unsigned *)arg == 100)
		raise(SIGUSR1);
	return false;
}

static void spin_ends_when_a_handler_has_run(void **state)
{
	unsigned looks = 0;

	(void)state;
	assert_true(signal(SIGUSR1, (void (*)(int))counted_stub(SIGUSR1, (uintptr_t)handler)) != SIG_ERR);
	options.spin_us = 1000000;
	assert_false(spin_until(interrupted, &looks));
	assert_in_range(looks, 100, 200);
	looks = 0;
	assert_false(spin_until_relaxing(interrupted, &looks));
	assert_in_range(looks, 100, 200);
	assert_true(signal(SIGUSR1, SIG_DFL) != SIG_ERR);
}

static void spin_ends_with_what_it_waits_for(void **state)
{
	unsigned looks = 0;

	(void)state;
	options.spin_us = 1000000;
	assert_true(spin_until(third_time, &looks));
	assert_int_equal(looks, 3);
	looks = 0;
	assert_true(spin_until_relaxing(third_time, &looks));
	assert_int_equal(looks, 3);
}

static bool one_cpu(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) == 1;
}

/* Tells misses until the budget is gone; how many it took. */
static unsigned miss_until_given_up(void)
{
	for (unsigned i = 0; i < MANY; i++) {
		if (!spin_pays())
			return i;
		tell(false, spin_budget_ns());
	}
	fail_msg("misses do not end the spinning");
	return 0;
}

/* Waits without spinning until the next try; how many there were. */
static unsigned waits_until_a_try(void)
{
	for (unsigned i = 0; i < MANY; i++)
		if (spin_budget_at(now))
			return i;
	fail_msg("spinning is never tried again");
	return 0;
}

static void misses_end_it_and_tries_grow_rarer(void **state)
{
	unsigned before = 0;

	(void)state;
	if (one_cpu())
		skip();
	options.spin_us = OPTION_SPIN_AUTO;
	assert_true(spin_budget_ns() > 0);
	assert_true(miss_until_given_up() > 0);
	for (int i = 0; i < 4; i++) {
		unsigned waits = waits_until_a_try();

		assert_true(waits > before);
		before = waits;
		tell(false, spin_budget_ns());
	}
}

static void hits_bring_it_back_within_bounds(void **state)
{
	(void)state;
	if (one_cpu())
		skip();
	options.spin_us = OPTION_SPIN_AUTO;
	miss_until_given_up();
	waits_until_a_try();
	tell(true, 3000);
	assert_true(spin_pays());
	for (int i = 0; i < 100; i++)
		tell(true, 10000);
	assert_true(spin_budget_ns() >= 20000);
	assert_true(spin_budget_ns() <= 100000);
}

static void hit_that_came_later_than_a_wake_up_is_a_miss(void **state)
{
	(void)state;
	if (one_cpu())
		skip();
	options.spin_us = OPTION_SPIN_AUTO;
	for (int i = 0; i < MANY && spin_pays(); i++)
		tell(true, 40000);
	assert_false(spin_pays());
}

/* Spinning, and everything lost before is paid for. */
static void spin_in_peace(void)
{
	options.spin_us = OPTION_SPIN_AUTO;
	now += 100000 * MS;
	waits_until_a_try();
	tell(true, 1000);
	assert_true(spin_pays());
}

static void sleep_often(int64_t ns)
{
	for (int i = 0; i < 100; i++)
		spin_slept(ns);
}

/* In a guest whose idle CPUs are given away a wake-up takes fifty microseconds. */
static void where_wake_ups_take_long_later_answers_pay(void **state)
{
	(void)state;
	if (one_cpu())
		skip();
	options.spin_us = OPTION_SPIN_AUTO;
	assert_true(spin_sleep_begins() > 0);
	miss_until_given_up();
	sleep_often(100000);
	waits_until_a_try();
	/* Long enough for a peer that has to be woken, and that is no lost CPU. */
	assert_in_range(spin_budget_at(now), 100000, 150000);
	tell(false, spin_budget_at(now));
	assert_true(spin_allowed());
	waits_until_a_try();
	tell(true, 50000);
	assert_true(spin_pays());
	/* Nor does one answer that takes somewhat longer end it. */
	assert_true(spin_budget_at(now) >= 100000);
	for (int i = 0; i < MANY && spin_pays(); i++)
		tell(true, 70000);
	assert_false(spin_pays());
}

static void sleeps_that_are_short_or_wait_for_something_else_change_nothing(void **state)
{
	static const int64_t sleeps[] = { 251000, 1000 * MS, -1, 10000 };

	(void)state;
	if (one_cpu())
		skip();
	spin_in_peace();
	sleep_often(10000);
	for (unsigned i = 0; i < 4; i++) {
		sleep_often(sleeps[i]);
		miss_until_given_up();
		waits_until_a_try();
		assert_in_range(spin_budget_at(now), 20000, 21000);
		tell(true, 1000);
		for (int k = 0; k < MANY && spin_pays(); k++)
			tell(true, 13000);
		assert_false(spin_pays());
	}
	options.spin_us = 30;
	assert_int_equal(spin_sleep_begins(), 0);
}

static void losing_the_cpu_ends_it_at_once(void **state)
{
	(void)state;
	if (one_cpu())
		skip();
	spin_in_peace();
	tell(true, 5 * MS);
	assert_false(spin_pays());
	assert_false(spin_allowed());
	for (int i = 0; i < MANY; i++)
		assert_int_equal(spin_budget_at(now), 0);
}

static void what_was_lost_is_paid_for_by_time(void **state)
{
	(void)state;
	if (one_cpu())
		skip();
	spin_in_peace();
	tell(false, 5 * MS);
	/* 32 times as long, less 100 ms that have passed already. */
	now += 59 * MS;
	assert_int_equal(spin_budget_at(now), 0);
	now += 2 * MS;
	assert_true(spin_budget_at(now) > 0);
	assert_true(spin_allowed());
	tell(true, 1000);
	assert_true(spin_pays());
	/* Nothing is left of the 100 ms. */
	tell(true, 5 * MS);
	now += 158 * MS;
	assert_int_equal(spin_budget_at(now), 0);
	now += 2 * MS;
	assert_true(spin_budget_at(now) > 0);
}

static void a_moment_now_and_then_changes_nothing(void **state)
{
	uint32_t budget;

	(void)state;
	if (one_cpu())
		skip();
	spin_in_peace();
	budget = spin_budget_at(now);
	for (int i = 0; i < MANY; i++) {
		tell(i % 2, 1 * MS);
		assert_int_equal(spin_budget_at(now), budget);
		now += 40 * MS;
	}
}

static void moments_that_come_too_often_are_a_crowd(void **state)
{
	int i;

	(void)state;
	if (one_cpu())
		skip();
	spin_in_peace();
	for (i = 0; i < MANY && spin_pays(); i++, now += 10 * MS)
		tell(true, 1 * MS);
	assert_true(i > 1 && i < 10);
	now -= 10 * MS;
	assert_int_equal(spin_budget_at(now), 0);
}

static void however_long_it_was_lost_it_is_tried_again(void **state)
{
	(void)state;
	if (one_cpu())
		skip();
	spin_in_peace();
	for (int i = 0; i < 10; i++)
		tell(true, UINT32_MAX);
	now += 1999 * MS;
	assert_int_equal(spin_budget_at(now), 0);
	now += 2 * MS;
	assert_true(spin_budget_at(now) > 0);
}

static void a_spin_that_is_set_does_not_learn(void **state)
{
	(void)state;
	options.spin_us = 30;
	for (int i = 0; i < 10; i++)
		tell(true, 100 * MS);
	assert_int_equal(spin_budget_at(now), 30000);
}

static void is_not_allowed_where_the_program_said_so(void **state)
{
	(void)state;
	if (one_cpu())
		skip();
	spin_in_peace();
	options.spin_us = 0;
	assert_false(spin_allowed());
	options.spin_us = 10;
	assert_true(spin_allowed());
	options.spin_us = OPTION_SPIN_AUTO;
	assert_true(spin_allowed());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fixed_budget_is_what_was_set),
		cmocka_unit_test(spin_ends_with_what_it_waits_for),
		cmocka_unit_test(spin_ends_when_a_handler_has_run),
		cmocka_unit_test(misses_end_it_and_tries_grow_rarer),
		cmocka_unit_test(hits_bring_it_back_within_bounds),
		cmocka_unit_test(hit_that_came_later_than_a_wake_up_is_a_miss),
		cmocka_unit_test(where_wake_ups_take_long_later_answers_pay),
		cmocka_unit_test(sleeps_that_are_short_or_wait_for_something_else_change_nothing),
		cmocka_unit_test(losing_the_cpu_ends_it_at_once),
		cmocka_unit_test(what_was_lost_is_paid_for_by_time),
		cmocka_unit_test(a_moment_now_and_then_changes_nothing),
		cmocka_unit_test(moments_that_come_too_often_are_a_crowd),
		cmocka_unit_test(however_long_it_was_lost_it_is_tried_again),
		cmocka_unit_test(a_spin_that_is_set_does_not_learn),
		cmocka_unit_test(is_not_allowed_where_the_program_said_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
