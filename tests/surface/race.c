/* SPDX-License-Identifier: MIT */
/* Threads that open, talk, copy, close and fork at once. */
#include "probe.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/ioctl.h>

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

enum { CLOSINGS = 600 };
static _Atomic int victim = -1, nr_done;

/* Uses a number that is being closed. */
static void *user(void *arg)
{
	for (int round = 0; round < CLOSINGS; round++) {
		int fd, one = 1, unread;

		while ((fd = atomic_load(&victim)) < 0)
			sched_yield();
		if (round % 3 == 0)
			shutdown(fd, SHUT_WR);
		else if (round % 3 == 1)
			setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
		else
			ioctl(fd, FIONREAD, &unread);
		atomic_store(&victim, -1);
		atomic_store(&nr_done, round + 1);
	}
	return NULL;
}

static void close_under_use(void)
{
	pthread_t thread;

	MUST(pthread_create(&thread, NULL, user, NULL) == 0);
	for (int round = 0; round < CLOSINGS; round++) {
		int connected, accepted = tcp_pair(&connected);

		ping_pong(accepted, connected, 8);
		atomic_store(&victim, connected);
		for (volatile int moment = round * 37 % 400; moment; moment--)
			;
		MUST(close(connected) == 0);
		while (atomic_load(&nr_done) != round + 1)
			sched_yield();
		MUST(read(accepted, &(char){ 0 }, 1) == 0 && close(accepted) == 0);
	}
	MUST(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
	static void *(*const roles[])(void *) = { talker, talker, forker, forker, copier };
	pthread_t threads[5];

	if (argc > 1) {
		close_under_use();
		SAY("closed\n");
		return 0;
	}
	for (int i = 0; i < 5; i++)
		MUST(pthread_create(&threads[i], NULL, roles[i], NULL) == 0);
	for (int i = 0; i < 5; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	SAY("done\n");
	return 0;
}
