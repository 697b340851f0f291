/* SPDX-License-Identifier: MIT */
/* Steps that set and ask: socket options, descriptor flags, ioctl. */
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "verbs.h"

enum kind { NUMBER, ERROR, MILLISECONDS, LINGER };

static const struct option {
	const char *name;
	int level, opt;
	enum kind kind;
} options[] = {
	{"SO_ERROR", SOL_SOCKET, SO_ERROR, ERROR},
	{"SO_TYPE", SOL_SOCKET, SO_TYPE, NUMBER},
	{"SO_DOMAIN", SOL_SOCKET, SO_DOMAIN, NUMBER},
	{"SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL, NUMBER},
	{"SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN, NUMBER},
	{"SO_RCVTIMEO", SOL_SOCKET, SO_RCVTIMEO, MILLISECONDS},
	{"SO_SNDTIMEO", SOL_SOCKET, SO_SNDTIMEO, MILLISECONDS},
	{"SO_LINGER", SOL_SOCKET, SO_LINGER, LINGER},
	{"SO_RCVBUF", SOL_SOCKET, SO_RCVBUF, NUMBER},
	{"SO_SNDBUF", SOL_SOCKET, SO_SNDBUF, NUMBER},
	{"SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, NUMBER},
	{"SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, NUMBER},
	{"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, NUMBER},
	{"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE, NUMBER},
	{"SO_PEEK_OFF", SOL_SOCKET, SO_PEEK_OFF, NUMBER},
	{"SO_ZEROCOPY", SOL_SOCKET, SO_ZEROCOPY, NUMBER},
	{"SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP, NUMBER},
	{"SO_TIMESTAMPNS", SOL_SOCKET, SO_TIMESTAMPNS, NUMBER},
	{"TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY, NUMBER},
	{"TCP_CORK", IPPROTO_TCP, TCP_CORK, NUMBER},
	{"TCP_QUICKACK", IPPROTO_TCP, TCP_QUICKACK, NUMBER},
	{"TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE, NUMBER},
	{"TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, NUMBER},
	{"TCP_INQ", IPPROTO_TCP, TCP_INQ, NUMBER},
	{"TCP_DEFER_ACCEPT", IPPROTO_TCP, TCP_DEFER_ACCEPT, NUMBER},
	{"BAD_OPTION", SOL_SOCKET, 9999, NUMBER},
};

static const struct option *option_find(const char *name)
{
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (!strcmp(options[i].name, name))
			return &options[i];
	bad_step("unknown option", name);
}

union option_value {
	int number;
	struct timeval time;
	struct linger linger;
};

static socklen_t option_len(const struct option *o)
{
	if (o->kind == MILLISECONDS)
		return sizeof(struct timeval);
	return o->kind == LINGER ? sizeof(struct linger) : sizeof(int);
}

void verb_setsockopt(struct actor *a, int argc, char **argv)
{
	const struct option *o = option_find(argv[2]);
	long first = parse_number(argv[3]);
	union option_value v = {.number = (int)first};

	if (o->kind == MILLISECONDS)
		v.time = (struct timeval){.tv_sec = first / 1000, .tv_usec = first % 1000 * 1000};
	else if (o->kind == LINGER)
		v.linger = (struct linger){.l_onoff = (int)first, .l_linger = argc > 4 ? (int)parse_number(argv[4]) : 0};
	say_result(a, CALL(setsockopt(fd_of(a, argv[1]), o->level, o->opt, &v, option_len(o))));
}

void verb_getsockopt(struct actor *a, int argc, char **argv)
{
	const struct option *o = option_find(argv[2]);
	union option_value v = {0};
	socklen_t len = sizeof(v);
	int result = CALL(getsockopt(fd_of(a, argv[1]), o->level, o->opt, &v, &len));

	say_result(a, result);
	if (result)
		return;
	say(a, " len %u", len);
	if (o->kind == ERROR)
		say(a, " %s", v.number ? strerrorname_np(v.number) : "no-error");
	else if (o->kind == MILLISECONDS)
		say(a, " %ld ms", v.time.tv_sec * 1000 + v.time.tv_usec / 1000);
	else if (o->kind == LINGER)
		say(a, " %d %d", v.linger.l_onoff, v.linger.l_linger);
	else
		say(a, " %d", v.number);
}

void verb_nonblock(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]), on = !strcmp(argv[2], "on"), flags;

	if (argc > 3) {
		say_result(a, CALL(ioctl(fd, FIONBIO, &on)));
		return;
	}
	flags = fcntl(fd, F_GETFL);
	flags = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
	say_result(a, CALL(fcntl(fd, F_SETFL, flags)));
}

void verb_getfl(struct actor *a, int argc, char **argv)
{
	say_result(a, CALL(fcntl(fd_of(a, argv[1]), F_GETFL)));
}

void verb_getfd(struct actor *a, int argc, char **argv)
{
	say_result(a, CALL(fcntl(fd_of(a, argv[1]), F_GETFD)));
}

void verb_cloexec(struct actor *a, int argc, char **argv)
{
	say_result(a, CALL(fcntl(fd_of(a, argv[1]), F_SETFD, !strcmp(argv[2], "on") ? FD_CLOEXEC : 0)));
}

static void say_ioctl(struct actor *a, int fd, unsigned long request)
{
	int value = -1;
	int result = CALL(ioctl(fd, request, &value));

	say_result(a, result);
	if (!result)
		say(a, " %d", value);
}

void verb_inq(struct actor *a, int argc, char **argv)
{
	say_ioctl(a, fd_of(a, argv[1]), FIONREAD);
}

/* What was sent leaves the queue when the peer's kernel acknowledges it, which may take a delayed ACK (40 ms). */
void verb_outq(struct actor *a, int argc, char **argv)
{
	int fd = fd_of(a, argv[1]), value;

	for (int tries = 0; argc > 2 && tries < 500; tries++) {
		if (ioctl(fd, SIOCOUTQ, &value) || value == 0)
			break;
		poll(NULL, 0, 1);
	}
	say_ioctl(a, fd, SIOCOUTQ);
}

void verb_atmark(struct actor *a, int argc, char **argv)
{
	say_ioctl(a, fd_of(a, argv[1]), SIOCATMARK);
}

void verb_fstat(struct actor *a, int argc, char **argv)
{
	struct stat st = {0};

	say_result(a, CALL(fstat(fd_of(a, argv[1]), &st)));
	say(a, " %s", S_ISSOCK(st.st_mode) ? "socket" : S_ISCHR(st.st_mode) ? "device" : "other");
}

void verb_tcp_state(struct actor *a, int argc, char **argv)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	say_result(a, CALL(getsockopt(fd_of(a, argv[1]), IPPROTO_TCP, TCP_INFO, &info, &len)));
	/* FIN_WAIT1 becomes FIN_WAIT2 when the acknowledgement comes. */
	say(a, " state %d", info.tcpi_state == TCP_FIN_WAIT1 ? TCP_FIN_WAIT2 : info.tcpi_state);
}
