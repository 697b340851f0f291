/* SPDX-License-Identifier: MIT */
/* The rendezvous of a connection that has been on rings, or is not to be (RETREAT.md section 6). */
#include "tests/unit/nego_bench.h"

#include "shim/links.h"

/* It runs Ringway, or did: it may be off, or draining. */
static void a_peer_of_a_former_link_is_not_given_up(void **state)
{
	uint64_t last = 0, gap = 0;
	int nr_gaps = 0;

	bench_open(V4);
	bench.connector.switches = bench.acceptor.switches = 2;
	for (int i = 0; i < 4000 && nr_gaps < 9; i++) {
		uint64_t due = bench.connector.nego.due_calls;

		bench.connector.tx.calls = due;
		poke_connector();
		bench.connector.nego.first_ns = 1;
		if (bench.connector.nego.due_calls - due < 1024)
			continue;
		/* The listener is gone until then. */
		assert_int_equal(nego_wait_fd(&bench.connector), -1);
		last = bench.connector.nego.due_calls - due;
		assert_int_equal(last, gap ? (gap < 65536 ? 2 * gap : 65536) : 1024);
		gap = last;
		nr_gaps++;
	}
	assert_int_equal(nr_gaps, 9);
	for (int i = 0; i < 200; i++) {
		uint64_t due = bench.acceptor.nego.due_calls;

		bench.acceptor.rx.calls = due;
		poke_acceptor();
		bench.acceptor.nego.first_ns = 1;
		assert_true(bench.acceptor.nego.due_calls - due <= 64);
	}
	assert_int_equal(seen.pins, 0);
	assert_int_equal(bench.acceptor.reason, REASON_RETREAT);
	/* And there it is again. */
	poke_connector();
	for (int i = 0; i < 4 && seen.links < 2; i++) {
		poke_acceptor();
		poke_connector();
	}
	assert_linked();
	bench_close();
}

static void one_that_is_off_makes_no_step(void **state)
{
	bench_open(V4);
	poke_connector();
	assert_true(nego_wait_fd(&bench.connector) >= 0);
	seen.off = true;
	for (int i = 0; i < 100; i++) {
		poke_connector();
		poke_acceptor();
	}
	assert_int_equal(nego_wait_fd(&bench.connector), -1);
	assert_int_equal(bench.connector.reason, REASON_OFF);
	assert_int_equal(bench.connector.nego.due_calls, 64);
	assert_int_equal(seen.pins + seen.links, 0);
	seen.off = false;
	for (int i = 0; i < 4 && seen.links < 2; i++) {
		poke_connector();
		poke_acceptor();
	}
	assert_linked();
	bench_close();
}

/* One end has counted frames that the other has not: they do not stand at the same place. */
static void ends_of_two_epochs_do_not_meet(void **state)
{
	bench_open(V4);
	bench.acceptor.switches = 2;
	for (int i = 0; i < 6; i++) {
		poke_connector();
		poke_acceptor();
	}
	assert_int_equal(seen.links + seen.pins, 0);
	bench.connector.switches = 2;
	for (int i = 0; i < 6 && seen.links < 2; i++) {
		poke_connector();
		poke_acceptor();
	}
	assert_linked();
	bench_close();
}

static void poke_both(int times)
{
	for (int i = 0; i < times; i++) {
		poke_connector();
		bench.acceptor.nego.again_ns = 0;
		poke_acceptor();
	}
}

/* Both hear of each other, and neither is done with the other. */
static void an_acceptor_without_room_says_so(void **state)
{
	uint64_t farthest = 0;

	bench_open(V4);
	options.max_links = 1;
	assert_true(links_take());
	poke_both(6);
	assert_true(seen.room_asked > 0 && seen.helped > 0);
	assert_int_equal(seen.lacks, REASON_CEILING);
	assert_int_equal(bench.acceptor.reason, REASON_CEILING);
	assert_int_equal(bench.connector.reason, REASON_CEILING);
	/* However long: their steps become few. */
	for (int i = 0; i < 200; i++) {
		bench.connector.tx.calls = bench.connector.nego.due_calls;
		bench.acceptor.rx.calls = bench.acceptor.nego.due_calls;
		bench.connector.nego.first_ns = bench.acceptor.nego.first_ns = 1;
		poke_both(1);
		if (bench.connector.nego.due_calls - bench.connector.tx.calls > farthest)
			farthest = bench.connector.nego.due_calls - bench.connector.tx.calls;
	}
	assert_int_equal(seen.pins + seen.links, 0);
	assert_true(farthest >= 1024);
	assert_int_equal(links_nr(), 1);
	links_give();
	poke_both(4);
	assert_int_equal(seen.links, 0);
	options.max_links = 2;
	for (int i = 0; i < 12 && seen.links < 2; i++)
		poke_both(1);
	assert_linked();
	assert_int_equal(links_nr(), 2);
	options.max_links = 0;
	bench_close();
}

/* There is room for one end only, and that is the one that makes the first. */
static void a_connector_without_room_says_so(void **state)
{
	bench_open(V4);
	options.max_links = 1;
	poke_both(12);
	assert_int_equal(seen.pins + seen.links, 0);
	assert_true(seen.room_asked > 0 && seen.helped > 0);
	assert_int_equal(bench.acceptor.reason, REASON_CEILING);
	assert_int_equal(bench.connector.reason, REASON_CEILING);
	assert_true(links_nr() <= 1);
	options.max_links = 2;
	for (int i = 0; i < 12 && seen.links < 2; i++)
		poke_both(1);
	assert_linked();
	options.max_links = 0;
	bench_close();
	assert_int_equal(links_nr(), 0);
}

/* One is on its way back: the next step is near. */
static void room_that_comes_is_looked_for_at_once(void **state)
{
	bench_open(V4);
	options.max_links = 1;
	assert_true(links_take());
	seen.room_comes = true;
	poke_connector();
	poke_acceptor();
	assert_int_equal(bench.acceptor.nego.again_ns, 0);
	assert_int_equal(bench.acceptor.nego.due_calls, 1);
	seen.room_comes = false;
	poke_acceptor();
	assert_true(bench.acceptor.nego.again_ns > 0);
	links_give();
	options.max_links = 0;
	bench_close();
}

/* One that nobody has met is not looked for any longer for it. */
static void a_peer_that_nobody_met_is_given_up(void **state)
{
	bench_open(V4);
	options.max_links = 1;
	assert_true(links_take());
	for (int i = 0; i < 100 && seen.pins < 1; i++) {
		bench.acceptor.nego.first_ns = 1;
		poke_acceptor();
	}
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_PEER_SILENT);
	assert_int_equal(seen.room_asked, 0);
	links_give();
	options.max_links = 0;
	bench_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_peer_of_a_former_link_is_not_given_up),
		cmocka_unit_test(one_that_is_off_makes_no_step),
		cmocka_unit_test(ends_of_two_epochs_do_not_meet),
		cmocka_unit_test(an_acceptor_without_room_says_so),
		cmocka_unit_test(a_connector_without_room_says_so),
		cmocka_unit_test(room_that_comes_is_looked_for_at_once),
		cmocka_unit_test(a_peer_that_nobody_met_is_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
