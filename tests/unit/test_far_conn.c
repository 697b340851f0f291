/* SPDX-License-Identifier: MIT */
/* Connections whose rings lie on two hosts. */
#include "tests/unit/far_bench.h"

#include "shim/far.h"

static void both_lanes_switch(void **state)
{
	struct bench b = bench_open();

	bench_link_far(&b);
	assert_true(conn_is_far(b.a) && conn_is_far(b.b));
	bench_switch(&b);
	bench_close_far(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_lanes_switch),
	};

	return cmocka_run_group_tests_name("far_conn", tests, bench_setup_group, NULL);
}
