/* SPDX-License-Identifier: MIT */
/* The arena of connection records: memory is used for records that are, and only for them. */
#include "tests/unit/conn_bench.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim/conn_arena.h"

enum { NR_MANY = 2100 }; /* past the point where the arena looks for what dead relatives left */

static bool has_memory(uint32_t index)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	unsigned char resident = 0;

	assert_int_equal(mincore((void *)((uintptr_t)conn_at(index) & ~(page - 1)), 1, &resident), 0);
	return resident & 1;
}

static void records_that_were_never_taken_have_no_memory(void **state)
{
	static struct conn *taken[NR_MANY];

	(void)state;
	for (int i = 0; i < NR_MANY; i++) {
		taken[i] = conn_opened(CONN_ACCEPTED, true);
		assert_non_null(taken[i]);
	}
	assert_true(has_memory(taken[NR_MANY - 1]->index));
	for (uint32_t index = 2 * NR_MANY; index < CONN_MAX; index += NR_MANY)
		assert_false(has_memory(index));
	for (int i = 0; i < NR_MANY; i++)
		conn_discard(taken[i]);
}

static void discarded_records_are_taken_again(void **state)
{
	struct conn *c = conn_opened(CONN_CONNECTED, false), *again;
	uint32_t index;

	(void)state;
	assert_non_null(c);
	index = c->index;
	conn_discard(c);
	again = conn_opened(CONN_CONNECTED, false);
	assert_non_null(again);
	assert_int_equal(again->index, index);
	conn_discard(again);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_that_were_never_taken_have_no_memory),
		cmocka_unit_test(discarded_records_are_taken_again),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
