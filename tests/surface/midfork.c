/* SPDX-License-Identifier: MIT */
/*
 * A process that forks while the device of one of its connections does not answer, which takes long, and another thread that opens connections meanwhile: they are the parent's and
 * the child's like all others, and go on when the child has ended.
 */
#include "probe.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 8 };

static atomic_bool forks, forked;
static int nr_pairs, pairs[MOST][2];

static void *opens(void *arg)
{
	while (!forks)
		;
	do
		pairs[nr_pairs][0] = tcp_pair(&pairs[nr_pairs][1]);
	while (++nr_pairs < MOST && !forked);
	return arg;
}

static void *answers(void *arg)
{
	warm(*(int *)arg, false);
	return NULL;
}

static void talk(int pair[2])
{
	pthread_t thread;

	MUST(pthread_create(&thread, NULL, answers, &pair[0]) == 0);
	warm(pair[1], true);
	MUST(pthread_join(thread, NULL) == 0);
}

static void set_devices(int control, char to)
{
	MUST(pwrite(control, &to, 1, 0) == 1);
}

/* CONTROL: the file that says what the devices do. */
int main(int argc, char **argv)
{
	int control = argc == 2 ? open(argv[1], O_WRONLY | O_CLOEXEC) : -1, far[2], told[2];
	pthread_t thread;
	pid_t peer, child;
	char byte;

	MUST(control >= 0);
	far[0] = tcp_pair(&far[1]);
	peer = fork();
	MUST(peer >= 0);
	if (!peer) {
		close(far[1]);
		warm(far[0], false);
		while (recv(far[0], &byte, 1, 0) > 0)
			;
		exit(0);
	}
	close(far[0]);
	MUST(pipe(told) == 0);
	warm(far[1], true);

	MUST(pthread_create(&thread, NULL, opens, NULL) == 0);
	set_devices(control, 'l');
	forks = true;
	child = fork();
	MUST(child >= 0);
	if (!child) {
		close(told[1]);
		MUST(read(told[0], &byte, 1) == 0);
		exit(0);
	}
	forked = true;
	MUST(pthread_join(thread, NULL) == 0);
	set_devices(control, 'u');
	for (int i = 0; i < nr_pairs; i++)
		talk(pairs[i]);
	close(told[1]);
	MUST(wait_for(child) == 0);
	for (int i = 0; i < nr_pairs; i++) {
		talk(pairs[i]);
		MUST(shutdown(pairs[i][0], SHUT_WR) == 0 && recv(pairs[i][1], &byte, 1, 0) == 0);
	}
	close(far[1]);
	MUST(wait_for(peer) == 0);
	SAY("all went on\n");
	return 0;
}
