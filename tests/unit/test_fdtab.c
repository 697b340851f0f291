/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

#include "shim/fdtab.h"

/* Never looked into. */
static struct conn *const conn_a = (struct conn *)0x1000, *const conn_b = (struct conn *)0x2000;
static struct epoll_set *const set_a = (struct epoll_set *)0x3000;

static int fresh(void **state)
{
	fdtab = (struct fdtab){ .nr = 0 };
	return fdtab_init();
}

static void is_empty_before_it_is_there(void **state)
{
	fdtab = (struct fdtab){ .nr = 0 };
	assert_null(fdtab_get(0));
	assert_false(fdtab_hidden(0));
	assert_false(fdtab_install(0, conn_a));
	assert_int_equal(fdtab_next(0), -1);
}

static void refuses_numbers_out_of_range(void **state)
{
	static const int numbers[] = { -1, INT32_MIN, (int)FDTAB_MAX, INT32_MAX };

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		assert_false(fdtab_install(numbers[i], conn_a));
		assert_false(fdtab_mark(numbers[i], FD_MARK_TCP));
		assert_null(fdtab_get(numbers[i]));
		assert_null(fdtab_remove(numbers[i]));
		assert_null(fdtab_remove_epoll(numbers[i]));
		assert_false(fdtab_tcp(numbers[i]));
	}
	assert_true(fdtab_install((int)FDTAB_MAX - 1, conn_a));
	assert_ptr_equal(fdtab_get((int)FDTAB_MAX - 1), conn_a);
}

static void an_entry_is_taken_once(void **state)
{
	assert_true(fdtab_install(5, conn_a));
	assert_ptr_equal(fdtab_remove(5), conn_a);
	assert_null(fdtab_remove(5));
	assert_true(fdtab_install_epoll(6, set_a));
	assert_ptr_equal(fdtab_epoll(6), set_a);
	assert_null(fdtab_get(6));
	assert_ptr_equal(fdtab_remove_epoll(6), set_a);
	assert_null(fdtab_remove_epoll(6));
}

static void an_entry_is_pinned_while_it_is_the_same(void **state)
{
	assert_true(fdtab_install(5, conn_a));
	fdtab_set_pinned(5, conn_b);
	assert_int_equal(fdtab_word(5), (uintptr_t)conn_a);
	fdtab_set_pinned(5, conn_a);
	assert_int_equal(fdtab_word(5), (uintptr_t)conn_a | FD_PINNED);
	assert_ptr_equal(fdtab_get(5), conn_a);
	assert_int_equal(fdtab_next_conn(0), 5);
	assert_ptr_equal(fdtab_remove(5), conn_a);
	fdtab_set_pinned(5, conn_a);
	assert_int_equal(fdtab_word(5), 0);
	assert_true(fdtab_install(5, conn_b));
	assert_int_equal(fdtab_word(5), (uintptr_t)conn_b);
	fdtab_set_pinned(-1, conn_a);
	fdtab_set_pinned((int)FDTAB_MAX, conn_a);
}

static void a_connection_replaces_the_mark_of_its_socket(void **state)
{
	assert_true(fdtab_mark(7, FD_MARK_TCP));
	assert_true(fdtab_tcp(7));
	assert_true(fdtab_install(7, conn_b));
	assert_false(fdtab_tcp(7));
	assert_ptr_equal(fdtab_get(7), conn_b);
}

static void remembers_who_holds_a_hidden_number(void **state)
{
	int holder;

	assert_true(fdtab_install_hidden(9, &holder));
	assert_true(fdtab_hidden(9));
	assert_ptr_equal(fdtab_holder(9), &holder);
	assert_null(fdtab_epoll(9));
	assert_true(fdtab_install_hidden(10, NULL));
	assert_true(fdtab_hidden(10));
	assert_null(fdtab_holder(10));
}

static void walks_in_order(void **state)
{
	fdtab_install(3, conn_a);
	fdtab_install_hidden(8, NULL);
	fdtab_mark(11, FD_MARK_TCP);
	fdtab_install(200, conn_b);
	assert_int_equal(fdtab_next(0), 3);
	assert_int_equal(fdtab_next(4), 11);
	assert_int_equal(fdtab_next(12), 200);
	assert_int_equal(fdtab_next(201), -1);
	fdtab_install_hidden(5000, NULL);
	assert_int_equal(fdtab_next(201), -1);
	assert_int_equal(fdtab_next_hidden(9), 5000);
	fdtab_mark(5000, FD_MARK_NONE);
	assert_int_equal(fdtab_next(UINT32_MAX), -1);
	assert_int_equal(fdtab_next_conn(4), 200);
	assert_int_equal(fdtab_next_hidden(0), 8);
	assert_int_equal(fdtab_next_hidden(9), -1);
}

enum { ROUNDS = 2000 };
static _Atomic int taken;

static void *take_all(void *arg)
{
	for (int fd = 0; fd < ROUNDS; fd++)
		if (fdtab_remove(fd))
			fetch_add(&taken, 1);
	return NULL;
}

static void two_threads_that_close_one_number_get_it_once(void **state)
{
	pthread_t threads[2];

	for (int fd = 0; fd < ROUNDS; fd++)
		fdtab_install(fd, conn_a);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, take_all, NULL), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(load_relaxed(&taken), ROUNDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_empty_before_it_is_there),
		cmocka_unit_test_setup(refuses_numbers_out_of_range, fresh),
		cmocka_unit_test_setup(an_entry_is_taken_once, fresh),
		cmocka_unit_test_setup(an_entry_is_pinned_while_it_is_the_same, fresh),
		cmocka_unit_test_setup(a_connection_replaces_the_mark_of_its_socket, fresh),
		cmocka_unit_test_setup(remembers_who_holds_a_hidden_number, fresh),
		cmocka_unit_test_setup(walks_in_order, fresh),
		cmocka_unit_test_setup(two_threads_that_close_one_number_get_it_once, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
