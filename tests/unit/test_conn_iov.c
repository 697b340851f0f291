/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shim/conn_iov.h"

static uint8_t memory[64];

static void empty_pieces_are_passed_over(void **state)
{
	struct iovec iov[] = { { NULL, 0 }, { memory, 3 }, { NULL, 0 }, { NULL, 0 }, { memory + 10, 2 }, { NULL, 0 } };
	struct iov_walk w = { 0 };
	uint8_t *at;

	(void)state;
	assert_int_equal(iov_start(&w, iov, 6), 0);
	assert_int_equal(w.left, 5);
	assert_int_equal(iov_piece(&w, &at), 3);
	assert_ptr_equal(at, memory);
	iov_advance(&w, 2);
	assert_int_equal(iov_piece(&w, &at), 1);
	assert_ptr_equal(at, memory + 2);
	iov_advance(&w, 1);
	assert_int_equal(iov_piece(&w, &at), 2);
	assert_ptr_equal(at, memory + 10);
	iov_advance(&w, 2);
	assert_int_equal(iov_piece(&w, &at), 0);
}

static void skipping_crosses_pieces(void **state)
{
	struct iovec iov[] = { { memory, 4 }, { memory + 8, 4 }, { memory + 16, 4 } };
	struct iov_walk w = { 0 };
	uint8_t *at;

	(void)state;
	assert_int_equal(iov_start(&w, iov, 3), 0);
	iov_skip(&w, 9);
	assert_int_equal(iov_piece(&w, &at), 3);
	assert_ptr_equal(at, memory + 17);
	iov_skip(&w, 3);
	assert_int_equal(w.left, 0);
}

static void window_is_cut_at_the_cap_and_leaves_the_walk(void **state)
{
	struct iovec iov[] = { { memory, 4 }, { memory + 8, 4 }, { memory + 16, 4 } }, out[IOV_WINDOW];
	struct iov_walk w = { 0 };
	size_t bytes;

	(void)state;
	assert_int_equal(iov_start(&w, iov, 3), 0);
	iov_skip(&w, 1);
	assert_int_equal(iov_window(&w, 5, out, &bytes), 2);
	assert_int_equal(bytes, 5);
	assert_ptr_equal(out[0].iov_base, memory + 1);
	assert_int_equal(out[0].iov_len, 3);
	assert_int_equal(out[1].iov_len, 2);
	assert_int_equal(w.left, 11);
	assert_int_equal(iov_window(&w, 0, out, &bytes), 0);
	assert_int_equal(bytes, 0);
}

static void window_holds_so_many_pieces(void **state)
{
	struct iovec iov[IOV_WINDOW + 6], out[IOV_WINDOW];
	struct iov_walk w = { 0 };
	size_t bytes;

	(void)state;
	for (size_t i = 0; i < IOV_WINDOW + 6; i++)
		iov[i] = (struct iovec){ memory, 1 };
	assert_int_equal(iov_start(&w, iov, IOV_WINDOW + 6), 0);
	assert_int_equal(iov_window(&w, SIZE_MAX, out, &bytes), IOV_WINDOW);
	assert_int_equal(bytes, IOV_WINDOW);
	iov_skip(&w, bytes);
	assert_int_equal(iov_window(&w, SIZE_MAX, out, &bytes), 6);
}

static void kernel_would_refuse(void **state)
{
	static const struct {
		const char *name;
		struct iovec iov;
		size_t nr;
		int expected;
	} rows[] = {
		{ "null with a length, in its turn", { NULL, 1 }, 1, 0 },
		{ "null without", { NULL, 0 }, 1, 0 },
		{ "minus one", { (void *)-1L, 1 }, 1, -EFAULT },
		{ "kernel half", { (void *)0xffff800000000000, 8 }, 1, -EFAULT },
		{ "not canonical", { (void *)0x0000900000000000, 8 }, 1, -EFAULT },
		{ "negative length", { memory, (size_t)-1 }, 1, -EINVAL },
		{ "too many", { memory, 1 }, IOV_MAX + 1, -EMSGSIZE },
	};
	struct iov_walk w = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int r = iov_start(&w, &rows[i].iov, rows[i].nr);

		if (r != rows[i].expected)
			fail_msg("%s: %d instead of %d", rows[i].name, r, rows[i].expected);
	}
}

static void one_call_moves_so_much_at_most(void **state)
{
	struct iovec iov[] = { { memory, 0x7fffffff }, { memory, 0x7fffffff } };
	struct iov_walk w = { 0 };

	(void)state;
	assert_int_equal(iov_start(&w, iov, 2), 0);
	assert_int_equal(w.left, 0x7ffff000);
}

static void lengths_are_looked_at_before_addresses(void **state)
{
	struct iovec iov[] = { { memory, 0x7fffffff }, { (void *)-1L, 8 }, { memory, (size_t)-1 } };
	struct iov_walk w = { 0 };

	(void)state;
	assert_int_equal(iov_start(&w, iov, 2), -EFAULT);
	assert_int_equal(iov_start(&w, iov, 3), -EINVAL);
}

static void a_hole_is_met_where_bytes_go(void **state)
{
	struct iovec iov[] = { { memory, 4 }, { NULL, 0 }, { (void *)16, 4 } };
	struct iov_walk w = { 0 };

	(void)state;
	assert_int_equal(iov_start(&w, iov, 3), 0);
	assert_true(iov_meets_hole(&w));
	w.left = 5;
	assert_true(iov_meets_hole(&w));
	w.left = 4;
	assert_false(iov_meets_hole(&w));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(empty_pieces_are_passed_over),
		cmocka_unit_test(skipping_crosses_pieces),
		cmocka_unit_test(window_is_cut_at_the_cap_and_leaves_the_walk),
		cmocka_unit_test(window_holds_so_many_pieces),
		cmocka_unit_test(kernel_would_refuse),
		cmocka_unit_test(one_call_moves_so_much_at_most),
		cmocka_unit_test(lengths_are_looked_at_before_addresses),
		cmocka_unit_test(a_hole_is_met_where_bytes_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
