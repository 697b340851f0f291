/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shim/fdtab.h"
#include "shim/own_fd.h"

/* A hard limit only goes down without privileges: the tests run in the order of theirs. */
static void set_limits(rlim_t soft, rlim_t hard)
{
	struct rlimit limit = { soft, hard };

	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static int start(void **state)
{
	return fdtab_init() || own_fd_init();
}

static int make_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static void sits_above_the_soft_limit(void **state)
{
	struct rlimit limit;
	int holder = 0, low = make_fd();
	int fd;

	set_limits(256, 1024);
	fd = own_fd_adopt(low, &holder);
	assert_true(fd >= 256);
	assert_int_equal(holder, fd);
	assert_true(fdtab_hidden(fd));
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl(low, F_GETFD), -1);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(limit.rlim_cur, 256);
	own_fd_close(fd);
	assert_false(fdtab_hidden(fd));
	assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void leaves_most_numbers_to_the_program(void **state)
{
	int mine[64], nr = 0, fd;

	set_limits(256, 256);
	while (nr < 64 && (fd = own_fd_adopt(make_fd(), &mine[nr])) >= 0) {
		assert_true(fd >= 256 - 32 && fd < 256);
		nr++;
	}
	assert_int_equal(nr, 256 / 16);
	assert_int_equal(fd, -EMFILE);
	while (nr > 0)
		own_fd_close(mine[--nr]);
	fd = own_fd_adopt(make_fd(), NULL);
	assert_true(fd >= 0);
	own_fd_close(fd);
}

/* Also where it is at a number of the program's, it moves away for it. */
static void what_is_needed_takes_any_number(void **state)
{
	int mine[256 / 16], holder, other, fd;

	set_limits(256, 256);
	for (int i = 0; i < 256 / 16; i++)
		assert_true(own_fd_adopt(make_fd(), &mine[i]) >= 0);
	fd = own_fd_insist(make_fd(), &holder);
	assert_true(fd >= 0 && fd == holder && fdtab_hidden(fd));
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(own_fd_evict(fd), 0);
	assert_true(holder > 2 && holder != fd && fdtab_hidden(holder));
	assert_int_equal(close(fd), 0);
	own_fd_close(holder);
	assert_int_equal(fcntl(holder, F_GETFD), -1);
	other = own_fd_insist(make_fd(), &holder);
	assert_true(other >= 0);
	own_fd_close(other);
	for (int i = 0; i < 256 / 16; i++)
		own_fd_close(mine[i]);
}

static void takes_nothing_where_every_number_counts(void **state)
{
	int low = make_fd();

	set_limits(32, 32);
	assert_int_equal(own_fd_adopt(low, NULL), -EMFILE);
	assert_int_equal(fcntl(low, F_GETFD), -1);
}

static void moves_out_of_the_program_s_way(void **state)
{
	int holder, first, bytes_before, bytes_after;

	set_limits(256, 1024);
	first = own_fd_adopt(make_fd(), &holder);
	bytes_before = (int)lseek(first, 0, SEEK_CUR);
	assert_int_equal(own_fd_evict(first), 0);
	assert_int_not_equal(holder, first);
	assert_true(fdtab_hidden(holder));
	assert_false(fdtab_hidden(first));
	bytes_after = (int)lseek(holder, 0, SEEK_CUR);
	assert_int_equal(bytes_before, bytes_after);
	close(first);
	own_fd_close(holder);
}

static void says_busy_where_nobody_could_be_told(void **state)
{
	int fd;

	set_limits(256, 1024);
	fd = own_fd_adopt(make_fd(), NULL);
	assert_true(fd >= 0);
	assert_int_equal(own_fd_evict(fd), -EBUSY);
	own_fd_close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sits_above_the_soft_limit),
		cmocka_unit_test(moves_out_of_the_program_s_way),
		cmocka_unit_test(says_busy_where_nobody_could_be_told),
		cmocka_unit_test(leaves_most_numbers_to_the_program),
		cmocka_unit_test(what_is_needed_takes_any_number),
		cmocka_unit_test(takes_nothing_where_every_number_counts),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
