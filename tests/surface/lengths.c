/* SPDX-License-Identifier: MIT */
/* Lengths that no memory has, places where nothing is, control messages of every kind, times: as the kernel takes them, in its order. */
#include "probe.h"

#include <netinet/udp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

#define MINUS_ONE ((size_t)-1)
#define VAST ((size_t)1 << 62)

#define TRY(what) SAY("%s: " #what " %s\n", whose, outcome(what))

/* The compiler is not to know what they are. */
static void *volatile nowhere;
static volatile size_t vast = VAST, minus_one = MINUS_ONE, long_one = 0x7ffffffff;
static char bytes[64];

static void drain(int fd)
{
	while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
}

static void arrives(int from, int to, size_t len)
{
	MUST(send(from, "0123456789abcdef", len, 0) == (ssize_t)len);
	MUST(recv(to, bytes, len, MSG_PEEK | MSG_WAITALL) == (ssize_t)len);
}

static void lengths(const char *whose, int a, int b)
{
	struct iovec negative[2] = { { bytes, 4 }, { bytes, minus_one } }, too_much[2] = { { bytes, vast }, { bytes, vast } };
	struct iovec far[3] = { { bytes, 0x7fffffff }, { bytes, 4 }, { (void *)(~0ul << 48), 4 } };
	struct iovec far_negative[2] = { { (void *)(~0ul << 48), 4 }, { bytes, minus_one } };

	TRY(write(a, bytes, minus_one));
	TRY(write(a, bytes, vast));
	TRY(write(a, nowhere, minus_one));
	TRY(read(b, bytes, minus_one));
	TRY(read(b, bytes, vast));
	TRY(writev(a, negative, 2));
	TRY(writev(a, too_much, 2));
	TRY(writev(a, far, 3));
	TRY(writev(a, far_negative, 2));
	TRY(readv(b, negative, 2));
	TRY(readv(b, too_much, 2));
	TRY(readv(b, far, 3));
	TRY(recv(b, bytes, minus_one, MSG_DONTWAIT));
	arrives(a, b, 4);
	TRY(recv(b, bytes, minus_one, MSG_DONTWAIT));
	arrives(a, b, 4);
	TRY(recv(b, bytes, vast, 0));
	arrives(a, b, 4);
	TRY(recvfrom(b, bytes, minus_one, MSG_DONTWAIT, NULL, NULL));
	arrives(a, b, 4);
	TRY(recv(b, bytes, 0x7fffffff, MSG_PEEK));
	TRY(read(b, bytes, long_one));
	TRY(recv(b, bytes, 10, MSG_DONTWAIT));
}

/* The kernel looks at a place when it has bytes for it. */
static void places(const char *whose, int a, int b)
{
	struct iovec holes[2] = { { bytes, 4 }, { nowhere, 8 } };
	struct msghdr m = { .msg_iov = holes, .msg_iovlen = 2 };

	TRY(recv(b, nowhere, 4, MSG_DONTWAIT));
	TRY(recv(b, nowhere, 4, MSG_TRUNC | MSG_DONTWAIT));
	TRY(readv(b, holes, 0));
	TRY(recvmsg(b, &m, MSG_DONTWAIT));
	arrives(a, b, 16);
	TRY(recv(b, nowhere, 4, 0));
	TRY(recv(b, nowhere, 4, MSG_TRUNC | MSG_PEEK));
	TRY(recv(b, nowhere, 4, MSG_TRUNC));
	TRY(recvmsg(b, &m, 0));
	TRY(recvmsg(b, &m, MSG_TRUNC));
	TRY(recv(b, bytes, 10, MSG_DONTWAIT));
	arrives(a, b, 4);
	TRY(recvmsg(b, &m, MSG_DONTWAIT));
	TRY(recv(b, bytes, 10, MSG_DONTWAIT));
	TRY(send(a, nowhere, 4, MSG_NOSIGNAL));
	TRY(sendmsg(a, &m, MSG_NOSIGNAL));
	TRY(recv(b, bytes, 10, MSG_DONTWAIT));
}

/* Those of files move a socket's bytes, or none. */
static void flags(const char *whose, int a, int b)
{
	struct iovec piece = { bytes, 4 };

	for (int flag = RWF_HIPRI; flag <= RWF_APPEND; flag *= 2) {
		SAY("%s: pwritev2 %x %s\n", whose, (unsigned int)flag, outcome(pwritev2(a, &piece, 1, -1, flag)));
		MUST(recv(b, bytes, 4, MSG_WAITALL) == 4);
		arrives(a, b, 4);
		SAY("%s: preadv2 %x %s\n", whose, (unsigned int)flag, outcome(preadv2(b, &piece, 1, -1, flag)));
	}
	TRY(pwritev2(a, &piece, 1, -1, 1 << 20));
	TRY(preadv2(b, &piece, 1, -1, 1 << 20));
	TRY(preadv2(b, &piece, 1, -1, RWF_NOWAIT));
}

/* One control message of `len` bytes in all, as it says of itself. */
static long with_control(int fd, int level, int type, size_t says, size_t len)
{
	union {
		char raw[256];
		struct cmsghdr header;
	} control = { .header = { .cmsg_len = says, .cmsg_level = level, .cmsg_type = type } };
	struct iovec word = { "word", 4 };
	struct msghdr m = { .msg_iov = &word, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = len };

	return sendmsg(fd, &m, MSG_NOSIGNAL);
}

static void control(const char *whose, int a, int b)
{
	size_t whole = CMSG_LEN(sizeof(int));
	struct iovec word = { "word", 4 };
	struct msghdr m = { .msg_iov = &word, .msg_iovlen = 1, .msg_control = bytes, .msg_controllen = 0 };
	struct mmsghdr two[2] = { { .msg_hdr = m }, { .msg_hdr = m } };

	TRY(send(a, "word", 4, MSG_FASTOPEN));
	TRY(sendto(a, "word", 4, MSG_FASTOPEN, (struct sockaddr *)&(struct sockaddr_in){ .sin_family = AF_INET }, 16));
	TRY(with_control(a, SOL_SOCKET, SCM_RIGHTS, whole, whole));
	TRY(with_control(a, SOL_SOCKET, SCM_CREDENTIALS, whole, whole));
	TRY(with_control(a, SOL_SOCKET, 77, whole, whole));
	TRY(with_control(a, SOL_SOCKET, SO_TIMESTAMPING, whole, whole));
	TRY(with_control(a, SOL_SOCKET, SO_MARK, whole - 1, whole));
	TRY(with_control(a, IPPROTO_IP, 77, whole, whole));
	TRY(with_control(a, IPPROTO_UDP, UDP_SEGMENT, whole, whole));
	TRY(with_control(a, SOL_SOCKET, SCM_RIGHTS, 0, whole));
	TRY(with_control(a, SOL_SOCKET, SCM_RIGHTS, 4, whole));
	TRY(with_control(a, SOL_SOCKET, SCM_RIGHTS, whole + 100, whole));
	TRY(with_control(a, SOL_SOCKET, 77, whole, 4));
	drain(b);
	m.msg_control = nowhere;
	TRY(sendmsg(a, &m, 0));
	m.msg_controllen = 20;
	TRY(sendmsg(a, &m, 0));
	m.msg_controllen = minus_one;
	TRY(sendmsg(a, &m, 0));
	m.msg_controllen = 0;
	m.msg_name = nowhere;
	m.msg_namelen = 16;
	TRY(sendmsg(a, &m, 0));
	m.msg_namelen = 0;
	TRY(sendmsg(a, &m, 0));
	memset(bytes, 0, sizeof(bytes));
	two[1].msg_hdr.msg_controllen = 16;
	TRY(sendmmsg(a, two, 2, 0));
	TRY(sendmmsg(a, two + 1, 1, 0));
	drain(b);
}

/* The time of recvmmsg(): what is wrong with it, and what is left of it. */
static void times(const char *whose, int a, int b)
{
	struct timespec negative = { -1, 0 }, wrong = { 0, 1000000000 }, none = { 0, 0 }, hour = { 3600, 0 };
	struct iovec word = { bytes, 4 };
	struct mmsghdr two[2] = { { .msg_hdr = { .msg_iov = &word, .msg_iovlen = 1 } }, { .msg_hdr = { .msg_iov = &word, .msg_iovlen = 1 } } };

	TRY(recvmmsg(b, two, 2, MSG_DONTWAIT, &negative));
	TRY(recvmmsg(b, two, 2, MSG_DONTWAIT, &wrong));
	TRY(recvmmsg(b, two, 2, MSG_DONTWAIT, &none));
	arrives(a, b, 12);
	TRY(recvmmsg(b, two, 2, 0, &none));
	TRY(recvmmsg(b, two, 2, 0, &hour));
	TRY(hour.tv_sec);
	TRY(none.tv_sec + none.tv_nsec);
	TRY(recv(b, bytes, 10, MSG_DONTWAIT));
}

static void all(const char *whose, int a, int b)
{
	times(whose, a, b);
	lengths(whose, a, b);
	places(whose, a, b);
	flags(whose, a, b);
	control(whose, a, b);
}

int main(void)
{
	int a, b;

	alarm(20);
	signal(SIGPIPE, SIG_IGN);
	a = tcp_pair(&b);
	all("young", a, b);
	ping_pong(a, b, 40);
	all("busy", a, b);
	ping_pong(a, b, 20);
	/* Who may not send any more hears that first. */
	MUST(shutdown(a, SHUT_WR) == 0);
	places("shut", b, a);
	SAY("shut: %s\n", outcome(send(a, nowhere, 4, MSG_NOSIGNAL)));
	SAY("shut: %s\n", outcome(with_control(a, SOL_SOCKET, 77, CMSG_LEN(4), CMSG_LEN(4))));
	SAY("shut: %s\n", outcome(with_control(a, SOL_SOCKET, SCM_RIGHTS, CMSG_LEN(4), CMSG_LEN(4))));
	SAY("end: %s\n", outcome(recv(b, nowhere, 4, 0)));
	SAY("end: %s\n", outcome(recv(b, nowhere, 4, MSG_TRUNC)));
	return 0;
}
