/* SPDX-License-Identifier: MIT */
/* EPOLLONESHOT as some use it: who is told of a connection reads it to its end, and arms it for what comes then. */
#include "probe.h"

#include <pthread.h>
#include <sys/epoll.h>

enum { WRITES = 4000, PIECE = 4096 };

static char piece[PIECE];

static void *flood(void *arg)
{
	int fd = *(int *)arg;
	char answer;

	for (int i = 0; i < WRITES; i++) {
		memset(piece, i, sizeof(piece));
		MUST(send(fd, piece, sizeof(piece), 0) == sizeof(piece));
		/* Now and then something goes the other way, too. */
		if (i % 100 == 0)
			MUST(recv(fd, &answer, 1, 0) == 1);
	}
	return arg;
}

static int told(int set)
{
	struct epoll_event event;

	return epoll_wait(set, &event, 1, 0);
}

int main(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT };
	int set = epoll_create1(EPOLL_CLOEXEC), a, b = tcp_pair(&a), silent = 0;
	static char in[PIECE];
	pthread_t thread;

	MUST(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, b, &event) == 0);
	MUST(pthread_create(&thread, NULL, flood, &a) == 0);
	MUST(epoll_wait(set, &event, 1, -1) == 1);
	for (int i = 0; i < WRITES; i++) {
		MUST(recv(b, in, 1, MSG_PEEK) == 1);
		silent += told(set) == 0;
		MUST(recv(b, in, sizeof(in), MSG_WAITALL) == sizeof(in));
		for (int k = 0; k < PIECE; k++)
			MUST(in[k] == (char)i);
		if (i % 100 == 0)
			MUST(send(b, "y", 1, 0) == 1);
	}
	MUST(pthread_join(thread, NULL) == 0);
	MUST(send(a, "more", 4, 0) == 4);
	MUST(recv(b, in, 1, MSG_PEEK) == 1);
	SAY("silent: %d, then told %d,", silent, told(set));
	event = (struct epoll_event){ .events = EPOLLIN | EPOLLONESHOT };
	MUST(epoll_ctl(set, EPOLL_CTL_MOD, b, &event) == 0);
	SAY(" armed and told %d, again %d\n", told(set), told(set));
	return 0;
}
