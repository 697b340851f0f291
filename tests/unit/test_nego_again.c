/* SPDX-License-Identifier: MIT */
/* The rendezvous of a connection that has been on rings, or is not to be (RETREAT.md section 6). */
#include "tests/unit/nego_bench.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_peer_of_a_former_link_is_not_given_up),
		cmocka_unit_test(one_that_is_off_makes_no_step),
		cmocka_unit_test(ends_of_two_epochs_do_not_meet),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
