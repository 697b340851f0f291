/* SPDX-License-Identifier: MIT */
/* Room for another link: RETREAT.md, "Room for another". The time is the test's: who asks says what it is. */
#include "tests/unit/conn_bench.h"

#include "shim/ceiling.h"
#include "shim/clock.h"
#include "shim/fdtab.h"
#include "shim/links.h"

#define MS INT64_C(1000000)
#define SPELL (60 * MS)

enum { PAIRS = 3 };

/* On rings, and one that is not. */
static struct bench b[PAIRS], other;
static int64_t now;

static void talk(struct bench *p, int times)
{
	for (int i = 0; i < times; i++) {
		assert_sends(p->a, p->a_fd, "question");
		assert_receives(p->b, p->b_fd, "question");
		assert_sends(p->b, p->b_fd, "the answer");
		assert_receives(p->a, p->a_fd, "the answer");
	}
}

static bool goes_back(const struct bench *p)
{
	return load_relaxed(&p->a->asked_back) || load_relaxed(&p->a->returned) || load_relaxed(&p->b->asked_back) || load_relaxed(&p->b->returned);
}

static int nr_going(void)
{
	int nr = 0;

	for (int i = 0; i < PAIRS; i++)
		nr += goes_back(&b[i]);
	return nr;
}

static bool ask(int64_t later)
{
	now += later;
	return ceiling_make_room(other.a, REASON_CEILING, now);
}

/* They have been on rings for long, and one spell has been cut. */
static int begin(void **state)
{
	(void)state;
	for (int i = 0; i < PAIRS; i++)
		b[i] = bench_on_rings();
	other = bench_open();
	assert_int_equal(links_nr(), 2 * PAIRS);
	/* Behind what an earlier test has said. */
	now = (now > now_ns() ? now : now_ns()) + 1000 * MS;
	for (int i = 0; i < 3; i++)
		assert_false(ask(SPELL));
	assert_int_equal(nr_going(), 0);
	return 0;
}

static int end(void **state)
{
	(void)state;
	for (int i = 0; i < PAIRS; i++)
		bench_close(&b[i]);
	bench_close(&other);
	assert_int_equal(links_nr(), 0);
	return 0;
}

static void the_least_recently_busy_goes_back(void **state)
{
	(void)state;
	for (int i = 0; i < 12; i++) {
		/* 1 has been silent for longest. */
		if (i < 4) {
			talk(&b[0], 100);
			talk(&b[2], 100);
		}
		ask(SPELL);
	}
	assert_int_equal(nr_going(), 0);
	talk(&other, 50);
	/* The same spell: nothing is decided before it is over. */
	assert_false(ask(1 * MS));
	assert_true(ask(SPELL));
	assert_int_equal(nr_going(), 1);
	assert_true(goes_back(&b[1]));
	assert_int_equal(load_relaxed(&b[1].a->reason) == REASON_CEILING || load_relaxed(&b[1].b->reason) == REASON_CEILING, 1);
	/* One at a time. */
	talk(&other, 50);
	ask(SPELL);
	assert_int_equal(nr_going(), 1);
}

static void who_is_not_much_busier_takes_nobodys_place(void **state)
{
	(void)state;
	for (int i = 0; i < 40; i++) {
		for (int k = 0; k < PAIRS; k++)
			talk(&b[k], 10);
		talk(&other, 40);
		assert_false(ask(SPELL));
	}
	assert_int_equal(nr_going(), 0);
}

/* A pause does not make a busy one quiet, nor do a few words make a quiet one busy. */
static void a_pause_is_no_silence(void **state)
{
	(void)state;
	for (int k = 0; k < PAIRS; k++)
		talk(&b[k], 100);
	for (int i = 0; i < 40; i++) {
		for (int k = 0; k < PAIRS; k++)
			/* Where a look took long by the clock, the next spell is twice as long and more: a pause is no larger part of it. */
			if ((i + k) % 2 == 0)
				talk(&b[k], 100);
		talk(&other, 100);
		assert_false(ask(SPELL));
	}
	assert_int_equal(nr_going(), 0);
	for (int i = 0; i < 40 && !nr_going(); i++) {
		talk(&b[0], 100);
		talk(&b[1], 1);
		talk(&b[2], 100);
		talk(&other, 100);
		ask(SPELL);
	}
	assert_int_equal(nr_going(), 1);
	assert_true(goes_back(&b[1]));
}

/* Who calls again and again, and moves nothing, is silent. */
static void calls_in_vain_are_no_traffic(void **state)
{
	char byte;

	(void)state;
	for (int i = 0; i < 10; i++) {
		for (int k = 0; k < 1000; k++)
			assert_true(conn_recv(other.a, other.a_fd, &byte, 1, 0) < 0);
		assert_false(ask(SPELL));
	}
	assert_int_equal(nr_going(), 0);
}

static void what_is_unread_stays(void **state)
{
	(void)state;
	for (int i = 0; i < PAIRS; i++)
		assert_sends(b[i].a, b[i].a_fd, "unread");
	for (int i = 0; i < 10; i++) {
		talk(&other, 100);
		assert_false(ask(SPELL));
	}
	assert_int_equal(nr_going(), 0);
	assert_receives(b[2].b, b[2].b_fd, "unread");
	for (int i = 0; i < 10 && !nr_going(); i++) {
		talk(&other, 100);
		ask(SPELL);
	}
	assert_true(goes_back(&b[2]));
	assert_int_equal(nr_going(), 1);
	for (int i = 0; i < 2; i++)
		assert_receives(b[i].b, b[i].b_fd, "unread");
}

static void who_has_just_come_stays(void **state)
{
	(void)state;
	for (int i = 0; i < PAIRS; i++) {
		store_relaxed(&b[i].a->linked_at, now + 3 * SPELL);
		store_relaxed(&b[i].b->linked_at, now + 3 * SPELL);
	}
	for (int i = 0; i < 6; i++) {
		talk(&other, 100);
		assert_false(ask(SPELL));
	}
	talk(&other, 100);
	assert_true(ask(SPELL));
	assert_int_equal(nr_going(), 1);
}

/* As if the other ends were in a process that makes no calls: that one is not waited for, and another goes. */
static void a_peer_that_makes_no_calls_is_not_waited_for(void **state)
{
	int looks = 0, going = 0;

	(void)state;
	for (int i = 0; i < PAIRS; i++)
		assert_ptr_equal(fdtab_remove(b[i].b_fd), b[i].b);
	for (; going < 2 && looks < 200; looks++) {
		talk(&other, 100);
		ask(SPELL);
		going = 0;
		for (int i = 0; i < PAIRS; i++)
			going += load_relaxed(&b[i].a->asked_back);
	}
	assert_int_equal(going, 2);
	assert_true(looks > 10);
	/* That process does it for them when it hears of it. */
	for (int i = 0; i < PAIRS; i++)
		assert_true(fdtab_install(b[i].b_fd, b[i].b));
	ceiling_help(now);
	for (int i = 0; i < PAIRS; i++)
		assert_true(!load_relaxed(&b[i].a->asked_back) || !conn_tx_on_ring(b[i].b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_least_recently_busy_goes_back, begin, end),
		cmocka_unit_test_setup_teardown(who_is_not_much_busier_takes_nobodys_place, begin, end),
		cmocka_unit_test_setup_teardown(a_pause_is_no_silence, begin, end),
		cmocka_unit_test_setup_teardown(calls_in_vain_are_no_traffic, begin, end),
		cmocka_unit_test_setup_teardown(what_is_unread_stays, begin, end),
		cmocka_unit_test_setup_teardown(who_has_just_come_stays, begin, end),
		cmocka_unit_test_setup_teardown(a_peer_that_makes_no_calls_is_not_waited_for, begin, end),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
