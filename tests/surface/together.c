/* SPDX-License-Identifier: MIT */
/*
 * Both ends of a connection, in two processes, do in the same moment what brings it back to TCP: each of them with bytes unread. Whoever has the ends afterwards finds
 * every byte once.
 */
#include "probe.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { ROUNDS = 24, BEFORE = 400, AFTER = 100, LIFE_S = 25 };

static char *self;
static struct shared {
	atomic_int there;
} *shared;

static uint8_t byte_at(int side, int pos)
{
	return (uint8_t)(pos * 7 + (pos >> 8) + side * 101);
}

static void send_some(int fd, int side, int from, int to)
{
	uint8_t bytes[BEFORE];

	for (int i = from; i < to; i++)
		bytes[i - from] = byte_at(side, i);
	MUST(send(fd, bytes, (size_t)(to - from), MSG_NOSIGNAL) == to - from);
}

/* Of the other side's. */
static int read_some(int fd, int side, int from, int to)
{
	uint8_t bytes[BEFORE + AFTER];
	ssize_t n = recv(fd, bytes, (size_t)(to - from), 0);

	MUST(n > 0);
	for (ssize_t i = 0; i < n; i++)
		MUST(bytes[i] == byte_at(!side, from + (int)i));
	return from + (int)n;
}

/* Whoever has the end now. */
static void go_on(int fd, int side, int got)
{
	uint8_t byte;

	send_some(fd, side, BEFORE, BEFORE + AFTER);
	MUST(shutdown(fd, SHUT_WR) == 0);
	while (got < BEFORE + AFTER)
		got = read_some(fd, side, got, BEFORE + AFTER);
	MUST(recv(fd, &byte, 1, 0) == 0);
}

static void by_exec(int fd, int side, int got, bool plain)
{
	char words[3][16];

	snprintf(words[0], sizeof(words[0]), "%d", fd);
	snprintf(words[1], sizeof(words[1]), "%d", side);
	snprintf(words[2], sizeof(words[2]), "%d", got);
	if (plain)
		MUST(unsetenv("LD_PRELOAD") == 0 && unsetenv("RINGWAY") == 0);
	execl(self, self, "go-on", words[0], words[1], words[2], (char *)NULL);
	_exit(99);
}

/* The one process goes on, or the other one. */
static void by_fork(int fd, int side, int got, bool child)
{
	pid_t pid = fork();

	MUST(pid >= 0);
	if ((pid == 0) == child)
		go_on(fd, side, got);
	else
		close(fd);
	if (pid == 0)
		exit(0);
	MUST(wait_for(pid) == 0);
	exit(0);
}

static void by_option(int fd, int side, int got)
{
	int on = 1;

	MUST(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on)) == 0);
	go_on(fd, side, got);
	exit(0);
}

/* Until both are there; then one of them may be a little later, another time the other one. */
static void at_once(int side, int round)
{
	atomic_fetch_add(&shared->there, 1);
	while (atomic_load(&shared->there) < 2)
		sched_yield();
	for (volatile int i = 0; i < (round % 2 == side ? round * 400 : 0);)
		i = i + 1;
}

static void go(const char *how, int fd, int side, int round)
{
	int want = round * 37 % BEFORE, got = 0;
	char byte;

	for (int i = 0; i < 30; i++) {
		MUST(side || send(fd, "x", 1, 0) == 1);
		MUST(recv(fd, &byte, 1, 0) == 1);
		MUST(!side || send(fd, "x", 1, 0) == 1);
	}
	send_some(fd, side, 0, BEFORE);
	while (got < want)
		got = read_some(fd, side, got, want);
	at_once(side, round);
	if (strcmp(how, "exec") == 0 || (strcmp(how, "mixed") == 0 && side == round / 2 % 2))
		by_exec(fd, side, got, round % 3 == 0);
	else if (strcmp(how, "option") == 0)
		by_option(fd, side, got);
	else
		by_fork(fd, side, got, round % 3 == 0);
}

static pid_t start(const char *how, int side, int round, int listener, const struct sockaddr_in *addr)
{
	pid_t pid = fork();
	int fd;

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fd = side ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, NULL, NULL);
	MUST(fd >= 0 && (!side || connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0));
	close(listener);
	go(how, fd, side, round);
	exit(98);
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);

	self = argv[0];
	alarm(LIFE_S);
	if (strcmp(argv[1], "go-on") == 0)
		return go_on(atoi(argv[2]), atoi(argv[3]), atoi(argv[4])), 0;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);
	for (int round = 0; round < ROUNDS; round++) {
		int listener = socket(AF_INET, SOCK_STREAM, 0);
		pid_t pids[2];

		addr.sin_port = 0;
		MUST(bind(listener, (struct sockaddr *)&addr, len) == 0 && listen(listener, 1) == 0);
		MUST(getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
		atomic_store(&shared->there, 0);
		for (int side = 0; side < 2; side++)
			pids[side] = start(argv[1], side, round, listener, &addr);
		close(listener);
		for (int side = 0; side < 2; side++)
			SAY("round %d, side %d: %d\n", round, side, wait_for(pids[side]));
	}
	return 0;
}
