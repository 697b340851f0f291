/* SPDX-License-Identifier: MIT */
/* Blocked calls and signals: which return EINTR and which go on, by every way to install a handler. */
#include "probe.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

static int a, b;
static volatile sig_atomic_t caught;
static volatile int reader_tid;

static void handler(int sig)
{
	caught++;
}

static void socket_handler(int sig)
{
	char byte;
	int kept_errno = errno;

	/* A handler may use sockets too. */
	caught++;
	MUST(recv(a, &byte, 1, MSG_DONTWAIT) <= 1);
	errno = kept_errno;
}

static void *interrupt(void *arg)
{
	int before = caught;

	for (int seen = 0; seen < 50; seen = asleep(reader_tid) ? seen + 1 : 0)
		sched_yield();
	pthread_kill(*(pthread_t *)arg, SIGUSR1);
	while (caught == before)
		sched_yield();
	/* Whether it went on or came back, there is now something to read. */
	for (int seen = 0; seen < 50 && !asleep(reader_tid); seen++)
		sched_yield();
	MUST(write(b, "z", 1) == 1);
	return NULL;
}

static void one(const char *name)
{
	pthread_t self = pthread_self(), thread;
	ssize_t result;
	char byte;

	reader_tid = gettid();
	caught = 0;
	MUST(pthread_create(&thread, NULL, interrupt, &self) == 0);
	result = read(a, &byte, 1);
	SAY("%s: read %s, caught %d\n", name, outcome(result), (int)caught);
	MUST(pthread_join(thread, NULL) == 0);
	if (result < 0)
		MUST(read(a, &byte, 1) == 1);
}

static void *complete(void *arg)
{
	for (int seen = 0; seen < 50; seen = asleep(reader_tid) ? seen + 1 : 0)
		sched_yield();
	MUST(write(b, "z", 1) == 1);
	return NULL;
}

/* A signal that is blocked interrupts nothing, whatever would be done with it otherwise. */
static void one_blocked(void)
{
	struct sigaction restarts = { .sa_handler = handler, .sa_flags = SA_RESTART };
	pthread_t thread;
	sigset_t set;
	char bytes[2];

	reader_tid = gettid();
	caught = 0;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	MUST(sigaction(SIGUSR2, &restarts, NULL) == 0 && pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	MUST(raise(SIGUSR2) == 0 && write(b, "y", 1) == 1);
	MUST(pthread_create(&thread, NULL, complete, NULL) == 0);
	SAY("blocked: read %s, caught %d\n", outcome(recv(a, bytes, 2, MSG_WAITALL)), (int)caught);
	MUST(pthread_join(thread, NULL) == 0 && pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
	SAY("then caught %d\n", (int)caught);
}

static void with_flags(int flags)
{
	struct sigaction act = { .sa_handler = handler, .sa_flags = flags };

	MUST(sigaction(SIGUSR1, &act, NULL) == 0);
}

enum { REPLACED = 40 };

static void *reader(void *arg)
{
	char byte;

	reader_tid = gettid();
	MUST(read(a, &byte, 1) == -1 && errno == EINTR);
	return NULL;
}

/* How some run-time systems end another thread's read: a dead socket takes its number, and a signal follows at once. */
static void replaced(void)
{
	struct sigaction restarts = { .sa_handler = handler, .sa_flags = SA_RESTART };
	int dead[2];

	with_flags(0);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, dead) == 0 && close(dead[1]) == 0);
	for (int round = 0; round < REPLACED; round++) {
		pthread_t thread;
		char byte;

		/* With handlers of both kinds the sleep is another one. */
		if (round == REPLACED / 2)
			MUST(sigaction(SIGUSR2, &restarts, NULL) == 0);
		a = tcp_pair(&b);
		ping_pong(a, b, 20);
		reader_tid = 0;
		MUST(pthread_create(&thread, NULL, reader, NULL) == 0);
		while (!reader_tid)
			sched_yield();
		for (int seen = 0; seen < 50; seen = asleep(reader_tid) ? seen + 1 : 0)
			sched_yield();
		MUST(dup2(dead[0], a) == a && pthread_kill(thread, SIGUSR1) == 0);
		MUST(pthread_join(thread, NULL) == 0);
		MUST(read(b, &byte, 1) == 0 && read(a, &byte, 1) == 0);
		MUST(close(a) == 0 && close(b) == 0);
	}
	SAY("replaced, caught %d\n", (int)caught);
}

enum { GATHERED = 1000000, BETWEEN_SIGNALS = 1000 };

static _Atomic ssize_t gathered;

static void *gather(void *arg)
{
	static char into[GATHERED];
	ssize_t n;

	do
		n = recv(a, into, sizeof(into), MSG_WAITALL);
	while (n == -1 && errno == EINTR);
	gathered = n;
	return NULL;
}

/* A call that waits for more ends with what it has, though bytes come so fast that it need not sleep. */
static void in_a_stream(void)
{
	pthread_t thread;

	with_flags(0);
	a = tcp_pair(&b);
	ping_pong(a, b, 20);
	MUST(pthread_create(&thread, NULL, gather, NULL) == 0);
	for (int sent = 1; sent <= GATHERED && !gathered; sent++) {
		MUST(send(b, "z", 1, 0) == 1);
		if (sent % BETWEEN_SIGNALS == 0)
			MUST(pthread_kill(thread, SIGUSR1) == 0);
	}
	MUST(pthread_join(thread, NULL) == 0);
	MUST(caught && gathered > 0 && gathered < GATHERED);
	SAY("ended in the middle\n");
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Another process wakes the call with a byte that is not enough, and interrupts it: the handler may run when it is between two sleeps. */
static void woken_and_interrupted(void)
{
	enum { ROUNDS = 30 };
	struct sigaction act = { .sa_handler = handler };
	pid_t reader = getpid(), other;
	cpu_set_t all, one;
	char bytes[10];
	int cpu;

	MUST(sigaction(SIGUSR1, &act, NULL) == 0);
	/* One processor, and who is woken does not push the other one off it: so both have happened before the reader goes on. */
	CPU_ZERO(&one);
	MUST(sched_getaffinity(0, sizeof(all), &all) == 0);
	for (cpu = 0; !CPU_ISSET(cpu, &all); cpu++)
		;
	CPU_SET(cpu, &one);
	MUST(sched_setaffinity(0, sizeof(one), &one) == 0 && sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 }) == 0);
	a = tcp_pair(&b);
	other = fork();
	MUST(other >= 0);
	if (other == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && close(b) == 0);
		for (int i = 0; i < 30; i++)
			MUST(recv(a, bytes, 1, 0) == 1 && send(a, bytes, 1, 0) == 1);
		for (int i = 0; i < ROUNDS; i++) {
			MUST(recv(a, bytes, 1, 0) == 1);
			for (int seen = 0; seen < 50; seen = asleep(reader) ? seen + 1 : 0)
				;
			MUST(send(a, "x", 1, 0) == 1 && kill(reader, SIGUSR1) == 0);
		}
		_exit(0);
	}
	MUST(close(a) == 0);
	for (int i = 0; i < 30; i++)
		MUST(send(b, "x", 1, 0) == 1 && recv(b, bytes, 1, 0) == 1);
	for (int i = 0; i < ROUNDS; i++) {
		int before = caught;
		ssize_t n;

		while (send(b, "x", 1, 0) < 0)
			MUST(errno == EINTR);
		n = recv(b, bytes, sizeof(bytes), MSG_WAITALL);
		/* The byte, or the signal first and then the byte. */
		MUST(n == 1 || (n < 0 && errno == EINTR));
		while (caught == before)
			;
		if (n < 0)
			while (recv(b, bytes, 1, 0) != 1)
				;
	}
	SAY("interrupted %d times, the other ends with %d\n", caught, wait_for(other));
}

int main(int argc, char **argv)
{
	struct timeval timeout = { .tv_sec = 20 };
	struct sigaction act = { .sa_handler = socket_handler, .sa_flags = SA_RESTART };

	if (argc > 1) {
		/* Whoever waits for ever does so here. */
		alarm(60);
		if (!strcmp(argv[1], "replaced"))
			replaced();
		else if (!strcmp(argv[1], "woken"))
			woken_and_interrupted();
		else
			in_a_stream();
		return 0;
	}
	a = tcp_pair(&b);
	ping_pong(a, b, 20);
	with_flags(SA_RESTART);
	one("sigaction with restart");
	with_flags(0);
	one("sigaction without");
	one_blocked();
	signal(SIGUSR1, handler);
	one("signal");
	sysv_signal(SIGUSR1, handler);
	one("sysv_signal");
	sigset(SIGUSR1, handler);
	one("sigset");
	signal(SIGUSR1, handler);
	siginterrupt(SIGUSR1, 1);
	one("siginterrupt on");
	siginterrupt(SIGUSR1, 0);
	one("siginterrupt off");
	MUST(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
	with_flags(SA_RESTART);
	one("restart, but a timeout");
	timeout.tv_sec = 0;
	MUST(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
	MUST(sigaction(SIGUSR1, &act, NULL) == 0);
	one("a handler that reads the socket");
	SAY("ignored: %s\n", outcome(sigignore(SIGUSR1)));
	raise(SIGUSR1);
	return 0;
}
