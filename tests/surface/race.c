/* SPDX-License-Identifier: MIT */
/* Threads that open, talk, copy, close and fork at once. */
#include "probe.h"

#include <pthread.h>

static void *talker(void *arg)
{
	for (int round = 0; round < 60; round++) {
		int connected, accepted = tcp_pair(&connected), copy;

		ping_pong(accepted, connected, 12);
		copy = dup(connected);
		MUST(copy >= 0 && close(connected) == 0);
		ping_pong(accepted, copy, 4);
		MUST(close(copy) == 0 && read(accepted, &(char){ 0 }, 1) == 0 && close(accepted) == 0);
	}
	return NULL;
}

static void fork_once(int shared)
{
	pid_t pid = shared ? vfork() : fork();
	int code;

	MUST(pid >= 0);
	if (pid == 0)
		_exit(3);
	code = wait_for(pid);
	if (code != 3) {
		fprintf(stderr, "a child ended with %d\n", code);
		exit(9);
	}
}

static void *forker(void *arg)
{
	for (int round = 0; round < 40; round++)
		fork_once(round % 2);
	return NULL;
}

/* Copies whatever has a number just now, and lets go of it again. */
static void *copier(void *arg)
{
	for (int round = 0; round < 4000; round++) {
		int copy = dup(3 + round % 12);

		if (copy >= 0)
			MUST(close(copy) == 0);
	}
	return NULL;
}

int main(void)
{
	static void *(*const roles[])(void *) = { talker, talker, forker, forker, copier };
	pthread_t threads[5];

	for (int i = 0; i < 5; i++)
		MUST(pthread_create(&threads[i], NULL, roles[i], NULL) == 0);
	for (int i = 0; i < 5; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	SAY("done\n");
	return 0;
}
