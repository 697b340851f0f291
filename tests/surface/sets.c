/* SPDX-License-Identifier: MIT */
/*
 * sets made: connections come and go while threads make, copy and close epoll sets. sets left: they do in a program that was started with somebody's set
 * open. Nobody waits by a call that no preload sees.
 */
#include "probe.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/epoll.h>

enum { MAKERS = 3, CONNECTIONS = 40, ROUNDS = 800 };

static atomic_bool over;

static void *make(void *arg)
{
	struct epoll_event event;

	while (!over) {
		int set = epoll_create1(EPOLL_CLOEXEC), copy = dup(set);

		MUST(set >= 0 && copy >= 0 && epoll_wait(copy, &event, 1, 0) == 0);
		if (arg)
			MUST(dup2(copy, set) == set);
		close(set);
		close(copy);
	}
	return NULL;
}

static void talk(void)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		int connected, accepted = tcp_pair(&connected);

		ping_pong(connected, accepted, ROUNDS);
		close(connected);
		close(accepted);
	}
	SAY("%d connections\n", CONNECTIONS);
}

int main(int argc, char *argv[])
{
	pthread_t makers[MAKERS];

	MUST(argc > 1);
	if (strcmp(argv[1], "left") == 0) {
		MUST(epoll_create1(0) >= 0);
		execl("/proc/self/exe", argv[0], "was-left", (char *)NULL);
		return 9;
	}
	for (intptr_t i = 0; i < MAKERS && strcmp(argv[1], "made") == 0; i++)
		MUST(pthread_create(&makers[i], NULL, make, (void *)i) == 0);
	talk();
	over = true;
	for (int i = 0; i < MAKERS && strcmp(argv[1], "made") == 0; i++)
		MUST(pthread_join(makers[i], NULL) == 0);
	return 0;
}
