/* SPDX-License-Identifier: MIT */
/*
 * unseen HOW [block]: talks through libc, but waits for its connections by system calls that no preload sees; or does not wait,
 * but tries again and again. "left": it was started with a set of somebody else's open, closes that, and makes its own at the same number.
 */
#include "probe.h"

#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "ringbuf/sys.h"

enum { ROUNDS = 300, PATIENCE_MS = 3000 };

static int sets[2], ends[2];

/* io_uring_setup(2)'s parameters: 120 bytes, all zero. */
static void make_uring(void)
{
	uint64_t parameters[15] = { 0 };

	MUST(sys_call2(SYS_io_uring_setup, 4, parameters) >= 0);
}

/* The number of the set that stays open behind it. */
static void start_again(char *argv[])
{
	char number[16];
	int set = epoll_create1(0);

	MUST(set >= 0);
	snprintf(number, sizeof(number), "%d", set);
	execl("/proc/self/exe", argv[0], argv[1], argv[2], number, (char *)NULL);
	MUST(!"exec");
}

static void make_sets(void)
{
	for (int i = 0; i < 2; i++) {
		struct epoll_event event = { .events = EPOLLIN };

		if (!sets[i])
			sets[i] = (int)sys_call1(SYS_epoll_create1, 0);
		MUST(sets[i] >= 0 && sys_call4(SYS_epoll_ctl, sets[i], EPOLL_CTL_ADD, ends[i], &event) == 0);
	}
}

static void try_in_vain(int i)
{
	char byte;

	for (int tries = 0; tries < 8; tries++)
		MUST(recv(ends[i], &byte, 1, 0) < 0 && errno == EAGAIN);
}

static void await(const char *how, int i)
{
	struct pollfd look = { .fd = ends[i], .events = POLLIN };
	struct epoll_event event;
	struct timespec patience = { .tv_sec = PATIENCE_MS / 1000 };
	long n;

	if (strcmp(how, "epoll") == 0)
		n = sys_call6(SYS_epoll_pwait, sets[i], (long)&event, 1, PATIENCE_MS, 0, 0);
	else
		n = sys_call5(SYS_ppoll, &look, 1, &patience, 0, 8);
	if (n != 1) {
		SAY("waited in vain\n");
		exit(1);
	}
}

int main(int argc, char *argv[])
{
	const char *how = argv[1];
	char out[64], in[64];

	if (argc == 3 && strcmp(argv[2], "left") == 0)
		start_again(argv);
	if (argc > 3) {
		close(atoi(argv[3]));
		/* The lowest number that is free; one set for both ends. */
		sets[0] = sets[1] = (int)sys_call1(SYS_epoll_create1, 0);
		MUST(sets[0] == atoi(argv[3]));
	}
	ends[0] = tcp_pair(&ends[1]);
	for (int i = 0; i < 2 && argc < 3; i++)
		MUST(fcntl(ends[i], F_SETFL, O_NONBLOCK) == 0);
	if (strcmp(how, "epoll") == 0)
		make_sets();
	if (strcmp(how, "uring") == 0)
		make_uring();
	for (int i = 0; i < ROUNDS; i++) {
		int len = snprintf(out, sizeof(out), "message %d", i), from = i % 2;

		if (strcmp(how, "spin") == 0)
			try_in_vain(!from);
		MUST(send(ends[from], out, (size_t)len, 0) == len);
		if (strcmp(how, "spin") != 0)
			await(how, !from);
		MUST(recv(ends[!from], in, sizeof(in), 0) == len && memcmp(in, out, (size_t)len) == 0);
		MUST(argc > 2 || (recv(ends[!from], in, sizeof(in), 0) < 0 && errno == EAGAIN));
	}
	SAY("%d messages\n", ROUNDS);
	return 0;
}
