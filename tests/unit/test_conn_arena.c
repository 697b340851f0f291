/* SPDX-License-Identifier: MIT */
/* The arena of connection records: memory is used for records that are, and only for them. */
#include "tests/unit/conn_bench.h"

#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/conn_arena.h"

enum { NR_MANY = 2100 }; /* past the point where the arena looks for what dead relatives left */

static bool has_memory(uint32_t index)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	unsigned char resident = 0;

	if (!conn_at(index))
		return false;
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

static void records_that_were_never_taken_have_no_address(void **state)
{
	(void)state;
	assert_non_null(conn_at(0));
	assert_null(conn_at(CONN_MAX - 1));
}

/* The child gives addresses to records that the parent has never met, and leaves them free: the parent finds them by itself, and they are the same memory. */
static void a_relative_s_records_are_found(void **state)
{
	static struct conn *taken[NR_MANY];
	uint32_t first = UINT32_MAX, last = 0, tag;
	int status;
	pid_t pid = fork();

	(void)state;
	assert_true(pid >= 0);
	if (pid == 0) {
		for (int i = 0; i < NR_MANY + 3000; i++) {
			struct conn *c = arena_take();

			if (!c)
				_exit(1);
			c->peer_nonce[0] = c->index + UINT64_C(7);
		}
		for (uint32_t i = 0; i < NR_MANY + 3000; i++)
			arena_give_back(conn_at(i));
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int i = 0; i < NR_MANY; i++) {
		taken[i] = arena_take();
		assert_non_null(taken[i]);
		tag = taken[i]->index;
		assert_ptr_equal(conn_at(tag), taken[i]);
		assert_int_equal(taken[i]->peer_nonce[0], tag + 7);
		assert_false(conn_hold(taken[i], -1));
		first = tag < first ? tag : first;
		last = tag > last ? tag : last;
	}
	/* In more than one step, some of them new here. */
	assert_true(last > NR_MANY + 2000 && last - first >= NR_MANY - 1);
	for (int i = 0; i < NR_MANY; i++)
		arena_give_back(taken[i]);
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
		cmocka_unit_test(records_that_were_never_taken_have_no_address),
		cmocka_unit_test(records_that_were_never_taken_have_no_memory),
		cmocka_unit_test(a_relative_s_records_are_found),
		cmocka_unit_test(discarded_records_are_taken_again),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
