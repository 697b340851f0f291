/* SPDX-License-Identifier: MIT */
/* Who sleeps in epoll_wait on a TCP connection, and what ends it: threads, signals, timeouts, forks. See pair.h. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "epoll_fixture.h"

/* ---- threads ------------------------------------------------------------------------------------------------------- */

struct waiter {
	pthread_t thread;
	int ep;
	int n;
	struct epoll_event ev;
};

static void *wait_once(void *arg)
{
	struct waiter *w = arg;

	w->n = epoll_wait(w->ep, &w->ev, 1, SOON_MS);
	return NULL;
}

static void start(struct waiter *w, int ep)
{
	w->ep = ep;
	assert_int_equal(pthread_create(&w->thread, NULL, wait_once, w), 0);
}

static void finish(struct waiter *w, uint64_t data)
{
	assert_int_equal(pthread_join(w->thread, NULL), 0);
	assert_int_equal(w->n, 1);
	assert_int_equal(w->ev.data.u64, data);
}

static void a_sleeper_hears_of_an_add(void **state)
{
	struct pair p = pair_warmed();
	struct waiter w;

	for (int i = 0; i < 20; i++) {
		int ep = ep_new();

		start(&w, ep);
		put(p.a, "x");
		add(ep, p.b, EPOLLIN, 5);
		finish(&w, 5);
		assert_int_equal(drain(p.b), 1);
		close(ep);
	}
	pair_close(&p);
}

static void a_sleeper_hears_of_a_byte(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new();
	struct waiter w;

	add(ep, p.b, EPOLLIN | EPOLLET, 5);
	for (int i = 0; i < 50; i++) {
		start(&w, ep);
		put(p.a, "x");
		finish(&w, 5);
		assert_int_equal(drain(p.b), 1);
	}
	pair_close(&p);
	close(ep);
}

static void each_sleeper_gets_one_of_two(void **state)
{
	struct pair p = pair_warmed(), q = pair_warmed();
	int ep = ep_new();

	add(ep, p.b, EPOLLIN | EPOLLET, 5);
	add(ep, q.b, EPOLLIN | EPOLLET, 5);
	for (int i = 0; i < 50; i++) {
		struct waiter w, v;

		start(&w, ep);
		start(&v, ep);
		put(p.a, "x");
		put(q.a, "x");
		finish(&w, 5);
		finish(&v, 5);
		assert_int_equal(drain(p.b), 1);
		assert_int_equal(drain(q.b), 1);
		expect_none(ep);
	}
	pair_close(&p);
	pair_close(&q);
	close(ep);
}

static void two_sleeping_sets_hear_of_a_byte(void **state)
{
	struct pair p = pair_warmed();
	int one = ep_new(), two = ep_new();

	add(one, p.b, EPOLLIN | EPOLLET, 5);
	add(two, p.b, EPOLLIN | EPOLLET, 5);
	for (int i = 0; i < 50; i++) {
		struct waiter w, v;

		start(&w, one);
		start(&v, two);
		put(p.a, "x");
		finish(&w, 5);
		finish(&v, 5);
		assert_int_equal(drain(p.b), 1);
	}
	pair_close(&p);
	close(one);
	close(two);
}

/* ---- a pool of threads ----------------------------------------------------------------------------------------------- */

#define NR_WORKERS 4
#define NR_CONNS 8
#define NR_ROUNDS 300

struct pool {
	int ep[2];	/* each worker waits on one of them */
	int nr_eps;
	int stop;	/* a pipe that is never read */
	uint32_t how;
	bool failed;
};

struct worker {
	pthread_t thread;
	struct pool *pool;
	int nr;
};

/* Echoes what comes, as threads do that share a set. */
static void *serve(void *arg)
{
	struct worker *w = arg;
	struct pool *pool = w->pool;
	int ep = pool->ep[w->nr % pool->nr_eps];

	for (;;) {
		struct epoll_event ev;
		char buf[64];
		ssize_t n;

		if (epoll_wait(ep, &ev, 1, SOON_MS) != 1) {
			__atomic_store_n(&pool->failed, true, __ATOMIC_RELAXED);
			return NULL;
		}
		if (ev.data.u64 == UINT64_MAX)
			return NULL;
		while ((n = recv((int)ev.data.u64, buf, sizeof(buf), MSG_DONTWAIT)) > 0)
			send((int)ev.data.u64, buf, (size_t)n, MSG_NOSIGNAL);
		if (pool->how & EPOLLONESHOT)
			ctl(ep, EPOLL_CTL_MOD, (int)ev.data.u64, pool->how, ev.data.u64);
	}
}

static void pool_serves(uint32_t how, int nr_eps, bool warm)
{
	struct pool pool = { .nr_eps = nr_eps, .how = how };
	struct worker workers[NR_WORKERS];
	struct pair p[NR_CONNS];
	int stop[2];

	assert_int_equal(pipe(stop), 0);
	for (int e = 0; e < nr_eps; e++) {
		pool.ep[e] = ep_new();
		add(pool.ep[e], stop[0], EPOLLIN, UINT64_MAX);
	}
	for (int i = 0; i < NR_CONNS; i++) {
		p[i] = pair_open();
		if (warm)
			pair_warm(&p[i]);
		for (int e = 0; e < nr_eps; e++)
			add(pool.ep[e], p[i].b, how, (uint64_t)p[i].b);
	}
	for (int i = 0; i < NR_WORKERS; i++) {
		workers[i] = (struct worker){ .pool = &pool, .nr = i };
		assert_int_equal(pthread_create(&workers[i].thread, NULL, serve, &workers[i]), 0);
	}
	for (int round = 0; round < NR_ROUNDS; round++) {
		/* Some at a time, so that workers sleep, are woken and meet. */
		int nr = 1 + round % NR_CONNS;
		char byte;

		for (int i = 0; i < nr; i++)
			put(p[i].a, "x");
		for (int i = 0; i < nr; i++)
			assert_int_equal(recv(p[i].a, &byte, 1, 0), 1);
	}
	assert_int_equal(write(stop[1], "x", 1), 1);
	for (int i = 0; i < NR_WORKERS; i++)
		assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
	assert_false(pool.failed);
	for (int i = 0; i < NR_CONNS; i++)
		pair_close(&p[i]);
	for (int e = 0; e < nr_eps; e++)
		close(pool.ep[e]);
	close(stop[0]);
	close(stop[1]);
}

static void a_pool_serves_one_shots(void **state)
{
	pool_serves(EPOLLIN | EPOLLONESHOT, 1, true);
	pool_serves(EPOLLIN | EPOLLONESHOT, 1, false);
	pool_serves(EPOLLIN | EPOLLONESHOT | EPOLLET, 1, false);
}

static void a_pool_serves_edges(void **state)
{
	pool_serves(EPOLLIN | EPOLLET, 1, true);
	pool_serves(EPOLLIN | EPOLLET, 1, false);
}

static void a_pool_serves_levels(void **state)
{
	pool_serves(EPOLLIN, 1, true);
	pool_serves(EPOLLIN, 1, false);
}

static void a_pool_with_two_sets_serves(void **state)
{
	pool_serves(EPOLLIN | EPOLLEXCLUSIVE, 2, true);
	pool_serves(EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 2, true);
	pool_serves(EPOLLIN | EPOLLET, 2, false);
}

/* As servers do where one thread accepts and others serve: the first byte is there before the registration. */
static void a_worker_is_quicker_than_who_registers(void **state)
{
	struct timeval soon = { SOON_MS / 1000, 0 };
	struct pool pool = { .nr_eps = 1, .ep = { ep_new() } };
	struct worker workers[2];
	int stop[2];

	assert_int_equal(pipe(stop), 0);
	add(pool.ep[0], stop[0], EPOLLIN, UINT64_MAX);
	for (int i = 0; i < 2; i++) {
		workers[i] = (struct worker){ .pool = &pool, .nr = i };
		assert_int_equal(pthread_create(&workers[i].thread, NULL, serve, &workers[i]), 0);
	}
	for (int round = 0; round < NR_ROUNDS; round++) {
		struct pair p = pair_open();
		char byte;

		setsockopt(p.a, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
		put(p.a, "x");
		add(pool.ep[0], p.b, EPOLLIN | EPOLLET, (uint64_t)p.b);
		for (int i = 0; i < 20; i++) {
			assert_int_equal(recv(p.a, &byte, 1, 0), 1);
			put(p.a, "x");
		}
		assert_int_equal(recv(p.a, &byte, 1, 0), 1);
		assert_int_equal(ctl(pool.ep[0], EPOLL_CTL_DEL, p.b, 0, 0), 0);
		pair_close(&p);
	}
	assert_int_equal(write(stop[1], "x", 1), 1);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
	assert_false(pool.failed);
	close(pool.ep[0]);
	close(stop[0]);
	close(stop[1]);
}

/* ---- signals, timeouts, fork ----------------------------------------------------------------------------------------- */

static volatile sig_atomic_t handled;

static void on_signal(int sig)
{
	handled++;
}

static void mask_lets_a_pending_signal_in(void **state)
{
	struct pair p = pair_warmed();
	struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct epoll_event ev;
	int ep = ep_new();
	sigset_t block, none;

	sigemptyset(&none);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	assert_int_equal(sigaction(SIGUSR1, &act, NULL), 0);
	assert_int_equal(sigprocmask(SIG_BLOCK, &block, NULL), 0);
	add(ep, p.b, EPOLLIN, 1);
	handled = 0;
	raise(SIGUSR1);
	assert_int_equal(epoll_pwait(ep, &ev, 1, 20, &block), 0);
	assert_int_equal(handled, 0);
	assert_int_equal(epoll_pwait(ep, &ev, 1, SOON_MS, &none), -1);
	assert_int_equal(errno, EINTR);
	assert_int_equal(handled, 1);
	/* Events come first; the signal stays pending. */
	raise(SIGUSR1);
	put(p.a, "x");
	assert_int_equal(epoll_pwait(ep, &ev, 1, SOON_MS, &none), 1);
	assert_int_equal(handled, 1);
	assert_int_equal(sigprocmask(SIG_UNBLOCK, &block, NULL), 0);
	assert_int_equal(handled, 2);
	pair_close(&p);
	close(ep);
}

static void timeouts_end_the_wait(void **state)
{
	struct pair p = pair_warmed();
	struct timespec ns = { 0, 1500 };
	struct epoll_event ev;
	int ep = ep_new();

	add(ep, p.b, EPOLLIN, 1);
	assert_int_equal(epoll_wait(ep, &ev, 1, 0), 0);
	assert_int_equal(epoll_wait(ep, &ev, 1, 3), 0);
	assert_int_equal(epoll_pwait2(ep, &ev, 1, &ns, NULL), 0);
	assert_int_equal(epoll_wait(ep, &ev, 0, 0), -1);
	assert_int_equal(errno, EINVAL);
	ns.tv_nsec = -1;
	assert_int_equal(epoll_pwait2(ep, &ev, 1, &ns, NULL), -1);
	assert_int_equal(errno, EINVAL);
	pair_close(&p);
	close(ep);
}

static void a_child_waits_in_the_set_it_inherited(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new(), status;
	pid_t child;

	add(ep, p.b, EPOLLIN, 1);
	put(p.a, "x");
	expect_one(ep, EPOLLIN, 1);
	assert_int_equal(drain(p.b), 1);
	child = fork();
	if (child == 0) {
		struct epoll_event ev;

		alarm(20);
		if (epoll_wait(ep, &ev, 1, SOON_MS) != 1 || ev.data.u64 != 1 || drain(p.b) != 1)
			_exit(1);
		_exit(0);
	}
	put(p.a, "y");
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	/* What the child did with its copies is nothing to ours. */
	expect_none(ep);
	put(p.a, "z");
	expect_one(ep, EPOLLIN, 1);
	assert_int_equal(drain(p.b), 1);
	pair_close(&p);
	close(ep);
}

static void a_child_that_closes_takes_nothing_away(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new(), status;
	pid_t child;

	add(ep, p.b, EPOLLIN, 1);
	child = fork();
	if (child == 0) {
		close(p.b);
		close(p.a);
		close(ep);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	put(p.a, "x");
	expect_one(ep, EPOLLIN, 1);
	assert_int_equal(drain(p.b), 1);
	pair_close(&p);
	close(ep);
}

static void a_set_and_its_copy_are_one(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new(), copy = dup(ep);

	add(ep, p.b, EPOLLIN, 1);
	put(p.a, "x");
	expect_one(copy, EPOLLIN, 1);
	close(ep);
	expect_one(copy, EPOLLIN, 1);
	assert_int_equal(ctl(copy, EPOLL_CTL_DEL, p.b, 0, 0), 0);
	expect_none(copy);
	close(copy);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sleeper_hears_of_an_add),
		cmocka_unit_test(a_sleeper_hears_of_a_byte),
		cmocka_unit_test(each_sleeper_gets_one_of_two),
		cmocka_unit_test(two_sleeping_sets_hear_of_a_byte),
		cmocka_unit_test(a_pool_serves_one_shots),
		cmocka_unit_test(a_pool_serves_edges),
		cmocka_unit_test(a_pool_serves_levels),
		cmocka_unit_test(a_pool_with_two_sets_serves),
		cmocka_unit_test(a_worker_is_quicker_than_who_registers),
		cmocka_unit_test(mask_lets_a_pending_signal_in),
		cmocka_unit_test(timeouts_end_the_wait),
		cmocka_unit_test(a_child_waits_in_the_set_it_inherited),
		cmocka_unit_test(a_child_that_closes_takes_nothing_away),
		cmocka_unit_test(a_set_and_its_copy_are_one),
	};

	alarm(50);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
