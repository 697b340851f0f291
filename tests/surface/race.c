/* SPDX-License-Identifier: MIT */
/* Threads that open, talk, copy, close and fork at once, and signal handlers in the middle of that. */
#include "probe.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
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

enum { SLEEPERS = 300, GIVEN = 10 };
static int ends[2];	/* the second is the sleeper's */
static _Atomic int sleeper_tid, rounds_begun, nr_closed;

/* The kernel holds the socket for a call that sleeps: it gets what comes, whoever closes its number meanwhile. */
static void *sleeper(void *arg)
{
	for (int round = 0; round < SLEEPERS; round++) {
		char in[64];

		while (atomic_load(&rounds_begun) <= round)
			sched_yield();
		atomic_store(&sleeper_tid, gettid());
		MUST(recv(ends[1], in, sizeof(in), 0) == GIVEN);
		atomic_store(&sleeper_tid, 0);
	}
	return NULL;
}

static void *closer(void *arg)
{
	for (int round = 0; round < SLEEPERS; round++) {
		while (atomic_load(&rounds_begun) <= round || !atomic_load(&sleeper_tid) || !asleep(atomic_load(&sleeper_tid)))
			sched_yield();
		atomic_store(&nr_closed, 2 * round + 1);
		MUST(close(ends[1]) == 0);
		atomic_store(&nr_closed, 2 * round + 2);
	}
	return NULL;
}

static void close_under_sleeper(void)
{
	pthread_t threads[2];
	int copy = -1;

	MUST(pthread_create(&threads[0], NULL, sleeper, NULL) == 0 && pthread_create(&threads[1], NULL, closer, NULL) == 0);
	for (int round = 0; round < SLEEPERS; round++) {
		ends[1] = tcp_pair(&ends[0]);
		ping_pong(ends[0], ends[1], 12);
		if (round % 4 == 0)
			copy = dup(ends[1]);
		atomic_store(&rounds_begun, round + 1);
		while (atomic_load(&nr_closed) < 2 * round + 1)
			sched_yield();
		for (volatile int moment = round * 37 % 800; moment; moment--)
			;
		MUST(send(ends[0], "some bytes", GIVEN, 0) == GIVEN);
		while (atomic_load(&sleeper_tid) || atomic_load(&nr_closed) < 2 * round + 2)
			sched_yield();
		if (copy >= 0)
			MUST(close(copy) == 0);
		copy = -1;
		MUST(read(ends[0], &(char){ 0 }, 1) == 0 && close(ends[0]) == 0);
	}
	for (int i = 0; i < 2; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
}

enum { HANDLED = 200, SIGNALS = 20 };
static int handled[2];	/* the connection's two ends */
static _Atomic int nr_sent, over;

static void send_one(int sig)
{
	int saved = errno;

	if (send(handled[0], "h", 1, MSG_DONTWAIT) == 1)
		atomic_fetch_add(&nr_sent, 1);
	errno = saved;
}

/* Nearly always inside a call on a set with the connection in it. */
static void *watcher(void *arg)
{
	while (!atomic_load(&over)) {
		int ep = epoll_create1(0);

		MUST(ep >= 0);
		for (int i = 0; i < 2; i++)
			MUST(epoll_ctl(ep, EPOLL_CTL_ADD, handled[i], &(struct epoll_event){ .events = EPOLLIN }) == 0);
		for (int i = 0; i < 4; i++)
			epoll_wait(ep, &(struct epoll_event){ 0 }, 1, 0);
		MUST(close(ep) == 0);
	}
	return NULL;
}

/* The ends find each other while a handler sends in the middle of another thread's epoll calls. */
static void send_from_handlers(void)
{
	struct sigaction catch = { .sa_handler = send_one, .sa_flags = SA_RESTART };

	MUST(sigaction(SIGUSR1, &catch, NULL) == 0);
	for (int round = 0; round < HANDLED; round++) {
		pthread_t thread;
		int got = 0, n;
		char in[256];

		handled[1] = tcp_pair(&handled[0]);
		atomic_store(&nr_sent, 0);
		atomic_store(&over, 0);
		MUST(pthread_create(&thread, NULL, watcher, NULL) == 0);
		for (int i = 0; i < SIGNALS; i++) {
			MUST(pthread_kill(thread, SIGUSR1) == 0);
			MUST(send(handled[0], "m", 1, 0) == 1);
			atomic_fetch_add(&nr_sent, 1);
			MUST((n = (int)recv(handled[1], in, sizeof(in), 0)) > 0);
			got += n;
		}
		atomic_store(&over, 1);
		MUST(pthread_join(thread, NULL) == 0);
		MUST(shutdown(handled[0], SHUT_WR) == 0);
		while ((n = (int)read(handled[1], in, sizeof(in))) > 0)
			got += n;
		MUST(n == 0 && got == atomic_load(&nr_sent));
		MUST(close(handled[0]) == 0 && close(handled[1]) == 0);
	}
}

int main(int argc, char **argv)
{
	static void *(*const roles[])(void *) = { talker, talker, forker, forker, copier };
	pthread_t threads[5];

	if (argc > 1 && !strcmp(argv[1], "handlers")) {
		/* Whoever waits for ever does so here. */
		alarm(60);
		send_from_handlers();
		SAY("handled\n");
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "asleep")) {
		close_under_sleeper();
		SAY("heard\n");
		return 0;
	}
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
