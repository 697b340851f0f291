/* SPDX-License-Identifier: MIT */
/*
 * A handler that runs in a call which the bytes that came with the signal do not end: interrupts CALL [threads|old|masked]. Another process sends a byte and the signal in one go, so that
 * both have happened before the waiting thread goes on. Where the call waits for something else than the byte, the kernel's is ended by the handler alone.
 */
#include "probe.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum {
	ROUNDS = 30,
	MORE = ROUNDS + 1,	/* bytes than ever come: where the processor is busy, TCP's may be several rounds late, and then come at once */
};

static volatile sig_atomic_t caught;
static int a, set;
static const sigset_t *mask;
static char *piece;
static size_t piece_len;

static void handler(int sig)
{
	caught++;
}

static int waits_recv(void)
{
	char bytes[MORE];

	return (int)recv(a, bytes, sizeof(bytes), MSG_WAITALL);
}

static int waits_recvmsg(void)
{
	char bytes[MORE];
	struct iovec iov = { bytes, sizeof(bytes) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	return (int)recvmsg(a, &msg, MSG_WAITALL);
}

static int waits_peek(void)
{
	char bytes[MORE];

	return (int)recv(a, bytes, sizeof(bytes), MSG_WAITALL | MSG_PEEK);
}

/* More than fits: how much has gone is no matter. */
static int waits_send(void)
{
	return send(a, piece, piece_len, 0) > 0;
}

static int waits_poll(void)
{
	struct pollfd p = { .fd = a, .events = POLLRDHUP };

	return poll(&p, 1, -1);
}

static int waits_poll_timed(void)
{
	struct pollfd p = { .fd = a, .events = POLLPRI };

	return poll(&p, 1, 40000);
}

static int waits_ppoll(void)
{
	struct timespec t = { .tv_sec = 40 };
	struct pollfd p = { .fd = a, .events = POLLRDHUP };

	return ppoll(&p, 1, &t, mask);
}

static int waits_select(void)
{
	fd_set ex;

	FD_ZERO(&ex);
	FD_SET(a, &ex);
	return select(a + 1, NULL, NULL, &ex, NULL);
}

static int waits_pselect(void)
{
	fd_set ex;

	FD_ZERO(&ex);
	FD_SET(a, &ex);
	return pselect(a + 1, NULL, NULL, &ex, NULL, NULL);
}

static int waits_epoll(void)
{
	struct epoll_event event;

	return epoll_wait(set, &event, 1, -1);
}

static int waits_epoll_timed(void)
{
	struct epoll_event event;

	return epoll_wait(set, &event, 1, 40000);
}

static int waits_epoll_pwait(void)
{
	struct epoll_event event;

	return epoll_pwait(set, &event, 1, -1, mask);
}

static int waits_epoll_pwait2(void)
{
	struct timespec t = { .tv_sec = 40, .tv_nsec = 1 };
	struct epoll_event event;

	return epoll_pwait2(set, &event, 1, &t, mask);
}

static const struct way {
	const char *name;
	int (*waits)(void);
	bool by_bytes;	/* those that have come may be its result as well */
} ways[] = {
	{ "recv", waits_recv, true },
	{ "recvmsg", waits_recvmsg, true },
	{ "peek", waits_peek, true },
	{ "send", waits_send, true },
	{ "poll", waits_poll },
	{ "poll-timed", waits_poll_timed },
	{ "ppoll", waits_ppoll },
	{ "select", waits_select },
	{ "pselect", waits_pselect },
	{ "epoll", waits_epoll },
	{ "epoll-timed", waits_epoll_timed },
	{ "epoll_pwait", waits_epoll_pwait },
	{ "epoll_pwait2", waits_epoll_pwait2 },
};

static const struct way *way_of(const char *name)
{
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
		if (!strcmp(ways[i].name, name))
			return &ways[i];
	exit(9);
}

static void *idles(void *arg)
{
	for (;;)
		pause();
	return NULL;
}

/* One processor, and who is woken does not push the other one off it. */
static void share_processor(void)
{
	struct sched_param none = { 0 };
	cpu_set_t all, one;
	int cpu;

	CPU_ZERO(&one);
	MUST(sched_getaffinity(0, sizeof(all), &all) == 0);
	for (cpu = 0; !CPU_ISSET(cpu, &all); cpu++)
		;
	CPU_SET(cpu, &one);
	MUST(sched_setaffinity(0, sizeof(one), &one) == 0 && sched_setscheduler(0, SCHED_BATCH, &none) == 0);
}

static char taken[1 << 20];

static void take_all(int fd)
{
	while (recv(fd, taken, sizeof(taken), MSG_DONTWAIT) > 0)
		;
}

/* Each round is asked for by a byte out of line, so that nothing else is in the stream. */
static void disturb(int b, int line, pid_t waiter, bool sends)
{
	char byte;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	for (int i = 0; i < 30; i++)
		MUST(recv(b, &byte, 1, 0) == 1 && send(b, &byte, 1, 0) == 1);
	while (read(line, &byte, 1) == 1) {
		for (int seen = 0; seen < 50; seen = asleep(waiter) ? seen + 1 : 0)
			;
		/* A byte, or some room that is not enough. */
		if (sends)
			MUST(send(b, "x", 1, 0) == 1);
		else
			MUST(recv(b, taken, sizeof(taken), 0) > 0);
		MUST(kill(waiter, SIGUSR1) == 0);
		if (mask) {
			for (int seen = 0; seen < 50; seen = asleep(waiter) ? seen + 1 : 0)
				;
			MUST(shutdown(b, SHUT_WR) == 0);
		}
		MUST(read(line, &byte, 1) == 1);
		take_all(b);
		MUST(write(line, "d", 1) == 1);
	}
	_exit(0);
}

/* A kernel that does not have the newest way to wait on a set, from the start of the program on. */
static void be_old(char *self, char *way)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	execl(self, self, way, (char *)NULL);
	MUST(!"exec");
}

int main(int argc, char **argv)
{
	const struct way *way = way_of(argv[1]);
	struct sigaction act = { .sa_handler = handler };
	struct epoll_event event = { .events = EPOLLRDHUP };
	bool sends = strcmp(argv[1], "send") != 0;
	pid_t waiter = getpid(), other;
	pthread_t thread;
	int b, line[2];
	sigset_t usr1;
	char byte;

	if (argc > 2 && !strcmp(argv[2], "old"))
		be_old(argv[0], argv[1]);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	mask = argc > 2 && !strcmp(argv[2], "masked") ? &usr1 : NULL;
	/* Whoever waits for ever does so here. */
	alarm(60);
	MUST(sigaction(SIGUSR1, &act, NULL) == 0);
	share_processor();
	a = tcp_pair(&b);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
	other = fork();
	MUST(other >= 0);
	if (other == 0) {
		MUST(close(a) == 0 && close(line[0]) == 0);
		disturb(b, line[1], waiter, sends);
	}
	MUST(close(b) == 0 && close(line[1]) == 0);
	/* It lets the signal in as well. */
	if (argc > 2 && !mask)
		MUST(pthread_create(&thread, NULL, idles, NULL) == 0);
	for (int i = 0; i < 30; i++)
		MUST(send(a, "x", 1, 0) == 1 && recv(a, &byte, 1, 0) == 1);
	MUST((set = epoll_create1(0)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, a, &event) == 0);
	piece_len = 64 << 20;
	MUST((piece = calloc(1, piece_len)) != NULL);
	for (int i = 0; i < (mask ? 1 : ROUNDS); i++) {
		int before = caught, n;

		MUST(write(line[0], "r", 1) == 1);
		n = way->waits();
		/* What is kept out waits for what ends the call. */
		MUST(mask ? n == 1 : (n > 0 && way->by_bytes) || (n == -1 && errno == EINTR));
		while (caught == before)
			;
		MUST(write(line[0], "t", 1) == 1);
		while (read(line[0], &byte, 1) != 1)
			MUST(errno == EINTR);
		take_all(a);
	}
	MUST(close(line[0]) == 0);
	SAY("interrupted %d times, the other ends with %d\n", caught, wait_for(other));
	return 0;
}
