/* SPDX-License-Identifier: MIT */
/* A peer on another host that is known, and is not heard of for a while, because the path between the devices was cut (RETREAT.md section 6). */
#include "tests/unit/nego_bench.h"

#include <errno.h>

#include "shim/clock.h"
#include "shim/far.h"
#include "tests/unit/verbs_fake.h"

extern const struct verbs_table ringway_verbs;

static void known_open(void)
{
	fake_reset();
	options.transports = TRANSPORT_BIT_VERBS;
	seen.engine = (void *)(uintptr_t)&ringway_verbs;
	bench_open(V4);
	bench.connector.switches = bench.acceptor.switches = 2;
}

static void known_close(void)
{
	bench_close();
	assert_int_equal(fake_live(), 0);
}

/* Its path is there again, and the time for the next dial has come. */
static void meet_in_the_end(void)
{
	for (int i = 0; i < 12 && seen.links < 2; i++) {
		poke_connector();
		bench.acceptor.nego.again_ns = 0;
		poke_acceptor();
	}
	assert_linked();
}

/* However few calls a program makes, or many: what there is to wait for is a path that comes back, so it is waited for by the clock. */
static void the_next_offer_is_never_far(void **state)
{
	known_open();
	for (int offers = 0; offers < 10; offers++) {
		for (int i = 0; i < 100; i++) {
			poke_connector();
			if (bench.connector.nego.phase == NEGO_IDLE)
				break;
			bench.connector.nego.first_ns = 1;
		}
		assert_int_equal(bench.connector.nego.phase, NEGO_IDLE);
		assert_int_equal(bench.connector.reason, REASON_RETREAT);
		assert_true(bench.connector.nego.due_calls <= 64);
		assert_true(bench.connector.nego.again_ns <= coarse_ns() + 8 * options.patience_ms * UINT64_C(1000000));
		/* Not yet. */
		poke_connector();
		assert_int_equal(bench.connector.nego.phase, NEGO_IDLE);
		bench.connector.nego.again_ns = 1;
	}
	meet_in_the_end();
	known_close();
}

/* Of what the path let through each end has heard another part: who dials may find one who still waits for it to answer, or one who does not know of it yet. */
static void no_number_of_refusals_is_too_many(void **state)
{
	known_open();
	poke_connector();
	for (int i = 0; i < 60; i++) {
		bench.acceptor.nego.again_ns = bench.connector.nego.again_ns = 0;
		poke_acceptor();
		poke_acceptor();
		seen.adopt_rc = -EAGAIN;
		poke_connector();
		seen.adopt_rc = 0;
	}
	assert_int_equal(seen.pins, 0);
	meet_in_the_end();
	known_close();
}

static void a_way_that_is_not_found_is_looked_for_again(void **state)
{
	known_open();
	fake.no_route = true;
	for (int i = 0; i < 60; i++) {
		bench.acceptor.nego.again_ns = 0;
		poke_acceptor();
	}
	assert_int_equal(seen.pins, 0);
	fake.no_route = false;
	meet_in_the_end();
	known_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_next_offer_is_never_far),
		cmocka_unit_test(no_number_of_refusals_is_too_many),
		cmocka_unit_test(a_way_that_is_not_found_is_looked_for_again),
	};

	return cmocka_run_group_tests_name("nego_cut", tests, NULL, NULL);
}
