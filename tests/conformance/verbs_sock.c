/* SPDX-License-Identifier: MIT */
/* Steps that make, name and end sockets. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs.h"

enum { SMALL = 1 << 30 };
static const struct word sock_words[] = {{"nonblock", SOCK_NONBLOCK}, {"cloexec", SOCK_CLOEXEC}, {"small", SMALL},
					 {NULL, 0}};

struct address {
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct sockaddr_storage room;
	};
	socklen_t len;
};

static int family_of(const struct actor *a)
{
	if (run_family == '6' || (run_family == 'm' && a->name[0] != 'A'))
		return AF_INET6;
	return AF_INET;
}

/* Of this machine; there is no RDMA device with the address of loopback. */
static const char *own_address(const char *variable, const char *loopback)
{
	const char *set = getenv(variable);

	return set ? set : loopback;
}

/* Our own address in the family that the socket has. Under 'm' an IPv6 socket gets the mapped form of the IPv4 one. */
static struct address own(int fd, int port)
{
	const char *four = own_address("CONFORM_ADDRESS", "127.0.0.1");
	int family = AF_INET;
	socklen_t len = sizeof(family);
	struct address to = {.len = sizeof(to.in)};
	char mapped[INET6_ADDRSTRLEN];

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len) || family != AF_INET6) {
		to.in.sin_family = AF_INET;
		to.in.sin_port = htons((uint16_t)port);
		inet_pton(AF_INET, four, &to.in.sin_addr);
		return to;
	}
	to.len = sizeof(to.in6);
	to.in6.sin6_family = AF_INET6;
	to.in6.sin6_port = htons((uint16_t)port);
	snprintf(mapped, sizeof(mapped), "::ffff:%s", four);
	inet_pton(AF_INET6, run_family == 'm' ? mapped : own_address("CONFORM_ADDRESS6", "::1"), &to.in6.sin6_addr);
	return to;
}

static void say_address(struct actor *a, const struct address *at)
{
	char text[INET6_ADDRSTRLEN];

	if (at->len == 0)
		say(a, " no address");
	else if (at->any.sa_family == AF_INET6 && inet_ntop(AF_INET6, &at->in6.sin6_addr, text, sizeof(text)))
		say(a, " %s port=%d", text, ntohs(at->in6.sin6_port));
	else if (at->any.sa_family == AF_INET && inet_ntop(AF_INET, &at->in.sin_addr, text, sizeof(text)))
		say(a, " %s port=%d", text, ntohs(at->in.sin_port));
	else
		say(a, " family %d", at->any.sa_family);
}

static int port_of(int fd)
{
	struct address at = {.len = sizeof(at.room)};

	if (getsockname(fd, &at.any, &at.len))
		return 0;
	return ntohs(at.any.sa_family == AF_INET6 ? at.in6.sin6_port : at.in.sin_port);
}

/*
 * Nagle's delay would let a small message be visible at once or 40 ms later, as acknowledgements fall. Accepted sockets
 * have it from their listener.
 */
static void no_delay(int fd)
{
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* For scripts that fill sockets: megabytes prove no more than this. */
static void small_buffers(int fd)
{
	int bytes = 30000;

	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

void verb_socket(struct actor *a, int argc, char **argv)
{
	int flags = (int)parse_rest(sock_words, argc, argv, 2);
	int fd = CALL(socket(family_of(a), SOCK_STREAM | (flags & ~SMALL), 0));

	no_delay(fd);
	if (flags & SMALL)
		small_buffers(fd);
	say(a, fd < 0 ? "= -1" : "= ok");
	name_set(a, argv[1], fd);
}

void verb_bind(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]);
	struct address at = own(fd, argc > 2 ? (int)parse_number(argv[2]) : 0);

	say_result(a, CALL(bind(fd, &at.any, at.len)));
	say_hidden(a, "port=%d", port_of(fd));
}

void verb_listen(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]);

	say_result(a, CALL(listen(fd, (int)parse_number(argv[2]))));
	say_hidden(a, "port=%d", port_of(fd));
}

void verb_server(struct actor *a, int argc, char **argv)
{
	int fd = socket(family_of(a), SOCK_STREAM, 0), on = 1;
	struct address at = own(fd, 0);

	for (int i = 2; i < argc; i++) {
		if (!strcmp(argv[i], "nonblock"))
			fcntl(fd, F_SETFL, O_NONBLOCK);
		else if (!strcmp(argv[i], "small"))
			small_buffers(fd);
		else
			bad_step("unknown word", argv[i]);
	}
	no_delay(fd);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) || bind(fd, &at.any, at.len) ||
	    listen(fd, 64))
		say(a, "= failed %s", strerrorname_np(errno));
	else
		say(a, "= ok");
	name_set(a, argv[1], fd);
	say_hidden(a, "port=%d", port_of(fd));
}

void verb_connect(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]);
	struct address to;

	if (!strcmp(argv[2], "null")) {
		say_result(a, CALL(connect(fd, NULL, sizeof(to.in))));
		return;
	}
	to = own(fd, (int)parse_number(argv[2]));
	say_result(a, CALL(connect(fd, &to.any, to.len)));
	say_hidden(a, "own=%d peer=%s", port_of(fd), argv[2]);
}

void verb_connect_unspec(struct actor *a, int argc, char **argv)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};

	say_result(a, CALL(connect(fd_of(a, argv[1]), &none, sizeof(none))));
}

static void accepted(struct actor *a, const char *name, int fd)
{
	say_result(a, fd < 0 ? -1 : 0);
	if (fd >= 0)
		name_set(a, name, fd);
}

void verb_accept(struct actor *a, int argc, char **argv)
{
	struct address from = {.len = sizeof(from.room)};
	bool wanted = argc > 3;
	int fd = CALL(accept(fd_of(a, argv[1]), wanted ? &from.any : NULL, wanted ? &from.len : NULL));

	accepted(a, argv[2], fd);
	if (fd >= 0 && wanted)
		say_address(a, &from);
}

void verb_accept4(struct actor *a, int argc, char **argv)
{
	int flags = (int)parse_rest(sock_words, argc, argv, 3);
	int fd = CALL(accept4(fd_of(a, argv[1]), NULL, NULL, flags));

	accepted(a, argv[2], fd);
	if (fd >= 0)
		say(a, " fl %#x fd %#x", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
}

void verb_close(struct actor *a, int argc, char **argv)
{
	say_result(a, CALL(close(fd_of(a, argv[1]))));
}

void verb_close_range(struct actor *a, int argc, char **argv)
{
	say_result(a, CALL(close_range((unsigned int)fd_of(a, argv[1]), (unsigned int)fd_of(a, argv[2]), 0)));
}

void verb_shutdown(struct actor *a, int argc, char **argv)
{
	static const struct word how[] = {{"rd", SHUT_RD}, {"wr", SHUT_WR}, {"rdwr", SHUT_RDWR}, {"bad", 17}, {NULL, 0}};

	say_result(a, CALL(shutdown(fd_of(a, argv[1]), (int)parse_word(how, argv[2]))));
}

static void duplicated(struct actor *a, const char *name, int fd)
{
	say_result(a, fd < 0 ? -1 : 0);
	if (fd >= 0)
		name_set(a, name, fd);
}

void verb_dup(struct actor *a, int argc, char **argv)
{
	duplicated(a, argv[2], CALL(dup(fd_of(a, argv[1]))));
}

void verb_dup2(struct actor *a, int argc, char **argv)
{
	int to = fd_of(a, argv[2]);
	int fd = CALL(dup2(fd_of(a, argv[1]), to));

	say(a, fd >= 0 && fd == to ? "same " : "");
	say_result(a, fd < 0 ? -1 : 0);
}

void verb_dup3(struct actor *a, int argc, char **argv)
{
	int to = fd_of(a, argv[2]);
	int fd = CALL(dup3(fd_of(a, argv[1]), to, argc > 3 ? O_CLOEXEC : 0));

	say(a, fd >= 0 && fd == to ? "same " : "");
	say_result(a, fd < 0 ? -1 : 0);
}

void verb_dupfd(struct actor *a, int argc, char **argv)
{
	duplicated(a, argv[2], CALL(fcntl(fd_of(a, argv[1]), argc > 3 ? F_DUPFD_CLOEXEC : F_DUPFD, 100)));
}

void verb_getsockname(struct actor *a, int argc, char **argv)
{
	struct address at = {.len = sizeof(at.room)};
	int result = CALL(getsockname(fd_of(a, argv[1]), &at.any, &at.len));

	say_result(a, result);
	if (!result)
		say_address(a, &at);
}

void verb_getpeername(struct actor *a, int argc, char **argv)
{
	struct address at = {.len = sizeof(at.room)};
	int result = CALL(getpeername(fd_of(a, argv[1]), &at.any, &at.len));

	say_result(a, result);
	if (!result)
		say_address(a, &at);
}

void verb_rename(struct actor *a, int argc, char **argv)
{
	name_set(a, argv[2], fd_of(a, argv[1]));
	say(a, "= ok");
}

void verb_null(struct actor *a, int argc, char **argv)
{
	name_set(a, argv[1], open("/dev/null", O_RDWR | O_CLOEXEC));
	say(a, "= ok");
}

void verb_pipe(struct actor *a, int argc, char **argv)
{
	int ends[2] = {-1, -1};

	say_result(a, CALL(pipe2(ends, O_CLOEXEC | (argc > 3 ? O_NONBLOCK : 0))));
	name_set(a, argv[1], ends[0]);
	name_set(a, argv[2], ends[1]);
}

void verb_file(struct actor *a, int argc, char **argv)
{
	FILE *f = tmpfile();
	int fd = f ? fcntl(fileno(f), F_DUPFD_CLOEXEC, 0) : -1;
	struct name *n = name_set(a, argv[1], fd);
	size_t len = (size_t)parse_number(argv[2]);

	if (f)
		fclose(f);
	if (len > BUF_BYTES)
		bad_step("file too long", argv[2]);
	bytes_pattern(a, n, 0, a->buf, len);
	say(a, fd >= 0 && pwrite(fd, a->buf, len, 0) == (ssize_t)len ? "= ok" : "= failed");
}
