/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/lane_lock.h"

#define ROUNDS 20000

static struct {
	struct lane_lock lock;
	uint64_t plain_count;
} *shared;

static int map_shared(void **state)
{
	(void)state;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return shared == MAP_FAILED;
}

static void *count_up(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		assert_int_equal(lane_lock(&shared->lock, true), 0);
		shared->plain_count++;
		lane_unlock(&shared->lock);
	}
	return NULL;
}

static void one_at_a_time_between_threads_and_processes(void **state)
{
	pthread_t thread;
	int status;
	pid_t child;

	(void)state;
	shared->plain_count = 0;
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		lane_lock_fork_child();
		count_up(NULL);
		_exit(0);
	}
	assert_int_equal(pthread_create(&thread, NULL, count_up, NULL), 0);
	count_up(NULL);
	pthread_join(thread, NULL);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(shared->plain_count, 3 * ROUNDS);
	assert_false(lane_is_locked(&shared->lock));
}

static void own_thread_is_told_not_to_wait(void **state)
{
	(void)state;
	assert_int_equal(lane_lock(&shared->lock, true), 0);
	assert_int_equal(lane_lock(&shared->lock, true), -EDEADLK);
	assert_false(lane_trylock(&shared->lock, true));
	lane_unlock(&shared->lock);
	assert_true(lane_trylock(&shared->lock, true));
	lane_unlock(&shared->lock);
}

static void dead_holder_is_taken_over_from(void **state)
{
	int status;
	pid_t child = fork();

	(void)state;
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		lane_lock_fork_child();
		_exit(lane_lock(&shared->lock, true) == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_true(lane_is_locked(&shared->lock));
	assert_int_equal(lane_lock(&shared->lock, true), 1);
	lane_unlock(&shared->lock);
	assert_false(lane_is_locked(&shared->lock));
}

static void alone_it_is_a_store_and_still_not_taken_twice(void **state)
{
	struct lane_lock lock = { 0 };

	(void)state;
	if (!__libc_single_threaded)
		skip();
	assert_int_equal(lane_lock(&lock, false), 0);
	assert_int_equal(load_relaxed(&lock.owner), LANE_LOCK_ALONE);
	assert_int_equal(lane_lock(&lock, false), -EDEADLK);
	assert_false(lane_trylock(&lock, false));
	lane_unlock(&lock);
	assert_false(lane_is_locked(&lock));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(alone_it_is_a_store_and_still_not_taken_twice),
		cmocka_unit_test(own_thread_is_told_not_to_wait),
		cmocka_unit_test(dead_holder_is_taken_over_from),
		cmocka_unit_test(one_at_a_time_between_threads_and_processes),
	};

	return cmocka_run_group_tests(tests, map_shared, NULL);
}
