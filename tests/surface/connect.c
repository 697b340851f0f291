/* SPDX-License-Identifier: MIT */
/* Ways to connect: blocking or not, set in every way, by copies, in vain, again, and dissolved. */
#include "probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/un.h>

static struct sockaddr_in addr;
static int listener;

static void listen_somewhere(void)
{
	socklen_t len = sizeof(addr);

	addr = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	listener = socket(AF_INET, SOCK_STREAM, 0);
	MUST(bind(listener, (struct sockaddr *)&addr, len) == 0 && listen(listener, 10) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
}

/* Connects fd, talks, and says whether an empty socket makes recv wait. */
static void use(int fd, const char *how)
{
	struct pollfd pfd = { .fd = fd, .events = POLLOUT };
	int result = connect(fd, (struct sockaddr *)&addr, sizeof(addr)), peer, flags;
	char byte;

	SAY("%s: connect %s\n", how, outcome(result));
	MUST(result == 0 || errno == EINPROGRESS);
	MUST(poll(&pfd, 1, -1) == 1 && pfd.revents == POLLOUT);
	peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	MUST(peer >= 0);
	flags = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
	ping_pong(fd, peer, 20);
	fcntl(fd, F_SETFL, flags);
	if (flags & O_NONBLOCK)
		SAY("%s: recv %s\n", how, outcome(recv(fd, &byte, 1, 0)));
	SAY("%s: recv without waiting %s\n", how, outcome(recv(fd, &byte, 1, MSG_DONTWAIT)));
	SAY("%s: connect again %s\n", how, outcome(connect(fd, (struct sockaddr *)&addr, sizeof(addr))));
	close(peer);
	SAY("%s: end %s\n", how, outcome(read(fd, &byte, 1)));
	close(fd);
}

static int fresh(int flags)
{
	int fd = socket(AF_INET, SOCK_STREAM | flags, 0);

	MUST(fd >= 0);
	return fd;
}

static void in_vain(void)
{
	struct sockaddr_in nobody = addr;
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	int fd = fresh(0), peer;

	close(listener);
	SAY("refused %s\n", outcome(connect(fd, (struct sockaddr *)&nobody, sizeof(nobody))));
	SAY("send %s\n", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
	listen_somewhere();
	use(fd, "after a refusal");
	fd = fresh(0);
	MUST(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
	peer = accept(listener, NULL, NULL);
	SAY("dissolve %s\n", outcome(connect(fd, &none, sizeof(none))));
	close(peer);
	use(fd, "dissolved");
	SAY("short address %s\n", outcome(connect(fresh(0), &none, 1)));
}

static void not_tcp(void)
{
	struct sockaddr_in udp = addr;
	struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = "/nonexistent/socket" };
	int fds[2];

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	ping_pong(fds[0], fds[1], 20);
	SAY("udp %s\n", outcome(connect(socket(AF_INET, SOCK_DGRAM, 0), (struct sockaddr *)&udp, sizeof(udp))));
	SAY("unix %s\n", outcome(connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&name, sizeof(name))));
	SAY("a pipe %s\n", outcome(connect(0, (struct sockaddr *)&addr, sizeof(addr)) & 0));
	SAY("accept of no listener %s\n", outcome(accept(fresh(0), NULL, NULL)));
}

int main(void)
{
	int fd, one = 1, copy;

	listen_somewhere();
	use(fresh(0), "blocking");
	use(fresh(SOCK_NONBLOCK), "nonblocking at birth");
	fd = fresh(0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	use(fd, "by fcntl");
	fd = fresh(0);
	ioctl(fd, FIONBIO, &one);
	use(fd, "by ioctl");
	fd = fresh(SOCK_NONBLOCK);
	one = 0;
	ioctl(fd, FIONBIO, &one);
	use(fd, "blocking again");
	fd = fresh(0);
	copy = dup(fd);
	fcntl(copy, F_SETFL, O_NONBLOCK);
	close(copy);
	use(fd, "by a copy that is gone");
	fd = fresh(0);
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 50);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	close(fd);
	use(copy, "a copy");
	in_vain();
	not_tcp();
	return 0;
}
