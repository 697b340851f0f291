/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "shim/fdtab.h"
#include "shim/lane_lock.h"
#include "tests/unit/family_fork.h"

#define ROUNDS 20000

/* family_fork.h can take connections along; these tests have none. */
void conn_fork_prepare(struct conn *const *held, unsigned nr, uint32_t child) {}
void conn_fork_child(void) {}
void conn_fork_cancel(struct conn *const *held, unsigned nr, uint32_t child) {}

static struct {
	struct lane_lock lock;
	struct family family;
	uint64_t plain_count;
} *shared;

static int map_shared(void **state)
{
	(void)state;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || fdtab_init())
		return -1;
	family_init(&shared->family);
	return 0;
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
	struct relative r;
	pthread_t thread;
	int status;

	(void)state;
	shared->plain_count = 0;
	assert_int_equal(relative_fork(&r, NULL, 0, false), 0);
	if (r.pid == 0) {
		count_up(NULL);
		_exit(0);
	}
	assert_int_equal(pthread_create(&thread, NULL, count_up, NULL), 0);
	count_up(NULL);
	pthread_join(thread, NULL);
	assert_int_equal(waitpid(r.pid, &status, 0), r.pid);
	assert_int_equal(status, 0);
	close(r.said);
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

/* A relative that holds the lock until it is killed. False: no namespace for us. */
static bool holder_fork(struct relative *r, bool own_namespace)
{
	if (relative_fork(r, NULL, 0, own_namespace) < 0)
		return false;
	if (r->pid == 0) {
		if (lane_lock(&shared->lock, true) == 0)
			relative_stay(r);
		_exit(1);
	}
	relative_heard(r);
	return true;
}

static void dead_holder_is_taken_over_from(void **state)
{
	struct relative r;

	(void)state;
	assert_true(holder_fork(&r, false));
	relative_kill(&r);
	assert_true(lane_is_locked(&shared->lock));
	assert_int_equal(lane_lock(&shared->lock, true), 1);
	lane_unlock(&shared->lock);
	assert_false(lane_is_locked(&shared->lock));
	relative_bury(&r);
}

static void who_tries_takes_over_from_the_dead_only(void **state)
{
	struct relative r;

	(void)state;
	assert_true(holder_fork(&r, false));
	assert_int_equal(lane_trylock(&shared->lock, true), 0);
	relative_kill(&r);
	assert_int_equal(lane_trylock(&shared->lock, true), LANE_TAKEN_OVER);
	lane_unlock(&shared->lock);
	relative_bury(&r);
}

static void dead_holder_in_another_namespace_is_taken_over_from(void **state)
{
	struct relative r;

	(void)state;
	if (!holder_fork(&r, true))
		skip();
	assert_int_equal(lane_trylock(&shared->lock, true), 0);
	relative_kill(&r);
	assert_int_equal(lane_lock(&shared->lock, true), 1);
	lane_unlock(&shared->lock);
	relative_bury(&r);
}

/* ---- circles ---- */

static struct lane_lock first, second, third;

struct part {
	struct lane_lock *has, *wants;
	pthread_barrier_t *all_have;
	int got;
};

static void *takes_part(void *arg)
{
	struct part *p = arg;

	assert_int_equal(lane_lock(p->has, true), 0);
	pthread_barrier_wait(p->all_have);
	p->got = lane_lock(p->wants, true);
	if (p->got == 0)
		lane_unlock(p->wants);
	lane_unlock(p->has);
	return NULL;
}

/* None is a handler's. */
static void one_of_a_circle_gives_up(void **state)
{
	pthread_barrier_t all_have;
	struct part part[] = {
		{ &first, &second, &all_have, 1 }, { &second, &third, &all_have, 1 }, { &third, &first, &all_have, 1 },
	};
	pthread_t thread[3];
	int nr_gave_up = 0;

	(void)state;
	pthread_barrier_init(&all_have, NULL, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, takes_part, &part[i]), 0);
	for (int i = 0; i < 3; i++) {
		pthread_join(thread[i], NULL);
		nr_gave_up += part[i].got == -EDEADLK;
		assert_true(part[i].got == 0 || part[i].got == -EDEADLK);
	}
	pthread_barrier_destroy(&all_have);
	assert_int_equal(nr_gave_up, 1);
}

static void *waits_surely(void *arg)
{
	struct part *p = arg;

	assert_int_equal(lane_lock(p->has, true), 0);
	pthread_barrier_wait(p->all_have);
	lane_lock_surely(p->wants);
	lane_unlock(p->wants);
	lane_unlock(p->has);
	return NULL;
}

static void who_cannot_do_without_is_not_the_one(void **state)
{
	pthread_barrier_t all_have;
	struct part part[] = { { &first, &second, &all_have, 1 }, { &second, &first, &all_have, 1 } };
	pthread_t thread[2];

	(void)state;
	pthread_barrier_init(&all_have, NULL, 2);
	assert_int_equal(pthread_create(&thread[0], NULL, takes_part, &part[0]), 0);
	assert_int_equal(pthread_create(&thread[1], NULL, waits_surely, &part[1]), 0);
	pthread_join(thread[0], NULL);
	pthread_join(thread[1], NULL);
	pthread_barrier_destroy(&all_have);
	assert_int_equal(part[0].got, -EDEADLK);
}

/* The waiter's patience ends several times, with a holder whose thread id names nobody in its namespace. */
static void nobody_takes_over_from_the_living_in_another_namespace(void **state)
{
	struct relative r;
	struct pollfd p;

	(void)state;
	assert_int_equal(lane_lock(&shared->lock, true), 0);
	if (relative_fork(&r, NULL, 0, true) < 0) {
		lane_unlock(&shared->lock);
		skip();
	}
	if (r.pid == 0) {
		int got = lane_lock(&shared->lock, true);

		_exit(write(r.says, got == 0 ? "0" : "1", 1) != 1);
	}
	p = (struct pollfd){ .fd = r.said, .events = POLLIN };
	assert_int_equal(poll(&p, 1, 100), 0);
	lane_unlock(&shared->lock);
	{
		char got;

		assert_int_equal(read(r.said, &got, 1), 1);
		assert_int_equal(got, '0');
	}
	relative_bury(&r);
	assert_int_equal(lane_lock(&shared->lock, true), 1);
	lane_unlock(&shared->lock);
}

static _Atomic bool taken, enough;

static void *take_it(void *arg)
{
	struct lane_lock *lock = arg;

	assert_int_equal(lane_lock(lock, true), 0);
	store_release(&taken, true);
	while (!load_acquire(&enough))
		sched_yield();
	lane_unlock(lock);
	return NULL;
}

/* Others may have been asleep beside it, and the unlock that woke it has taken their mark away. */
static void who_has_slept_for_it_wakes_the_next(void **state)
{
	static struct lane_lock lock;
	pthread_t thread;

	(void)state;
	assert_int_equal(lane_lock(&lock, true), 0);
	assert_int_equal(pthread_create(&thread, NULL, take_it, &lock), 0);
	while (!(load_relaxed(&lock.owner) & LANE_LOCK_WAITERS))
		sched_yield();
	lane_unlock(&lock);
	while (!load_acquire(&taken))
		sched_yield();
	assert_true(load_relaxed(&lock.owner) & LANE_LOCK_WAITERS);
	store_release(&enough, true);
	pthread_join(thread, NULL);
	assert_false(lane_is_locked(&lock));
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
		cmocka_unit_test(one_of_a_circle_gives_up),
		cmocka_unit_test(who_cannot_do_without_is_not_the_one),
		cmocka_unit_test(dead_holder_is_taken_over_from),
		cmocka_unit_test(who_tries_takes_over_from_the_dead_only),
		cmocka_unit_test(dead_holder_in_another_namespace_is_taken_over_from),
		cmocka_unit_test(nobody_takes_over_from_the_living_in_another_namespace),
		cmocka_unit_test(who_has_slept_for_it_wakes_the_next),
		cmocka_unit_test(one_at_a_time_between_threads_and_processes),
	};

	return cmocka_run_group_tests(tests, map_shared, NULL);
}
