/* SPDX-License-Identifier: MIT */
/* Waiting for room while the peer, which has ended its own direction, is killed. See pair.h. */
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/wait.h>

#include "pair.h"

enum { ROUNDS = 100 };
#define LONG_MS 8000	/* an event that must come */

static void answer_and_end(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0)
		_exit(1);
	for (int i = 0; i < ROUNDS; i++)
		if (recv(fd, &byte, 1, 0) != 1 || send(fd, &byte, 1, MSG_NOSIGNAL) != 1)
			_exit(1);
	if (shutdown(fd, SHUT_WR) < 0)
		_exit(1);
	for (;;)
		pause();
}

static uint64_t kernel_bytes(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
	return info.tcpi_bytes_received + info.tcpi_bytes_sent;
}

/* A non-blocking connection without room, whose peer has ended its direction, read nothing more, and was killed. */
static int full_and_alone(void)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int fd, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct pollfd in = { .events = POLLIN };
	uint64_t before = 0;
	pid_t peer;
	char byte = 'x';

	assert_int_equal(bind(listener, (struct sockaddr *)&addr, len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&addr, &len), 0);
	peer = fork();
	assert_true(peer >= 0);
	if (!peer)
		answer_and_end(&addr);
	in.fd = fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	close(listener);
	for (int i = 0; i < ROUNDS; i++) {
		/* The last answer may come with the peer's FIN, which counts. */
		if (i == ROUNDS - 2)
			before = kernel_bytes(fd);
		if (i == ROUNDS - 1 && expects_ring())
			assert_int_equal(kernel_bytes(fd), before);
		assert_int_equal(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
		assert_int_equal(recv(fd, &byte, 1, 0), 1);
	}
	set_nonblock(fd);
	/* First: who sends behind an end that it has seen probes at once. */
	fill(fd);
	assert_int_equal(poll(&in, 1, LONG_MS), 1);
	assert_int_equal(recv(fd, &byte, 1, 0), 0);
	assert_int_equal(kill(peer, SIGKILL), 0);
	assert_int_equal(waitpid(peer, NULL, 0), peer);
	return fd;
}

static void gone(int fd)
{
	assert_int_equal(send(fd, "x", 1, MSG_NOSIGNAL), -1);
	assert_true(errno == EPIPE || errno == ECONNRESET);
	close(fd);
}

static void poll_hears_of_it(void **state)
{
	struct pollfd p = { .fd = full_and_alone(), .events = POLLOUT };

	assert_int_equal(poll(&p, 1, LONG_MS), 1);
	assert_true(p.revents & POLLHUP);
	gone(p.fd);
}

/* No wait of these is as long as the distance between two probes. */
static void short_polls_hear_of_it(void **state)
{
	struct pollfd p = { .fd = full_and_alone(), .events = POLLOUT };
	int n = 0;

	for (int i = 0; i < LONG_MS / 10 && !n; i++)
		n = poll(&p, 1, 10);
	assert_int_equal(n, 1);
	assert_true(p.revents & POLLHUP);
	gone(p.fd);
}

static void select_hears_of_it(void **state)
{
	struct timeval soon = { LONG_MS / 1000, 0 };
	int fd = full_and_alone();
	fd_set wr;

	FD_ZERO(&wr);
	FD_SET(fd, &wr);
	assert_int_equal(select(fd + 1, NULL, &wr, NULL, &soon), 1);
	assert_true(FD_ISSET(fd, &wr));
	gone(fd);
}

static void epoll_hears_of_it(uint32_t events, int timeout_ms)
{
	int fd = full_and_alone(), ep = epoll_create1(EPOLL_CLOEXEC), n = 0;
	struct epoll_event ev = { .events = events };

	assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
	for (int i = 0; i < LONG_MS / timeout_ms && !n; i++)
		n = epoll_wait(ep, &ev, 1, timeout_ms);
	assert_int_equal(n, 1);
	assert_true(ev.events & EPOLLHUP);
	close(ep);
	gone(fd);
}

static void level_triggered(void **state)
{
	epoll_hears_of_it(EPOLLOUT, LONG_MS);
	epoll_hears_of_it(EPOLLOUT, 10);
}

static void edge_triggered(void **state)
{
	epoll_hears_of_it(EPOLLOUT | EPOLLET, LONG_MS);
	epoll_hears_of_it(EPOLLOUT | EPOLLET | EPOLLONESHOT, LONG_MS);
}

static int set_around(int member)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int ep = epoll_create1(EPOLL_CLOEXEC);

	assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, member, &ev), 0);
	return ep;
}

/* Nobody waits on the set that has the connection: only on a set around it, or a set around that one, or with poll. */
static void sets_around_hear_of_it(uint32_t events, int how)
{
	int fd = full_and_alone(), inner = epoll_create1(EPOLL_CLOEXEC), outer = set_around(inner), outermost = set_around(outer);
	struct epoll_event ev = { .events = events };
	struct pollfd p = { .fd = how == 3 ? inner : outermost, .events = POLLIN };

	assert_int_equal(epoll_ctl(inner, EPOLL_CTL_ADD, fd, &ev), 0);
	if (how < 2)
		assert_int_equal(epoll_wait(how ? outermost : outer, &ev, 1, LONG_MS), 1);
	else
		assert_int_equal(poll(&p, 1, LONG_MS), 1);
	assert_int_equal(epoll_wait(inner, &ev, 1, 0), 1);
	assert_true(ev.events & EPOLLHUP);
	close(inner);
	close(outer);
	close(outermost);
	gone(fd);
}

static void a_set_in_a_set(void **state)
{
	for (int how = 0; how < 4; how++)
		sets_around_hear_of_it(EPOLLOUT, how);
	sets_around_hear_of_it(EPOLLOUT | EPOLLET, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(poll_hears_of_it),
		cmocka_unit_test(short_polls_hear_of_it),
		cmocka_unit_test(select_hears_of_it),
		cmocka_unit_test(level_triggered),
		cmocka_unit_test(edge_triggered),
		cmocka_unit_test(a_set_in_a_set),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
