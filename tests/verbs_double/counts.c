/* SPDX-License-Identifier: MIT */
/*
 * A program whose traffic is known to the message: counts accept MODE COUNT SIZE, which says its port, or counts connect PORT MODE COUNT SIZE. MODE is
 * ping, where each message is answered by one like it, or stream, from who connected to who accepted. Says how often it slept in it.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define WARM_UP 50	/* messages each way, by the end of which both ends have found each other */
#define WARM_UP_BYTES 8
#define SIZE_MAX_BYTES 65536

static char buf[SIZE_MAX_BYTES];

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void give(int fd, size_t len)
{
	for (ssize_t n; len; len -= (size_t)n)
		if ((n = send(fd, buf, len, 0)) <= 0)
			fail("send");
}

static void take(int fd, size_t len)
{
	for (ssize_t n; len; len -= (size_t)n)
		if ((n = recv(fd, buf, len < sizeof(buf) ? len : sizeof(buf), 0)) <= 0)
			fail("recv");
}

static void ping(int fd, bool first, size_t count, size_t size)
{
	for (size_t i = 0; i < count; i++) {
		if (first)
			give(fd, size);
		take(fd, size);
		if (!first)
			give(fd, size);
	}
}

static void stream(int fd, bool first, size_t count, size_t size)
{
	if (!first) {
		take(fd, count * size);
		give(fd, 1);
		return;
	}
	for (size_t i = 0; i < count; i++)
		give(fd, size);
	take(fd, 1);
}

static int meet(bool first, const char *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0), listener = fd;

	if (first) {
		at.sin_port = htons((uint16_t)atoi(port));
		if (connect(fd, (struct sockaddr *)&at, len))
			fail("connect");
	} else {
		if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&at, &len))
			fail("listen");
		printf("%u\n", ntohs(at.sin_port));
		fflush(stdout);
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			fail("accept");
		close(listener);
	}
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		fail("setsockopt");
	return fd;
}

int main(int argc, char **argv)
{
	bool first = argc > 1 && !strcmp(argv[1], "connect");
	char **words = argv + (first ? 3 : 2);
	struct rusage before, after;
	size_t count, size;
	int fd;

	if (argc != (first ? 6 : 5)) {
		fprintf(stderr, "usage: counts accept MODE COUNT SIZE, counts connect PORT MODE COUNT SIZE\n");
		return 2;
	}
	alarm(50);
	count = strtoul(words[1], NULL, 10);
	size = strtoul(words[2], NULL, 10);
	if (size > sizeof(buf))
		return 2;
	fd = meet(first, first ? argv[2] : NULL);
	ping(fd, first, WARM_UP, WARM_UP_BYTES);
	getrusage(RUSAGE_SELF, &before);
	(strcmp(words[0], "ping") ? stream : ping)(fd, first, count, size);
	getrusage(RUSAGE_SELF, &after);
	printf("%ld\n", after.ru_nvcsw - before.ru_nvcsw);
	close(fd);
	return 0;
}
