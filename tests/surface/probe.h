/* SPDX-License-Identifier: MIT */
/* For the probes: ordinary programs that print what they see, run with and without the preload. */
#ifndef RINGWAY_TESTS_SURFACE_PROBE_H
#define RINGWAY_TESTS_SURFACE_PROBE_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/asleep.h"

#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))

/* What must hold for the probe to go on; what the test compares is printed with SAY. */
#define MUST(what)                                                                                                     \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));                \
			exit(9);                                                                                       \
		}                                                                                                      \
	} while (0)

/* "3" or "EBADF": a result as a program sees it. */
static inline const char *outcome(long result)
{
	static char text[32];

	if (result < 0)
		return strerrorname_np(errno);
	snprintf(text, sizeof(text), "%ld", result);
	return text;
}

/* A TCP pair over loopback: the accepted end, and the connected one in *connected. */
static inline int tcp_pair(int *connected)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM, 0), accepted;

	MUST(listener >= 0 && bind(listener, (struct sockaddr *)&addr, len) == 0 && listen(listener, 1) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
	*connected = socket(AF_INET, SOCK_STREAM, 0);
	MUST(*connected >= 0 && connect(*connected, (struct sockaddr *)&addr, len) == 0);
	accepted = accept(listener, NULL, NULL);
	MUST(accepted >= 0);
	close(listener);
	return accepted;
}

/* Sends `rounds` messages there and back, and says whether each arrived whole. */
static inline void ping_pong(int a, int b, int rounds)
{
	char out[64], in[64];

	for (int i = 0; i < rounds; i++) {
		int len = snprintf(out, sizeof(out), "message %d", i);

		MUST(send(a, out, (size_t)len, 0) == len);
		MUST(recv(b, in, sizeof(in), 0) == len && memcmp(in, out, (size_t)len) == 0);
		MUST(write(b, in, (size_t)len) == len);
		MUST(read(a, in, sizeof(in)) == len && memcmp(in, out, (size_t)len) == 0);
	}
}

/* With another thread or process at the other end: both lanes have their quiet moment. */
static inline void warm(int fd, bool first)
{
	char byte;

	for (unsigned i = 0; i < 30; i++) {
		MUST(!first || send(fd, "x", 1, 0) == 1);
		MUST(recv(fd, &byte, 1, 0) == 1);
		MUST(first || send(fd, "x", 1, 0) == 1);
	}
}

static inline int wait_for(pid_t pid)
{
	int status;

	MUST(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif
