/* SPDX-License-Identifier: MIT */
/*
 * For the tests of readiness, which state what kernel TCP does and are run twice: without the shim, which proves that they
 * state it right, and preloaded with TEST_EXPECTS_RING=1, where a pair is first brought onto rings both ways.
 */
#ifndef RINGWAY_TESTS_PAIR_H
#define RINGWAY_TESTS_PAIR_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/loopback.h"

/* One process, both ends: `a` connected, `b` was accepted. */
struct pair {
	int a, b;
};

static inline bool expects_ring(void)
{
	return getenv("TEST_EXPECTS_RING") != NULL;
}

static inline struct pair pair_open(void)
{
	struct sockaddr_in addr = loopback_address();
	struct pair p;
	int one = 1;

	assert_true(loopback_connect(&addr, sizeof(addr), &p.a, &p.b));
	setsockopt(p.a, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(p.b, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return p;
}

static inline uint64_t kernel_bytes_received(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
	return info.tcpi_bytes_received;
}

static inline void pass(int from, int to, size_t len)
{
	char out[256], in[256];
	size_t got = 0;

	memset(out, 'x', sizeof(out));
	assert_int_equal(send(from, out, len, MSG_NOSIGNAL), len);
	while (got < len) {
		ssize_t n = recv(to, in, sizeof(in), 0);

		assert_true(n > 0);
		got += (size_t)n;
	}
}

/* Do bytes from `from` to `to` go past the kernel? */
static inline bool lane_on_ring(int from, int to)
{
	uint64_t before = kernel_bytes_received(to);

	pass(from, to, 100);
	return kernel_bytes_received(to) == before;
}

/* Requests and answers until both lanes are on rings, if they can be. Both fds must be blocking. */
static inline void pair_warm(const struct pair *p)
{
	for (int i = 0; i < 100; i++) {
		pass(p->a, p->b, 1);
		pass(p->b, p->a, 1);
	}
	if (expects_ring()) {
		assert_true(lane_on_ring(p->a, p->b));
		assert_true(lane_on_ring(p->b, p->a));
	}
}

static inline void set_nonblock(int fd)
{
	assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

static inline struct pair pair_warmed(void)
{
	struct pair p = pair_open();

	pair_warm(&p);
	set_nonblock(p.a);
	set_nonblock(p.b);
	return p;
}

static inline void pair_close(const struct pair *p)
{
	close(p->a);
	close(p->b);
}

static inline void put(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Reads all there is; returns how much. */
static inline size_t drain(int fd)
{
	char buf[65536];
	size_t total = 0;
	ssize_t n;

	while ((n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0)
		total += (size_t)n;
	return total;
}

/* Writes until there is no room; returns how much. */
static inline size_t fill(int fd)
{
	static char buf[65536];
	size_t total = 0;
	ssize_t n;

	while ((n = send(fd, buf, sizeof(buf), MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
		total += (size_t)n;
	assert_int_equal(errno, EAGAIN);
	return total;
}

#endif
