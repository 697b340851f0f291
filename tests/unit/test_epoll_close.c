/* SPDX-License-Identifier: MIT */
/* Connections that one thread closes while others are in the middle of calls on them. See pair.h. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include "epoll_fixture.h"
#include "trap.h"

static struct trap in_ctl, in_send;

struct caller {
	pthread_t thread;
	int ep, fd;
	long ret;
};

static void start(struct caller *c, void *(*fn)(void *arg), int ep, int fd)
{
	c->ep = ep;
	c->fd = fd;
	assert_int_equal(pthread_create(&c->thread, NULL, fn, c), 0);
}

static void finish(struct caller *c)
{
	assert_int_equal(pthread_join(c->thread, NULL), 0);
}

static void *registers(void *arg)
{
	struct caller *c = arg;

	c->ret = epoll_ctl(c->ep, EPOLL_CTL_ADD, c->fd, (struct epoll_event *)in_ctl.page);
	return NULL;
}

static void *sends(void *arg)
{
	struct caller *c = arg;

	c->ret = send(c->fd, in_send.page, 8, MSG_NOSIGNAL);
	return NULL;
}

static void *closes(void *arg)
{
	struct caller *c = arg;

	c->ret = close(c->fd);
	return NULL;
}

/* Bytes in a ring are known as long as the number is. */
static void await_number_forgotten(int fd)
{
	int unread;

	do {
		sched_yield();
		assert_int_equal(ioctl(fd, FIONREAD, &unread), 0);
	} while (unread);
}

/*
 * One thread is inside epoll_ctl(), another closes what it registers and gets as far as a third, which is inside send(), lets it.
 * The next connection, which takes the same number and the same record, must not inherit the registration.
 */
static void closed_inside_epoll_ctl(void **state)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 7 };
	struct pair p = pair_warmed(), q;
	struct caller registrar, sender, closer;
	int ep = ep_new();

	if (!expects_ring() || !trap_set(&in_ctl, &ev, sizeof(ev)) || !trap_set(&in_send, "12345678", 8))
		skip();
	put(p.a, "x");
	start(&sender, sends, ep, p.b);
	trap_await(&in_send);
	start(&registrar, registers, ep, p.b);
	trap_await(&in_ctl);
	start(&closer, closes, ep, p.b);
	await_number_forgotten(p.b);
	trap_open(&in_ctl);
	finish(&registrar);
	trap_open(&in_send);
	finish(&sender);
	finish(&closer);
	assert_int_equal(closer.ret, 0);
	close(p.a);

	q = pair_warmed();
	put(q.a, "x");
	expect_none(ep);
	pair_close(&q);
	trap_clear(&in_ctl);
	trap_clear(&in_send);
	close(ep);
}

static volatile sig_atomic_t to_close;

static void on_signal(int sig)
{
	close(to_close);
	to_close = -1;
}

/*
 * A handler closes a registered connection while its own thread is in the middle of a call on the set. The next connection must not
 * inherit the registration.
 */
static void closed_by_a_handler_inside_epoll_ctl(void **state)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 7 };
	struct sigaction act = { .sa_handler = on_signal };
	struct pair other = pair_warmed(), p = pair_warmed(), q;
	struct caller registrar;
	int ep = ep_new();

	if (!expects_ring() || !trap_set(&in_ctl, &ev, sizeof(ev)))
		skip();
	add(ep, p.b, EPOLLIN, 8);
	assert_int_equal(sigaction(SIGUSR1, &act, NULL), 0);
	to_close = p.b;
	start(&registrar, registers, ep, other.b);
	trap_await(&in_ctl);
	assert_int_equal(pthread_kill(registrar.thread, SIGUSR1), 0);
	while (to_close >= 0)
		sched_yield();
	close(p.a);
	trap_open(&in_ctl);
	finish(&registrar);
	assert_int_equal(registrar.ret, 0);

	q = pair_warmed();
	put(q.a, "x");
	expect_none(ep);
	put(other.a, "x");
	expect_one(ep, EPOLLIN, 7);
	pair_close(&q);
	pair_close(&other);
	trap_clear(&in_ctl);
	close(ep);
}

static bool over;

/* Sets come and go, and with them what the shim keeps beside them. */
static void *uses_sets(void *arg)
{
	struct caller *c = arg;
	struct epoll_event ev;

	for (c->ret = 0; !__atomic_load_n(&over, __ATOMIC_ACQUIRE); c->ret++) {
		int ep = ep_new();

		add(ep, c->fd, EPOLLIN, 1);
		epoll_wait(ep, &ev, 1, 0);
		close(ep);
	}
	return NULL;
}

static void forks_while_sets_come_and_go(void **state)
{
	struct pair p = pair_warmed();
	struct caller users[2];

	for (int i = 0; i < 2; i++)
		start(&users[i], uses_sets, -1, p.b);
	for (int i = 0; i < 300; i++) {
		pid_t child = fork();

		assert_true(child >= 0);
		if (!child)
			_exit(0);
		assert_int_equal(waitpid(child, NULL, 0), child);
	}
	__atomic_store_n(&over, true, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++) {
		finish(&users[i]);
		assert_true(users[i].ret > 0);
	}
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(closed_inside_epoll_ctl),
		cmocka_unit_test(closed_by_a_handler_inside_epoll_ctl),
		cmocka_unit_test(forks_while_sets_come_and_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
