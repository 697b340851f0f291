/* SPDX-License-Identifier: MIT */
/* A program that reaches its sockets through syscall(), and by asynchronous I/O. */
#include "probe.h"

#include <aio.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

static void waits(int a, int b)
{
	struct timespec second = { 1, 0 }, none = { 0, 0 };
	struct epoll_event event = { .events = EPOLLIN, .data.fd = b };
	struct pollfd pfd = { .fd = b, .events = POLLIN };
	int ep = (int)syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
	unsigned long long mask = 0;
	fd_set set;

	MUST(syscall(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, b, &event) == 0);
	SAY("ppoll %s\n", outcome(syscall(SYS_ppoll, &pfd, 1, &none, &mask, 8)));
	SAY("epoll_pwait %s\n", outcome(syscall(SYS_epoll_pwait, ep, &event, 1, 0, NULL, 8)));
	MUST(syscall(SYS_sendto, a, "wake", 4, 0, NULL, 0) == 4);
	SAY("ppoll %s\n", outcome(syscall(SYS_ppoll, &pfd, 1, &second, &mask, 8)));
	SAY("epoll_pwait %s\n", outcome(syscall(SYS_epoll_pwait, ep, &event, 1, 1000, NULL, 8)));
	FD_ZERO(&set);
	FD_SET(b, &set);
	SAY("pselect6 %s\n", outcome(syscall(SYS_pselect6, b + 1, &set, NULL, NULL, &second, NULL)));
	SAY("ppoll of a wrong mask %s\n", outcome(syscall(SYS_ppoll, &pfd, 1, &second, &mask, 7)));
	syscall(SYS_close, ep);
}

/* Exported for old binaries. */
ssize_t __send(int fd, const void *buf, size_t len, int flags);

static void transfers(int a, int b)
{
	struct iovec iov[2] = { { "head ", 5 }, { "tail", 4 } };
	char buf[64];
	int nr;

	for (int i = 0; i < 30; i++) {
		if (i % 3)
			MUST(syscall(SYS_writev, a, iov, 2) == 9);
		else
			MUST(__send(a, "head tail", 9, 0) == 9);
		MUST(syscall(SYS_recvfrom, b, buf, sizeof(buf), 0, NULL, NULL) == 9 && memcmp(buf, "head tail", 9) == 0);
		MUST(syscall(SYS_write, b, buf, 9) == 9);
		MUST(syscall(SYS_ioctl, a, FIONREAD, &nr) == 0);
		MUST(syscall(SYS_read, a, buf, sizeof(buf)) == 9);
	}
	SAY("transfers\n");
}

static void descriptors(int a, int *b)
{
	int copy = (int)syscall(SYS_fcntl, *b, F_DUPFD_CLOEXEC, 30);

	SAY("copy %d\n", copy);
	MUST(syscall(SYS_close, *b) == 0);
	*b = (int)syscall(SYS_dup3, copy, 40, O_CLOEXEC);
	MUST(syscall(SYS_close, copy) == 0);
	transfers(a, *b);
	SAY("close of nothing %s\n", outcome(syscall(SYS_close, copy)));
	SAY("no such call %s\n", outcome(syscall(9999)));
}

static void asynchronous(int a, int b)
{
	char in[16] = "";
	struct aiocb block = { .aio_fildes = b, .aio_buf = in, .aio_nbytes = sizeof(in) };
	const struct aiocb *list[] = { &block };

	MUST(write(a, "async", 5) == 5);
	MUST(aio_read(&block) == 0);
	while (aio_error(&block) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	SAY("aio %s %s\n", outcome(aio_return(&block)), in);
	ping_pong(a, b, 30);
}

int main(int argc, char **argv)
{
	int b, a = tcp_pair(&b);
	char byte;

	if (argc > 1) {
		asynchronous(a, b);
		return 0;
	}
	waits(a, b);
	MUST(syscall(SYS_recvfrom, b, (char[8]){ 0 }, 8, 0, NULL, NULL) == 4);
	transfers(a, b);
	waits(a, b);
	MUST(syscall(SYS_recvfrom, b, (char[8]){ 0 }, 8, 0, NULL, NULL) == 4);
	descriptors(a, &b);
	SAY("shutdown %s\n", outcome(syscall(SYS_shutdown, a, SHUT_WR)));
	SAY("end %s\n", outcome(syscall(SYS_read, b, &byte, 1)));
	syscall(SYS_exit_group, 0);
	return 1;
}
