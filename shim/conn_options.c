/* SPDX-License-Identifier: MIT */
/* What a socket was told before it had a record. Runs once, when a connection is about to leave the plain road. */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/sockopt.h"

#ifndef TCP_INQ
#define TCP_INQ 36
#endif

int64_t sockopt_timeout_ns(const struct timeval *tv)
{
	int64_t ns;

	if (tv->tv_sec < 0)
		return 1; /* the kernel reads a negative time-out as "at once" */
	if (tv->tv_sec > INT64_MAX / 2000000000)
		return 0;
	ns = tv->tv_sec * INT64_C(1000000000) + tv->tv_usec * 1000;
	return ns;
}

static int int_option(int fd, int level, int name)
{
	int value = 0;
	unsigned len = sizeof(value);

	return sys_getsockopt(fd, level, name, &value, &len) == 0 ? value : 0;
}

static int64_t timeout_option(int fd, int name)
{
	struct timeval tv = { 0 };
	unsigned len = sizeof(tv);

	return sys_getsockopt(fd, SOL_SOCKET, name, &tv, &len) == 0 ? sockopt_timeout_ns(&tv) : 0;
}

void conn_read_options(struct conn *c, int fd)
{
	static const struct {
		int level, name;
		enum reason why;
	} unfit[] = {
		{ SOL_SOCKET, SO_OOBINLINE, REASON_OOB },
		{ SOL_SOCKET, SO_ZEROCOPY, REASON_ZEROCOPY },
		{ SOL_SOCKET, SO_TIMESTAMPING, REASON_TIMESTAMPS },
		{ SOL_SOCKET, SO_TIMESTAMP, REASON_TIMESTAMPS },
		{ SOL_SOCKET, SO_TIMESTAMPNS, REASON_TIMESTAMPS },
		{ IPPROTO_TCP, TCP_INQ, REASON_TIMESTAMPS },
		{ IPPROTO_TCP, TCP_REPAIR, REASON_REPAIR },
	};
	long flags = sys_fcntl(fd, F_GETFL, 0);
	char ulp[16] = "";
	unsigned ulp_len = sizeof(ulp), peek_len = sizeof(int);
	int peek_off = -1;
	int lowat = int_option(fd, SOL_SOCKET, SO_RCVLOWAT);

	store_relaxed(&c->have_options, 1);
	if (flags >= 0)
		store_relaxed(&c->nonblock, (flags & O_NONBLOCK) != 0);
	store_relaxed(&c->rcv_lowat, lowat > 0 ? lowat : 1);
	store_relaxed(&c->rcv_timeout_ns, timeout_option(fd, SO_RCVTIMEO));
	store_relaxed(&c->snd_timeout_ns, timeout_option(fd, SO_SNDTIMEO));
	store_relaxed(&c->user_timeout_ns, (unsigned int)int_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) * INT64_C(1000000));
	for (size_t i = 0; i < sizeof(unfit) / sizeof(unfit[0]); i++)
		if (int_option(fd, unfit[i].level, unfit[i].name))
			conn_pin(c, unfit[i].why);
	if (sys_getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &peek_off, &peek_len) == 0 && peek_off >= 0)
		conn_pin(c, REASON_PEEK_OFFSET);
	if (sys_getsockopt(fd, IPPROTO_TCP, TCP_ULP, ulp, &ulp_len) == 0 && ulp_len && ulp[0])
		conn_pin(c, REASON_ULP);
}
