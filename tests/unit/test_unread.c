/* SPDX-License-Identifier: MIT */
/* What there is to tell beside bytes that nobody has read, at once, however soon it is asked again. See pair.h. */
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/wait.h>

#include "pair.h"

#define TIMES 100
#define ESTABLISHED 1	/* as the kernel counts; two headers, of which one may be included, have it */

static short poll_one(int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };

	assert_in_range(poll(&p, 1, 0), 0, 1);
	return p.revents;
}

static uint32_t wait_one(int ep)
{
	struct epoll_event event = { .events = 0 };

	assert_in_range(epoll_wait(ep, &event, 1, 0), 0, 1);
	return event.events;
}

static int set_of(int fd, uint32_t events)
{
	int ep = epoll_create1(0);

	assert_true(ep >= 0);
	assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &(struct epoll_event){ .events = events }), 0);
	return ep;
}

/* The kernel delivers by itself; of what it has is spoken here. */
static void await_received(int fd, uint64_t before, uint64_t more)
{
	while (kernel_bytes_received(fd) < before + more)
		;
}

static bool is_open(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
	return info.tcpi_state == ESTABLISHED;
}

static void await_end(int fd)
{
	while (is_open(fd))
		;
}

/* A poll of another connection comes just before each. */
static void other_descriptors(void **state)
{
	struct pair quiet = pair_warmed(), p = pair_warmed();
	int ends[2];

	(void)state;
	assert_int_equal(pipe(ends), 0);
	put(p.a, "unread");
	assert_int_equal(write(ends[1], "x", 1), 1);
	for (int i = 0; i < TIMES; i++) {
		struct pollfd both[] = { { p.b, POLLIN, 0 }, { ends[0], POLLIN, 0 } };
		struct timeval now = { 0, 0 };
		fd_set set;

		assert_int_equal(poll_one(quiet.b, POLLIN), 0);
		assert_int_equal(poll(both, 2, 0), 2);
		assert_int_equal(poll_one(quiet.b, POLLIN), 0);
		FD_ZERO(&set);
		FD_SET(p.b, &set);
		FD_SET(ends[0], &set);
		assert_int_equal(select(p.b > ends[0] ? p.b + 1 : ends[0] + 1, &set, NULL, NULL, &now), 2);
	}
	close(ends[0]);
	close(ends[1]);
	pair_close(&quiet);
	pair_close(&p);
}

static void a_death(void **state)
{
	struct pair quiet = pair_warmed(), p = pair_warmed();
	int said[2], ep = set_of(p.b, EPOLLIN | EPOLLRDHUP), edges = set_of(p.b, EPOLLIN | EPOLLRDHUP | EPOLLET);
	pid_t child;

	(void)state;
	put(p.a, "unread");
	assert_int_equal(wait_one(ep), EPOLLIN);
	assert_int_equal(wait_one(edges), EPOLLIN);
	assert_int_equal(pipe(said), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(p.b);
		close(edges);
		close(ep);
		write(said[1], "x", 1);
		pause();
		_exit(0);
	}
	close(p.a);
	assert_int_equal(read(said[0], &(char){ 0 }, 1), 1);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	await_end(p.b);
	for (int i = 0; i < TIMES; i++) {
		assert_int_equal(poll_one(quiet.b, POLLIN), 0);
		assert_int_equal(poll_one(p.b, POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
		assert_int_equal(wait_one(ep), EPOLLIN | EPOLLRDHUP);
	}
	assert_int_equal(wait_one(edges), EPOLLIN | EPOLLRDHUP);
	assert_int_equal(wait_one(edges), 0);
	assert_int_equal(drain(p.b), 6);
	close(said[0]);
	close(said[1]);
	close(ep);
	close(edges);
	pair_close(&quiet);
	close(p.b);
}

/* Some of the bytes are read between the end and the look, as a loop does. */
static void an_end(void **state)
{
	(void)state;
	for (int i = 0; i < TIMES; i++) {
		struct pair p = pair_warmed();
		int ep = set_of(p.b, EPOLLIN | EPOLLRDHUP);
		char c;

		put(p.a, "unread");
		assert_int_equal(wait_one(ep), EPOLLIN);
		assert_int_equal(poll_one(p.b, POLLIN | POLLRDHUP), POLLIN);
		assert_int_equal(shutdown(p.a, SHUT_WR), 0);
		if (i % 2)
			await_end(p.b);
		assert_int_equal(recv(p.b, &c, 1, 0), 1);
		await_end(p.b);
		assert_int_equal(poll_one(p.b, POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
		assert_int_equal(wait_one(ep), EPOLLIN | EPOLLRDHUP);
		close(ep);
		pair_close(&p);
	}
}

static void urgent_data(void **state)
{
	(void)state;
	for (int i = 0; i < TIMES; i++) {
		struct pair p = pair_warmed();
		int ep = set_of(p.b, EPOLLIN | EPOLLPRI);
		uint64_t before;

		put(p.a, "unread");
		assert_int_equal(wait_one(ep), EPOLLIN);
		before = kernel_bytes_received(p.b);
		assert_int_equal(poll_one(p.b, POLLIN | POLLPRI), POLLIN);
		assert_int_equal(send(p.a, "u", 1, MSG_OOB), 1);
		if (i % 2) {
			(void)poll_one(p.b, POLLIN | POLLPRI);
			(void)wait_one(ep);
		}
		await_received(p.b, before, expects_ring() ? 7 : 1);
		assert_int_equal(poll_one(p.b, POLLIN | POLLPRI), POLLIN | POLLPRI);
		assert_int_equal(wait_one(ep), EPOLLIN | EPOLLPRI);
		close(ep);
		pair_close(&p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(other_descriptors),
		cmocka_unit_test(a_death),
		cmocka_unit_test(an_end),
		cmocka_unit_test(urgent_data),
	};

	alarm(50);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
