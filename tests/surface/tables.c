/* SPDX-License-Identifier: MIT */
/* Threads and processes that share memory but not descriptors, or the other way round: one number, two files, or a file that is gone. */
#include "probe.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

static int a, b;
static pthread_barrier_t meet;

static void unshare_files(void)
{
	MUST(unshare(CLONE_FILES) == 0);
	close(a);
}

static void unshare_by_syscall(void)
{
	MUST(syscall(SYS_unshare, CLONE_FILES) == 0);
	close(a);
}

static void unshare_by_close_range(void)
{
	MUST(close_range((unsigned int)a, (unsigned int)a, CLOSE_RANGE_UNSHARE) == 0);
}

static void *part(void *go)
{
	int c, d;

	(*(void (**)(void))go)();
	pthread_barrier_wait(&meet);
	pthread_barrier_wait(&meet);
	/* Under numbers that are others in the other thread. */
	c = tcp_pair(&d);
	ping_pong(c, d, 40);
	pthread_barrier_wait(&meet);
	pthread_barrier_wait(&meet);
	ping_pong(d, c, 40);
	close(c);
	close(d);
	return NULL;
}

static void in_a_thread(void (*go)(void))
{
	pthread_t thread;

	MUST(pthread_barrier_init(&meet, NULL, 2) == 0 && pthread_create(&thread, NULL, part, &go) == 0);
	for (int i = 0; i < 2; i++) {
		pthread_barrier_wait(&meet);
		ping_pong(a, b, 40);
		SAY("still talks\n");
		pthread_barrier_wait(&meet);
	}
	MUST(pthread_join(thread, NULL) == 0);
	ping_pong(a, b, 40);
	SAY("still talks\n");
	close(a);
	SAY("end %s\n", outcome(read(b, &(char){ 0 }, 1)));
}

static int closes(void *unused)
{
	close(a);
	return 0;
}

/* What the child closes is closed for both. */
static void shared_files(int flags)
{
	static char stack[65536] __attribute__((aligned(16)));
	int ends[2];

	MUST(wait_for(clone(closes, stack + sizeof(stack), flags | SIGCHLD, NULL)) == 0);
	SAY("send %s\n", outcome(send(a, "x", 1, 0)));
	SAY("end %s\n", outcome(read(b, &(char){ 0 }, 1)));
	MUST(pipe(ends) == 0);
	MUST(ends[0] == a || ends[1] == a);
	MUST(write(ends[1], "pipe", 4) == 4);
	SAY("pipe %s\n", outcome(read(ends[0], (char[8]){ 0 }, 8)));
}

/* What the child closes is its own. */
static void own_files(void)
{
	static char stack[65536] __attribute__((aligned(16)));

	MUST(wait_for(clone(closes, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL)) == 0);
	ping_pong(a, b, 40);
	SAY("still talks\n");
}

int main(int argc, char **argv)
{
	alarm(25);
	a = tcp_pair(&b);
	ping_pong(a, b, 30);
	if (strcmp(argv[1], "unshare") == 0)
		in_a_thread(unshare_files);
	else if (strcmp(argv[1], "syscall") == 0)
		in_a_thread(unshare_by_syscall);
	else if (strcmp(argv[1], "close-range") == 0)
		in_a_thread(unshare_by_close_range);
	else if (strcmp(argv[1], "files") == 0)
		shared_files(CLONE_FILES);
	else
		own_files();
	return 0;
}
