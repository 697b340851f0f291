/* SPDX-License-Identifier: MIT */
/*
 * The usual server with threads: one set, EPOLLONESHOT, whoever is told of a connection reads until nothing is left and arms it again.
 * Each arming may be told of once, whichever road the connection is on, or moves to just then.
 */
#include "probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

enum { THREADS = 3, CONNECTIONS = 20, ROUNDS = 300, MANY = 4096 };

static int set;
static _Atomic int armed[MANY], told_twice, events_told;

static void ctl(int op, int fd)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.fd = fd };

	armed[fd] = 1;
	MUST(epoll_ctl(set, op, fd, &event) == 0);
}

static void *serve(void *arg)
{
	struct epoll_event event;
	char buf[64];
	ssize_t n;

	for (;;) {
		MUST(epoll_wait(set, &event, 1, -1) == 1);
		if (event.data.fd == 0)
			return arg;
		events_told++;
		if (atomic_exchange(&armed[event.data.fd], 0) != 1)
			told_twice++;
		while ((n = recv(event.data.fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0)
			MUST(send(event.data.fd, buf, (size_t)n, 0) == n);
		MUST(n < 0 && errno == EAGAIN);
		ctl(EPOLL_CTL_MOD, event.data.fd);
	}
}

int main(void)
{
	struct epoll_event stop = { .events = EPOLLIN, .data.fd = 0 };
	pthread_t threads[THREADS];
	int ends[2], a, b;

	set = epoll_create1(EPOLL_CLOEXEC);
	MUST(set >= 0 && pipe(ends) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &stop) == 0);
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_create(&threads[i], NULL, serve, NULL) == 0);
	for (int i = 0; i < CONNECTIONS; i++) {
		/* Kept open: a server may be about to arm it still when the last answer has come. */
		b = tcp_pair(&a);
		MUST(b > 0 && b < MANY);
		ctl(EPOLL_CTL_ADD, b);
		for (int round = 0; round < ROUNDS; round++) {
			char out[16], in[16];
			int len = snprintf(out, sizeof(out), "%d", round);

			MUST(send(a, out, (size_t)len, 0) == len && recv(a, in, (size_t)len, MSG_WAITALL) == len && !memcmp(in, out, (size_t)len));
		}
	}
	MUST(write(ends[1], "x", 1) == 1);
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	SAY("told twice: %d, told at all: %s\n", told_twice, events_told >= CONNECTIONS * ROUNDS / 2 ? "yes" : "no");
	return 0;
}
