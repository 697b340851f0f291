/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <sys/syscall.h>

#include "shim/fdtab.h"
#include "tests/unit/family_fork.h"

/* family_fork.h can take connections along; these tests have none. */
void conn_fork_prepare(struct conn *const *held, unsigned nr, uint32_t child) {}
void conn_fork_child(void) {}
void conn_fork_cancel(struct conn *const *held, unsigned nr, uint32_t child) {}

static struct family *family;

static int start(void **state)
{
	(void)state;
	family = mmap(NULL, sizeof(*family), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (family == MAP_FAILED)
		return -1;
	family_init(family);
	return fdtab_init();
}

static void nobody_is_gone_before_the_first_fork(void **state)
{
	(void)state;
	assert_int_equal(family_me, 1);
	assert_false(family_is_gone(1));
	assert_false(family_is_gone(2));
}

/* Between its fork and its first step a child is alive already, and when it is killed it is gone before anybody waits for it. */
static void a_child_is_alive_from_its_fork_to_its_death(void **state)
{
	struct relative r;

	(void)state;
	assert_int_equal(relative_fork(&r, NULL, 0, false), 0);
	if (r.pid == 0)
		relative_stay(&r);
	assert_false(family_is_gone(r.member));
	relative_heard(&r);
	assert_false(family_is_gone(r.member));
	relative_kill(&r);
	assert_true(family_is_gone(r.member));
	relative_bury(&r);
	assert_true(family_is_gone(r.member));
}

static void one_killed_before_its_first_step_is_gone(void **state)
{
	struct relative r;

	(void)state;
	assert_int_equal(relative_fork(&r, NULL, 0, false), 0);
	if (r.pid == 0)
		for (;;)
			pause();
	relative_kill(&r);
	assert_true(family_is_gone(r.member));
	relative_bury(&r);
}

static void a_failed_fork_leaves_nobody(void **state)
{
	uint32_t member;

	(void)state;
	member = family_fork_prepare(true);
	assert_false(family_is_gone(member));
	family_fork_parent();
	assert_true(family_is_gone(member));
}

/* What a relative sees of the others, said by its exit status. */
static int look(uint32_t living, uint32_t dead)
{
	return (family_is_gone(living) ? 1 : 0) + (family_is_gone(dead) ? 0 : 2);
}

static void siblings_know_each_other(void **state)
{
	struct relative elder, dead, younger;
	int status;

	(void)state;
	assert_int_equal(relative_fork(&elder, NULL, 0, false), 0);
	if (elder.pid == 0)
		relative_stay(&elder);
	assert_int_equal(relative_fork(&dead, NULL, 0, false), 0);
	if (dead.pid == 0)
		relative_stay(&dead);
	relative_kill(&dead);
	assert_int_equal(relative_fork(&younger, NULL, 0, false), 0);
	if (younger.pid == 0)
		_exit(look(elder.member, dead.member) | (family_is_gone(1) ? 4 : 0));
	assert_int_equal(waitpid(younger.pid, &status, 0), younger.pid);
	assert_int_equal(status, 0);
	close(younger.said);
	relative_kill(&elder);
	relative_bury(&elder);
	relative_bury(&dead);
}

static void a_namespace_hides_nobody(void **state)
{
	struct relative elder, inner;
	int rc, status;

	(void)state;
	assert_int_equal(relative_fork(&elder, NULL, 0, false), 0);
	if (elder.pid == 0)
		relative_stay(&elder);
	rc = relative_fork(&inner, NULL, 0, true);
	if (rc == 0 && inner.pid == 0) {
		int seen = (family_is_gone(elder.member) ? 1 : 0) + (family_is_gone(1) ? 2 : 0);

		if (write(inner.says, "x", 1) != 1 || seen)
			_exit(seen);
		for (;;)
			pause();
	}
	if (rc == 0) {
		relative_heard(&inner);
		assert_false(family_is_gone(inner.member));
		assert_int_equal(kill(inner.pid, SIGKILL), 0);
		assert_int_equal(waitpid(inner.pid, &status, 0), inner.pid);
		assert_true(WIFSIGNALED(status));
		assert_true(family_is_gone(inner.member));
		close(inner.said);
	}
	relative_kill(&elder);
	relative_bury(&elder);
	if (rc < 0)
		skip();
}

/* One that was no heir takes its number when it needs one, and gives its parent's lock up before. */
static void a_late_joiner_has_a_number_of_its_own(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(family_fork_prepare(false), 0);
	pid = fork();
	if (pid == 0) {
		int wrong = 0;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		family_fork_child();
		wrong |= family_me != 0;
		family_join();
		wrong |= (family_me <= 1) << 1;
		wrong |= family_is_gone(family_me) << 2 | family_is_gone(1) << 3;
		_exit(wrong);
	}
	family_fork_parent();
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void a_number_of_the_living_is_not_given_again(void **state)
{
	struct relative first, second;

	(void)state;
	assert_int_equal(relative_fork(&first, NULL, 0, false), 0);
	if (first.pid == 0)
		relative_stay(&first);
	/* As after a thousand million forks. */
	store_relaxed(&family->last_member, FAMILY_MAX);
	assert_int_equal(relative_fork(&second, NULL, 0, false), 0);
	if (second.pid == 0)
		relative_stay(&second);
	assert_int_not_equal(second.member, 0);
	assert_int_not_equal(second.member, 1);
	assert_int_not_equal(second.member, first.member);
	relative_kill(&first);
	relative_kill(&second);
	relative_bury(&first);
	relative_bury(&second);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_is_gone_before_the_first_fork),
		cmocka_unit_test(a_child_is_alive_from_its_fork_to_its_death),
		cmocka_unit_test(one_killed_before_its_first_step_is_gone),
		cmocka_unit_test(a_failed_fork_leaves_nobody),
		cmocka_unit_test(siblings_know_each_other),
		cmocka_unit_test(a_namespace_hides_nobody),
		cmocka_unit_test(a_late_joiner_has_a_number_of_its_own),
		cmocka_unit_test(a_number_of_the_living_is_not_given_again),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
