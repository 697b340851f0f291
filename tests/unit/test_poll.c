/* SPDX-License-Identifier: MIT */
/* What poll and select say of a TCP connection, whatever road its bytes take. See pair.h. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>

#include "pair.h"

#define SOON_MS 5000	/* an event that must come */

static short poll_one(int fd, short events, int timeout)
{
	struct pollfd p = { .fd = fd, .events = events };
	int n = poll(&p, 1, timeout);

	assert_int_equal(n, p.revents != 0);
	return p.revents;
}

static void readable_until_read(void **state)
{
	struct pair p = pair_warmed();

	assert_int_equal(poll_one(p.b, POLLIN, 0), 0);
	assert_int_equal(poll_one(p.b, POLLIN | POLLOUT, 0), POLLOUT);
	put(p.a, "x");
	assert_int_equal(poll_one(p.b, POLLIN, SOON_MS), POLLIN);
	assert_int_equal(poll_one(p.b, POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM, SOON_MS),
			 POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM);
	assert_int_equal(poll_one(p.b, 0, 0), 0);
	assert_int_equal(drain(p.b), 1);
	assert_int_equal(poll_one(p.b, POLLIN, 0), 0);
	assert_int_equal(poll_one(p.b, POLLIN, 3), 0);
	pair_close(&p);
}

static void numbers_twice_negative_and_closed(void **state)
{
	struct pair p = pair_warmed();
	struct pollfd f[5] = {
		{ p.b, POLLIN, -1 }, { -1, POLLIN, -1 }, { p.b, POLLOUT, -1 }, { -p.b, POLLIN, -1 }, { p.b, 0, -1 },
	};

	put(p.a, "x");
	assert_int_equal(poll(f, 5, SOON_MS), 2);
	assert_int_equal(f[0].revents, POLLIN);
	assert_int_equal(f[1].revents, 0);
	assert_int_equal(f[2].revents, POLLOUT);
	assert_int_equal(f[3].revents, 0);
	assert_int_equal(f[4].revents, 0);
	pair_close(&p);
	assert_int_equal(poll(f, 1, 0), 1);
	assert_int_equal(f[0].revents, POLLNVAL);
}

static void room_follows_the_reader(void **state)
{
	struct pair p = pair_warmed();
	size_t sent, got = 0;

	for (int i = 0; i < 3; i++) {
		sent = fill(p.a);
		assert_int_equal(poll_one(p.a, POLLOUT, 0), 0);
		for (got = 0; got < sent; got += drain(p.b))
			;
		assert_int_equal(poll_one(p.a, POLLOUT, SOON_MS), POLLOUT);
	}
	pair_close(&p);
}

static void ends_are_seen(void **state)
{
	struct pair p = pair_warmed();

	put(p.a, "last");
	assert_int_equal(shutdown(p.a, SHUT_WR), 0);
	assert_int_equal(poll_one(p.b, POLLIN | POLLRDHUP, SOON_MS), POLLIN | POLLRDHUP);
	assert_int_equal(poll_one(p.b, 0, 0), 0);
	assert_int_equal(drain(p.b), 4);
	assert_int_equal(poll_one(p.b, POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP);
	assert_int_equal(poll_one(p.b, POLLPRI, 3), 0);
	assert_int_equal(shutdown(p.b, SHUT_WR), 0);
	assert_int_equal(poll_one(p.b, 0, SOON_MS), POLLHUP);
	assert_int_equal(poll_one(p.a, POLLIN | POLLOUT, SOON_MS), POLLIN | POLLOUT | POLLHUP);
	pair_close(&p);
}

static void room_is_awaited_after_the_peers_half_close(void **state)
{
	struct pair p = pair_warmed();
	size_t sent, got;

	assert_int_equal(shutdown(p.b, SHUT_WR), 0);
	assert_int_equal(poll_one(p.a, POLLIN, SOON_MS), POLLIN);
	sent = fill(p.a);
	assert_int_equal(poll_one(p.a, POLLOUT, 3), 0);
	for (got = 0; got < sent; got += drain(p.b))
		;
	assert_int_equal(poll_one(p.a, POLLOUT, SOON_MS), POLLOUT);
	pair_close(&p);
}

static void reset_is_seen(void **state)
{
	struct pair p = pair_warmed();
	struct linger now = { 1, 0 };

	assert_int_equal(setsockopt(p.a, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	close(p.a);
	assert_int_equal(poll_one(p.b, POLLIN, SOON_MS), POLLIN | POLLERR | POLLHUP);
	close(p.b);
}

static void before_the_first_byte(void **state)
{
	struct pair p = pair_open();

	set_nonblock(p.a);
	set_nonblock(p.b);
	for (int i = 0; i < 200; i++) {
		put(p.a, "x");
		assert_int_equal(poll_one(p.b, POLLIN, SOON_MS), POLLIN);
		assert_int_equal(drain(p.b), 1);
		assert_int_equal(poll_one(p.b, POLLIN, 0), 0);
		put(p.b, "y");
		assert_int_equal(poll_one(p.a, POLLIN, SOON_MS), POLLIN);
		assert_int_equal(drain(p.a), 1);
		assert_int_equal(poll_one(p.a, POLLIN, 0), 0);
	}
	pair_close(&p);
}

static void many_fds(void **state)
{
	enum { NR = 60 };
	struct pair p[NR];
	struct pollfd f[NR + 1];
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	for (int i = 0; i < NR; i++) {
		p[i] = pair_warmed();
		f[i] = (struct pollfd){ p[i].b, POLLIN, 0 };
	}
	f[NR] = (struct pollfd){ ends[0], POLLIN, 0 };
	assert_int_equal(poll(f, NR + 1, 0), 0);
	put(p[NR - 1].a, "x");
	assert_int_equal(write(ends[1], "x", 1), 1);
	assert_true(poll(f, NR + 1, SOON_MS) >= 1);
	while (!f[NR].revents)
		assert_true(poll(f, NR + 1, SOON_MS) >= 1);
	assert_int_equal(f[NR].revents, POLLIN);
	assert_int_equal(f[NR - 1].revents, POLLIN);
	assert_int_equal(f[0].revents, 0);
	for (int i = 0; i < NR; i++)
		pair_close(&p[i]);
	close(ends[0]);
	close(ends[1]);
}

static void a_set_that_is_polled_wakes(void **state)
{
	struct pair p = pair_warmed();
	struct epoll_event ev = { .events = EPOLLIN };
	int ep = epoll_create1(0);

	assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, p.b, &ev), 0);
	assert_int_equal(epoll_wait(ep, &ev, 1, 0), 0);
	for (int i = 0; i < 20; i++) {
		put(p.a, "x");
		assert_int_equal(poll_one(ep, POLLIN, SOON_MS), POLLIN);
		assert_int_equal(epoll_wait(ep, &ev, 1, 0), 1);
		assert_int_equal(poll_one(ep, POLLIN, SOON_MS), POLLIN);
		assert_int_equal(drain(p.b), 1);
		assert_int_equal(epoll_wait(ep, &ev, 1, 0), 0);
	}
	close(ep);
	pair_close(&p);
}

/* ---- sleepers ------------------------------------------------------------------------------------------------------ */

struct sleeper {
	pthread_t thread;
	int fd;
	short events, revents;
};

static void *sleep_once(void *arg)
{
	struct sleeper *s = arg;
	struct pollfd p = { .fd = s->fd, .events = s->events };

	s->revents = poll(&p, 1, SOON_MS) == 1 ? p.revents : -1;
	return NULL;
}

static void start(struct sleeper *s, int fd, short events)
{
	*s = (struct sleeper){ .fd = fd, .events = events };
	assert_int_equal(pthread_create(&s->thread, NULL, sleep_once, s), 0);
}

static void finish(struct sleeper *s, short revents)
{
	assert_int_equal(pthread_join(s->thread, NULL), 0);
	assert_int_equal(s->revents, revents);
}

static void all_sleepers_hear_of_a_byte(void **state)
{
	struct pair p = pair_warmed();

	for (int i = 0; i < 50; i++) {
		struct sleeper s, t;

		start(&s, p.b, POLLIN);
		start(&t, p.b, POLLIN);
		put(p.a, "x");
		finish(&s, POLLIN);
		finish(&t, POLLIN);
		assert_int_equal(drain(p.b), 1);
	}
	pair_close(&p);
}

static void a_sleeper_hears_of_room(void **state)
{
	struct pair p = pair_warmed();

	for (int i = 0; i < 5; i++) {
		struct sleeper s;
		size_t sent = fill(p.a), got = 0;

		start(&s, p.a, POLLOUT);
		for (; got < sent; got += drain(p.b))
			;
		finish(&s, POLLOUT);
	}
	pair_close(&p);
}

static void a_sleeper_hears_of_the_end(void **state)
{
	struct pair p = pair_warmed();
	struct sleeper s;

	start(&s, p.b, POLLIN);
	close(p.a);
	finish(&s, POLLIN);
	close(p.b);
}

/* ---- signals ------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t handled;

static void on_signal(int sig)
{
	handled++;
}

static void mask_lets_a_pending_signal_in(void **state)
{
	struct pair p = pair_warmed();
	struct pollfd f = { p.b, POLLIN, 0 };
	struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct timespec soon = { SOON_MS / 1000, 0 };
	sigset_t block, none;
	fd_set rd;

	sigemptyset(&none);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	assert_int_equal(sigaction(SIGUSR1, &act, NULL), 0);
	assert_int_equal(sigprocmask(SIG_BLOCK, &block, NULL), 0);
	handled = 0;
	raise(SIGUSR1);
	assert_int_equal(poll(&f, 1, 20), 0);
	assert_int_equal(handled, 0);
	assert_int_equal(ppoll(&f, 1, &soon, &none), -1);
	assert_int_equal(errno, EINTR);
	assert_int_equal(handled, 1);
	raise(SIGUSR1);
	FD_ZERO(&rd);
	FD_SET(p.b, &rd);
	assert_int_equal(pselect(p.b + 1, &rd, NULL, NULL, &soon, &none), -1);
	assert_int_equal(errno, EINTR);
	assert_int_equal(handled, 2);
	assert_true(FD_ISSET(p.b, &rd));
	assert_int_equal(sigprocmask(SIG_UNBLOCK, &block, NULL), 0);
	pair_close(&p);
}

/* ---- select -------------------------------------------------------------------------------------------------------- */

static void select_tells_each_set(void **state)
{
	struct pair p = pair_warmed();
	struct timeval soon = { 5, 0 }, none = { 0, 0 };
	fd_set rd, wr, ex;

	FD_ZERO(&rd);
	FD_SET(p.b, &rd);
	wr = ex = rd;
	assert_int_equal(select(p.b + 1, &rd, NULL, &ex, &none), 0);
	assert_false(FD_ISSET(p.b, &rd));
	FD_SET(p.b, &rd);
	FD_SET(p.b, &ex);
	put(p.a, "x");
	assert_int_equal(select(p.b + 1, &rd, &wr, &ex, &soon), 2);
	assert_true(FD_ISSET(p.b, &rd));
	assert_true(FD_ISSET(p.b, &wr));
	assert_false(FD_ISSET(p.b, &ex));
	assert_true(soon.tv_sec <= 5);
	/* Above the highest number that is asked for nothing is looked at. */
	assert_int_equal(select(p.b, &rd, NULL, NULL, &none), 0);
	pair_close(&p);
	FD_SET(p.b, &rd);
	assert_int_equal(select(p.b + 1, &rd, NULL, NULL, &none), -1);
	assert_int_equal(errno, EBADF);
	assert_true(FD_ISSET(p.b, &rd));
}

static void select_for_exceptions_sleeps_over_a_hangup(void **state)
{
	struct pair p = pair_warmed();
	struct timeval brief = { 0, 3000 };
	fd_set ex;

	shutdown(p.a, SHUT_WR);
	shutdown(p.b, SHUT_WR);
	assert_int_equal(poll_one(p.b, 0, SOON_MS), POLLHUP);
	FD_ZERO(&ex);
	FD_SET(p.b, &ex);
	assert_int_equal(select(p.b + 1, NULL, NULL, &ex, &brief), 0);
	pair_close(&p);
}

static void select_beyond_fd_setsize(void **state)
{
	struct pair p = pair_warmed();
	struct timeval soon = { 5, 0 };
	struct rlimit limit;
	fd_set sets[2];
	int high = FD_SETSIZE + 100;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_cur <= (rlim_t)high) {
		limit.rlim_cur = (rlim_t)high + 1;
		if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
			skip();
	}
	assert_int_equal(dup2(p.b, high), high);
	memset(sets, 0, sizeof(sets));
	((char *)sets)[high / 8] |= (char)(1 << high % 8);
	put(p.a, "x");
	assert_int_equal(select(high + 1, sets, NULL, NULL, &soon), 1);
	assert_true(((char *)sets)[high / 8] & 1 << high % 8);
	close(high);
	pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(readable_until_read),
		cmocka_unit_test(numbers_twice_negative_and_closed),
		cmocka_unit_test(room_follows_the_reader),
		cmocka_unit_test(ends_are_seen),
		cmocka_unit_test(room_is_awaited_after_the_peers_half_close),
		cmocka_unit_test(reset_is_seen),
		cmocka_unit_test(before_the_first_byte),
		cmocka_unit_test(many_fds),
		cmocka_unit_test(a_set_that_is_polled_wakes),
		cmocka_unit_test(all_sleepers_hear_of_a_byte),
		cmocka_unit_test(a_sleeper_hears_of_room),
		cmocka_unit_test(a_sleeper_hears_of_the_end),
		cmocka_unit_test(mask_lets_a_pending_signal_in),
		cmocka_unit_test(select_tells_each_set),
		cmocka_unit_test(select_for_exceptions_sleeps_over_a_hangup),
		cmocka_unit_test(select_beyond_fd_setsize),
	};

	alarm(50);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
