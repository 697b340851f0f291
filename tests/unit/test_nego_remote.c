/* SPDX-License-Identifier: MIT */
/* The rendezvous between hosts: both ends in one process, over the real engine and the double of its device. */
#include "tests/unit/nego_bench.h"

#include <errno.h>
#include <string.h>

#include "shim/far.h"
#include "tests/unit/verbs_fake.h"

extern const struct verbs_table ringway_verbs;

static void remote_open(enum kind kind)
{
	fake_reset();
	options.transports = TRANSPORT_BIT_VERBS;
	seen.engine = (void *)(uintptr_t)&ringway_verbs;
	bench_open(kind);
}

static void remote_close(void)
{
	bench_close();
	assert_int_equal(fake_live(), 0);
}

static void poke_both(int times)
{
	for (int i = 0; i < times; i++) {
		poke_connector();
		poke_acceptor();
	}
}

static void two_ends_meet(void **state)
{
	for (enum kind kind = V4; kind < NR_KINDS; kind++) {
		remote_open(kind);
		move_counted("hello");
		poke_both(6);
		assert_linked();
		assert_true(conn_is_far(&bench.connector) && conn_is_far(&bench.acceptor));
		assert_int_equal(bench.connector.link.segment.ring_bytes, 65536);
		assert_int_equal(seen.adopts, 2);
		assert_int_equal(far_pump(&bench.connector, 0), 0);
		remote_close();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_ends_meet),
	};

	return cmocka_run_group_tests_name("nego_remote", tests, NULL, NULL);
}
