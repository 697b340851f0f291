/* SPDX-License-Identifier: MIT */
/*
 * Signal handlers of two threads, or processes, at once, each in the middle of a call and about to make one on what the other's is on.
 *
 * When they come is no accident: the call is given memory that cannot be touched, so the handler is SIGSEGV's, and comes where the call touches it. The kernel
 * by itself would fault by itself: "plain" makes it come just before the call.
 */
#include "probe.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { PAGE = 4096, STUCK_S = 15 };

static int plain;

/* Of a thread: what its call is given, and what its handler does. */
static __thread struct inside {
	void *page;
	void (*act)(void);
	int times;
} inside;

static struct shared {
	_Atomic int nr_inside, nr_out;
} *shared;

static int a[2], b[2];	/* two connections */
static int sets[2];
static __thread int mine;

static void on_fault(int sig)
{
	int saved = errno;

	if (!inside.act || inside.times++)
		_exit(8);
	MUST(mprotect(inside.page, PAGE, PROT_READ | PROT_WRITE) == 0);
	((struct epoll_event *)inside.page)->events = EPOLLIN;
	inside.act();
	errno = saved;
}

static void *untouchable(void (*act)(void))
{
	void *page = mmap(NULL, PAGE, plain ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	MUST(page != MAP_FAILED);
	inside = (struct inside){ page, act, 0 };
	if (plain)
		on_fault(0);
	return page;
}

/* All are in the middle of their calls. */
static void meet(int all)
{
	atomic_fetch_add(&shared->nr_inside, 1);
	while (atomic_load(&shared->nr_inside) < all)
		sched_yield();
}

static void send_on(int fd)
{
	MUST(send(fd, "handler", 7, 0) == 7 || errno == EAGAIN);
}

static void await_sleep(pid_t tid)
{
	char path[64], line[64];
	int fd, n;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	for (line[0] = 0; !plain && strncmp(line, "202 ", 4); line[n > 0 ? n : 0] = 0) {
		sched_yield();
		fd = open(path, O_RDONLY | O_CLOEXEC);
		MUST(fd >= 0);
		n = (int)read(fd, line, sizeof(line) - 1);
		close(fd);
	}
}

static void in_thread(void *(*routine)(void *), void *arg, pthread_t *thread)
{
	MUST(pthread_create(thread, NULL, routine, arg) == 0);
}

/* ---- each sends on the other's */

static void send_on_others(void)
{
	meet(2);
	send_on(mine ? a[0] : b[0]);
}

static void *sender(void *arg)
{
	mine = (int)(long)arg;
	MUST(send(mine ? b[0] : a[0], untouchable(send_on_others), 100, 0) == 100);
	return NULL;
}

static void threads(void)
{
	pthread_t thread;

	in_thread(sender, (void *)1, &thread);
	sender(NULL);
	MUST(pthread_join(thread, NULL) == 0);
}

static void processes(void)
{
	pid_t pid = fork();

	MUST(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(STUCK_S);
		sender((void *)1);
		_exit(0);
	}
	sender(NULL);
	MUST(wait_for(pid) == 0);
}

/* ---- three in a row, one of them receives */

static int c[2];

static void go_round(void)
{
	meet(3);
	send_on(mine == 0 ? b[0] : mine == 1 ? c[0] : a[0]);
}

static void *one_of_three(void *arg)
{
	mine = (int)(long)arg;
	MUST(send(mine == 0 ? a[0] : mine == 1 ? b[0] : c[0], untouchable(go_round), 100, 0) == 100);
	return NULL;
}

static void three(void)
{
	pthread_t thread[2];

	c[1] = tcp_pair(&c[0]);
	ping_pong(c[0], c[1], 12);
	in_thread(one_of_three, (void *)1, &thread[0]);
	in_thread(one_of_three, (void *)2, &thread[1]);
	one_of_three(NULL);
	for (int i = 0; i < 2; i++)
		MUST(pthread_join(thread[i], NULL) == 0);
}

/* ---- each changes the other's set */

static void change_others(void)
{
	struct epoll_event event = { .events = EPOLLIN };

	meet(2);
	MUST(epoll_ctl(sets[!mine], EPOLL_CTL_ADD, a[1], &event) == 0 || errno == EAGAIN);
}

static void *changer(void *arg)
{
	mine = (int)(long)arg;
	MUST(epoll_ctl(sets[mine], EPOLL_CTL_ADD, b[1], untouchable(change_others)) == 0);
	return NULL;
}

static void sets_at_once(void)
{
	pthread_t thread;

	for (int i = 0; i < 2; i++)
		MUST((sets[i] = epoll_create1(0)) >= 0);
	in_thread(changer, (void *)1, &thread);
	changer(NULL);
	MUST(pthread_join(thread, NULL) == 0);
}

/* ---- one handler, and a call that takes both directions */

static pid_t main_tid;

static void send_while_shut(void)
{
	meet(2);
	await_sleep(main_tid);
	send_on(a[0]);
}

static void *receiver(void *arg)
{
	MUST(send(a[1], "there", 5, 0) == 5);
	MUST(recv(a[0], untouchable(send_while_shut), PAGE, 0) == 5);
	return NULL;
}

static void shut_at_once(void)
{
	pthread_t thread;

	main_tid = gettid();
	in_thread(receiver, NULL, &thread);
	meet(2);
	MUST(shutdown(a[0], SHUT_RD) == 0);
	MUST(pthread_join(thread, NULL) == 0);
}

/* ---- a handler that forks, and a thread that does */

static void fork_once(void)
{
	pid_t pid = fork();

	MUST(pid >= 0);
	if (pid == 0)
		_exit(3);
	MUST(wait_for(pid) == 3);
}

static void fork_while_forking(void)
{
	meet(2);
	await_sleep(main_tid);
	fork_once();
}

static void *sending_forker(void *arg)
{
	MUST(send(a[0], untouchable(fork_while_forking), 100, 0) == 100);
	return NULL;
}

static void forks_at_once(void)
{
	pthread_t thread;

	main_tid = gettid();
	in_thread(sending_forker, NULL, &thread);
	meet(2);
	fork_once();
	MUST(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} ways[] = {
		{ "threads", threads }, { "processes", processes }, { "three", three }, { "sets", sets_at_once },
		{ "shut", shut_at_once }, { "forks", forks_at_once },
	};
	struct sigaction catch = { .sa_handler = on_fault, .sa_flags = SA_RESTART };

	MUST(argc == 2);
	alarm(STUCK_S);
	plain = !getenv("RINGWAY") || strcmp(getenv("RINGWAY"), "1");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED && sigaction(SIGSEGV, &catch, NULL) == 0);
	a[1] = tcp_pair(&a[0]);
	b[1] = tcp_pair(&b[0]);
	ping_pong(a[0], a[1], 12);
	ping_pong(b[0], b[1], 12);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(argv[1], ways[i].name)) {
			ways[i].run();
			SAY("over\n");
			return 0;
		}
	return 2;
}
