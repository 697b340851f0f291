/* SPDX-License-Identifier: MIT */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fault/talk.h"

enum { PIECE = 10007, LAST_WORDS = 100, ONE_WAY_STREAMS = 48 };

static uint8_t byte_at(enum talk_role sender, uint64_t pos)
{
	return (uint8_t)(pos * 167 + (pos >> 8) * 59 + (pos >> 16) * 31 + (sender == TALK_CONNECTOR ? 0 : 91));
}

static int wrong(struct talk *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int wrong(struct talk *t, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(t->error, sizeof(t->error), format, ap);
	va_end(ap);
	return -1;
}

static int say(struct talk *t, size_t len)
{
	static uint8_t buf[PIECE];

	while (len) {
		size_t piece = len < sizeof(buf) ? len : sizeof(buf);
		ssize_t n;

		for (size_t i = 0; i < piece; i++)
			buf[i] = byte_at(t->role, t->sent + i);
		n = t->send ? t->send(t, buf, piece) : send(t->fd, buf, piece, MSG_NOSIGNAL);
		if (n <= 0)
			return wrong(t, "send: %s after %llu bytes", strerror(n ? errno : 0), (unsigned long long)t->sent);
		t->sent += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

/* One receive of at most `len`, checked. Bytes, 0 at the end, -1. */
static ssize_t hear_some(struct talk *t, size_t len)
{
	static uint8_t buf[PIECE];
	enum talk_role sender = t->role == TALK_CONNECTOR ? TALK_ACCEPTOR : TALK_CONNECTOR;
	size_t piece = len < sizeof(buf) ? len : sizeof(buf);
	ssize_t n = t->recv ? t->recv(t, buf, piece) : recv(t->fd, buf, piece, 0);

	if (n < 0)
		return wrong(t, "recv: %s after %llu bytes", strerror(errno), (unsigned long long)t->got);
	for (ssize_t i = 0; i < n; i++)
		if (buf[i] != byte_at(sender, t->got + (uint64_t)i))
			return wrong(t, "wrong byte at %llu", (unsigned long long)t->got + (unsigned long long)i);
	t->got += (uint64_t)n;
	if (t->die_at && t->got >= t->die_at)
		raise(SIGKILL);
	return n;
}

static int hear(struct talk *t, size_t len)
{
	while (len) {
		ssize_t n = hear_some(t, len);

		if (n < 0)
			return -1;
		if (!n)
			return wrong(t, "recv: end of stream after %llu bytes", (unsigned long long)t->got);
		len -= (size_t)n;
	}
	return 0;
}

static int hear_end(struct talk *t)
{
	ssize_t n = hear_some(t, 1);

	return n > 0 ? wrong(t, "a byte after the end") : (int)n;
}

static size_t length_of(int round, enum talk_role speaker)
{
	return 1 + ((uint32_t)round * 2654435761u >> (speaker == TALK_CONNECTOR ? 7 : 11)) % 3000;
}

static int rounds(struct talk *t)
{
	for (int i = 0; i < TALK_ROUNDS; i++) {
		size_t request = length_of(i, TALK_CONNECTOR), reply = length_of(i, TALK_ACCEPTOR);

		if (t->before_round)
			t->before_round(t, i);
		if (t->role == TALK_CONNECTOR ? say(t, request) || hear(t, reply) : hear(t, request) || say(t, reply))
			return -1;
	}
	return 0;
}

/* What netcat does with nothing to say: an end of stream first, and then a long stream the other way. */
static int listen_only(struct talk *t, bool hears)
{
	if (hears && shutdown(t->fd, SHUT_WR))
		return wrong(t, "shutdown: %s", strerror(errno));
	for (int i = 0; i < ONE_WAY_STREAMS; i++)
		if (hears ? hear(t, TALK_STREAM) : say(t, TALK_STREAM))
			return -1;
	if (hears)
		return hear_end(t);
	return shutdown(t->fd, SHUT_WR) ? wrong(t, "shutdown: %s", strerror(errno)) : hear_end(t);
}

int talk_run(struct talk *t)
{
	bool connector = t->role == TALK_CONNECTOR;

	if (t->one_way)
		return listen_only(t, connector == (t->one_way == 'c'));
	if (rounds(t))
		return -1;
	if (connector ? say(t, TALK_STREAM) || hear(t, TALK_STREAM) : hear(t, TALK_STREAM) || say(t, TALK_STREAM))
		return -1;
	if (!connector)
		return hear_end(t) || say(t, LAST_WORDS) ? -1 : 0;
	if (shutdown(t->fd, SHUT_WR))
		return wrong(t, "shutdown: %s", strerror(errno));
	return hear(t, LAST_WORDS) || hear_end(t) ? -1 : 0;
}

static int tcp_socket(struct sockaddr_in6 *at, socklen_t *len, char host)
{
	struct sockaddr_in *in = (struct sockaddr_in *)at;
	int family = host == '4' ? AF_INET : AF_INET6, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		exit(2);
	memset(at, 0, sizeof(*at));
	at->sin6_family = (sa_family_t)family;
	if (host == '4')
		in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		inet_pton(AF_INET6, host == '6' ? "::1" : "::ffff:127.0.0.1", &at->sin6_addr);
	*len = host == '4' ? sizeof(*in) : sizeof(*at);
	return fd;
}

/* The port stands at the same place in both kinds of address. */
int talk_connect(uint16_t port, char host)
{
	struct sockaddr_in6 at;
	socklen_t len;
	int fd = tcp_socket(&at, &len, host);

	at.sin6_port = htons(port);
	if (connect(fd, (struct sockaddr *)&at, len))
		exit(2);
	return fd;
}

int talk_accept(char host)
{
	struct sockaddr_in6 at;
	socklen_t len;
	int fd, listener = tcp_socket(&at, &len, host);

	if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&at, &len))
		exit(2);
	printf("port %d\n", ntohs(at.sin6_port));
	fflush(stdout);
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		exit(2);
	close(listener);
	return fd;
}
