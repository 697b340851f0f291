/* SPDX-License-Identifier: MIT */
/* Steps that the tests of epoll are made of. */
#ifndef RINGWAY_TESTS_EPOLL_FIXTURE_H
#define RINGWAY_TESTS_EPOLL_FIXTURE_H

#include <sys/epoll.h>

#include "pair.h"

#define SOON_MS 5000	/* an event that must come */

static inline int ep_new(void)
{
	int ep = epoll_create1(EPOLL_CLOEXEC);

	assert_true(ep >= 0);
	return ep;
}

static inline int ctl(int ep, int op, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event ev = { .events = events, .data.u64 = data };

	return epoll_ctl(ep, op, fd, &ev);
}

static inline void add(int ep, int fd, uint32_t events, uint64_t data)
{
	assert_int_equal(ctl(ep, EPOLL_CTL_ADD, fd, events, data), 0);
}

/* The one event that there is must be this. */
static inline void expect_one(int ep, uint32_t events, uint64_t data)
{
	struct epoll_event ev[4];
	int n = epoll_wait(ep, ev, 4, SOON_MS);

	assert_int_equal(n, 1);
	assert_int_equal(ev[0].events, events);
	assert_int_equal(ev[0].data.u64, data);
}

static inline void expect_none(int ep)
{
	struct epoll_event ev[4];

	assert_int_equal(epoll_wait(ep, ev, 4, 0), 0);
}

#endif
