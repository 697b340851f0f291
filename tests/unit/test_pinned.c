/* SPDX-License-Identifier: MIT */
/* When the fd table may say that a connection is the kernel's for good, and what its calls still do. */
#include "tests/unit/conn_bench.h"

#include <sys/socket.h>
#include <unistd.h>

#include "shim/fdtab.h"
#include "shim/pinned.h"

static bool is_known(int fd)
{
	return fdtab_word((uint32_t)fd) & FD_PINNED;
}

static void one_that_may_still_move_is_not_noted(void **state)
{
	struct bench b = bench_open();

	(void)state;
	pinned_note(b.a, b.a_fd);
	assert_false(is_known(b.a_fd));
	bench_close(&b);
}

static void one_that_was_linked_is_not_noted(void **state)
{
	struct bench b = bench_open();

	(void)state;
	bench_link(&b);
	conn_pin(b.a, REASON_EXEC);
	assert_int_equal(load_relaxed(&b.a->tx.mode), MODE_PINNED);
	pinned_note(b.a, b.a_fd);
	assert_false(is_known(b.a_fd));
	bench_close(&b);
}

static void a_pinned_one_is_noted_and_found_as_before(void **state)
{
	struct bench b = bench_open();

	(void)state;
	conn_pin(b.a, REASON_EXEC);
	pinned_note(b.a, b.a_fd);
	assert_true(is_known(b.a_fd));
	assert_ptr_equal(fdtab_get(b.a_fd), b.a);
	bench_close(&b);
}

static void a_number_of_another_is_left_alone(void **state)
{
	struct bench b = bench_open();

	(void)state;
	conn_pin(b.a, REASON_EXEC);
	pinned_note(b.a, b.b_fd);
	assert_false(is_known(b.b_fd));
	assert_false(is_known(b.a_fd));
	bench_close(&b);
}

static void its_bytes_are_counted(void **state)
{
	struct bench b = bench_open();

	(void)state;
	conn_pin(b.a, REASON_EXEC);
	pinned_note(b.a, b.a_fd);
	assert_int_equal(pinned_sent(b.a_fd, 5), 5);
	assert_int_equal(pinned_sent(b.a_fd, -1), -1);
	assert_int_equal(pinned_sent(b.a_fd, 70000), 70000);
	assert_int_equal(pinned_received(b.a_fd, 7), 7);
	assert_int_equal(pinned_received(b.a_fd, -1), -1);
	assert_int_equal(load_relaxed(&b.a->tx.tcp_bytes), 70005);
	assert_int_equal(load_relaxed(&b.a->rx.tcp_bytes), 7);
	store_relaxed(&b.a->shared, 1);
	assert_int_equal(pinned_received(b.a_fd, 3), 3);
	assert_int_equal(load_relaxed(&b.a->rx.tcp_bytes), 10);
	bench_close(&b);
}

static void bytes_of_a_number_that_is_not_known_any_more_are_nobodys(void **state)
{
	struct bench b = bench_open();

	(void)state;
	assert_int_equal(pinned_received(b.a_fd, 7), 7);
	assert_int_equal(pinned_sent(b.a_fd, 7), 7);
	assert_int_equal(load_relaxed(&b.a->rx.tcp_bytes), 0);
	assert_int_equal(load_relaxed(&b.a->tx.tcp_bytes), 0);
	bench_close(&b);
}

static void an_error_that_is_owed_comes_instead_of_the_end(void **state)
{
	struct bench b = bench_open();

	(void)state;
	conn_pin(b.a, REASON_EXEC);
	pinned_note(b.a, b.a_fd);
	store_relaxed(&b.a->rx.pending_errno, ECONNRESET);
	assert_int_equal(pinned_received(b.a_fd, 0), -1);
	assert_int_equal(errno, ECONNRESET);
	assert_int_equal(pinned_received(b.a_fd, 0), 0);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_that_may_still_move_is_not_noted),
		cmocka_unit_test(one_that_was_linked_is_not_noted),
		cmocka_unit_test(a_pinned_one_is_noted_and_found_as_before),
		cmocka_unit_test(a_number_of_another_is_left_alone),
		cmocka_unit_test(its_bytes_are_counted),
		cmocka_unit_test(bytes_of_a_number_that_is_not_known_any_more_are_nobodys),
		cmocka_unit_test(an_error_that_is_owed_comes_instead_of_the_end),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
