/* SPDX-License-Identifier: MIT */
/* A poll beside another thread's call on the same connection, at the moments at which the one could miss what the other leaves. */
#include "tests/unit/conn_bench.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/doorbell.h"
#include "shim/conn_lock.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "shim/ready_poll.h"
#include "tests/support/asleep.h"

bool epoll_set_concerns_us(const struct epoll_set *s)
{
	return false;
}

void epoll_set_nest(struct epoll_set *s)
{
}

void epoll_set_refresh(struct epoll_set *s)
{
}

int64_t epoll_set_until_probe(const struct epoll_set *s, int64_t left_ns)
{
	return left_ns;
}

static struct bench b;

static short poll_b(void)
{
	struct pollfd p = { .fd = b.b_fd, .events = POLLIN };

	alarm(20);
	assert_int_equal(ready_poll(&p, 1, -1, NULL, false), 1);
	alarm(0);
	return p.revents;
}

/* ---- closed -------------------------------------------------------------------------------------------------------- */

static pid_t poller;
static _Atomic bool asleep_once;

/* The first half of another thread's close(), between a look of the poll and its sleep. */
static void close_begins(void)
{
	bench_when_looked(NULL);
	assert_ptr_equal(fdtab_remove(b.b_fd), b.b);
	conn_release(b.b, b.b_fd);
}

static void note_sleep(int64_t ns)
{
	store_release(&asleep_once, true);
}

/* ... and its second half. */
static void *close_ends(void *arg)
{
	while (!load_acquire(&asleep_once) || !asleep(poller))
		sched_yield();
	close(b.b_fd);
	assert_sends(b.a, b.a_fd, "some bytes");
	return NULL;
}

static void a_close_between_look_and_sleep_is_seen(void **state)
{
	pthread_t thread;

	b = bench_on_rings();
	assert_int_equal(conn_learn_addresses(b.b, b.b_fd), 0);
	poller = gettid();
	store_release(&asleep_once, false);
	told.sleeps_for = note_sleep;
	bench_when_looked(close_begins);
	assert_int_equal(pthread_create(&thread, NULL, close_ends, NULL), 0);
	assert_int_equal(poll_b(), POLLNVAL);
	assert_int_equal(pthread_join(thread, NULL), 0);
	bench_close_a(&b);
}

/* ---- an end that came while the lane was locked -------------------------------------------------------------------- */

/* By another thread, which has looked for frames already. */
static void lock_lane(void)
{
	bench_when_looked(NULL);
	assert_true(conn_trylock_rx(b.b));
}

static void unlock_lane(int64_t ns)
{
	told.sleeps_for = NULL;
	lane_unlock(&b.b->rx.lock);
}

static void an_end_under_another_threads_lock_is_seen(void **state)
{
	b = bench_on_rings();
	/* The kernel's end alone, as a killed peer leaves it. */
	assert_int_equal(shutdown(b.a_fd, SHUT_WR), 0);
	bench_when_looked(lock_lane);
	told.sleeps_for = unlock_lane;
	assert_int_equal(poll_b(), POLLIN);
	assert_null(told.sleeps_for);
	bench_close(&b);
}

/* ---- a shutdown of our own ---- */

/* By another thread, between a look's beginning and its end. */
static void shut_both(void)
{
	bench_when_looked(NULL);
	assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_RDWR), 0);
}

/* In a look that began before it, too: what can be read is told with what has ended. */
static void a_shutdown_in_a_look_is_told_whole(void **state)
{
	static const short wants[] = { POLLIN | POLLRDHUP, POLLIN };

	for (int i = 0; i < 2; i++) {
		struct pollfd p = { .events = wants[i] };

		b = bench_on_rings();
		p.fd = b.b_fd;
		bench_when_looked(shut_both);
		alarm(20);
		assert_int_equal(ready_poll(&p, 1, -1, NULL, false), 1);
		alarm(0);
		assert_int_equal(p.revents, wants[i] | POLLHUP);
		bench_close(&b);
	}
}

/* ---- two numbers of one connection --------------------------------------------------------------------------------- */

static int nr_looks;

/* Between the looks at the first number and at the second. */
static void bytes_come(void)
{
	if (++nr_looks < 2)
		return;
	bench_when_looked(NULL);
	assert_sends(b.a, b.a_fd, "some bytes");
}

static void wake_for_nothing(int64_t ns)
{
	told.sleeps_for = NULL;
	assert_int_equal(bell_ring(b.b->link.rx.bells.bell_fd, &b.b->link.rx.bells.own), 0);
	nr_looks = 0;
	bench_when_looked(bytes_come);
}

static void bytes_between_two_looks_are_told_of_both_numbers(void **state)
{
	struct pollfd p[2];
	int copy;

	b = bench_on_rings();
	copy = dup(b.b_fd);
	assert_true(copy >= 0 && fdtab_install(copy, b.b));
	p[0] = (struct pollfd){ .fd = b.b_fd, .events = POLLIN };
	p[1] = (struct pollfd){ .fd = copy, .events = POLLIN };
	told.sleeps_for = wake_for_nothing;
	alarm(20);
	assert_int_equal(ready_poll(p, 2, -1, NULL, false), 2);
	alarm(0);
	assert_int_equal(nr_looks, 2);
	assert_int_equal(p[0].revents, POLLIN);
	assert_int_equal(p[1].revents, POLLIN);
	fdtab_remove(copy);
	close(copy);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_close_between_look_and_sleep_is_seen),
		cmocka_unit_test(an_end_under_another_threads_lock_is_seen),
		cmocka_unit_test(a_shutdown_in_a_look_is_told_whole),
		cmocka_unit_test(bytes_between_two_looks_are_told_of_both_numbers),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
