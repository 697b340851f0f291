/* SPDX-License-Identifier: MIT */
/*
 * The options that matter to a ring, and what of them a socket was told before it had a record: read once, when a connection is about to
 * leave the plain road.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/sockopt.h"

#ifndef TCP_AO_ADD_KEY
#define TCP_AO_ADD_KEY 38
#endif

static const struct sockopt_unfit unfit[] = {
	{ IPPROTO_TCP, TCP_ULP, REASON_ULP, ENOENT, OFF_NEVER },
	{ IPPROTO_TCP, TCP_MD5SIG, REASON_MD5, ENOPROTOOPT, OFF_NEVER },
	{ IPPROTO_TCP, TCP_MD5SIG_EXT, REASON_MD5, ENOPROTOOPT, OFF_NEVER },
	{ IPPROTO_TCP, TCP_AO_ADD_KEY, REASON_MD5, ENOPROTOOPT, OFF_NEVER },
	{ IPPROTO_TCP, TCP_REPAIR, REASON_REPAIR, EPERM, OFF_ZERO },
	{ SOL_SOCKET, SO_OOBINLINE, REASON_OOB, 0, OFF_ZERO },
	{ SOL_SOCKET, SO_PEEK_OFF, REASON_PEEK_OFFSET, EOPNOTSUPP, OFF_NEGATIVE },
	{ SOL_SOCKET, SO_TIMESTAMPING, REASON_TIMESTAMPS, 0, OFF_ZERO },
	{ SOL_SOCKET, SO_ATTACH_FILTER, REASON_BPF, 0, OFF_NEVER },
	{ SOL_SOCKET, SO_ATTACH_BPF, REASON_BPF, 0, OFF_NEVER },
};

#define NR_UNFIT (sizeof(unfit) / sizeof(unfit[0]))

const struct sockopt_unfit *sockopt_find_unfit(int level, int name)
{
	for (size_t i = 0; i < NR_UNFIT; i++)
		if (unfit[i].level == level && unfit[i].name == name)
			return &unfit[i];
	return NULL;
}

bool sockopt_switches_on(const struct sockopt_unfit *option, const void *value, socklen_t len)
{
	int number;

	if (option->off == OFF_NEVER || len < sizeof(number))
		return true;
	number = *(const int *)value;
	return option->off == OFF_NEGATIVE ? number >= 0 : number != 0;
}

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

static int stamps_option(int fd)
{
	static const int names[] = { SO_TIMESTAMP_OLD, SO_TIMESTAMPNS_OLD, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (int_option(fd, SOL_SOCKET, names[i]))
			return names[i];
	return 0;
}

/* It may be its listener's. Of one that is no classic program the kernel says so instead of its length. */
static bool has_filter(int fd)
{
	unsigned len = 0;
	int r = sys_getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, NULL, &len);

	return r == -EACCES || (r == 0 && len);
}

/* A key stands at a listener, or at a socket that was not connected yet: whose it becomes is not to be asked, and all that come later stay on TCP. */
static _Atomic bool keyed;

void sockopt_set_early(int level, int name)
{
	const struct sockopt_unfit *option = level == IPPROTO_TCP ? sockopt_find_unfit(level, name) : NULL;

	if (option && option->why == REASON_MD5)
		store_relaxed(&keyed, true);
}

static bool is_on(const struct sockopt_unfit *option, int fd)
{
	int value;
	unsigned len = sizeof(value);

	return option->off != OFF_NEVER && sys_getsockopt(fd, option->level, option->name, &value, &len) == 0 && sockopt_switches_on(option, &value, len);
}

void conn_read_options(struct conn *c, int fd)
{
	long flags = sys_fcntl(fd, F_GETFL, 0);
	char ulp[16] = "";
	unsigned ulp_len = sizeof(ulp);
	int lowat = int_option(fd, SOL_SOCKET, SO_RCVLOWAT);

	store_relaxed(&c->have_options, 1);
	if (flags >= 0)
		store_relaxed(&c->nonblock, (flags & O_NONBLOCK) != 0);
	store_relaxed(&c->rcv_lowat, lowat > 0 ? lowat : 1);
	store_relaxed(&c->zero_copies, int_option(fd, SOL_SOCKET, SO_ZEROCOPY) != 0);
	store_relaxed(&c->stamps, (uint8_t)stamps_option(fd));
	store_relaxed(&c->tells_inq, int_option(fd, IPPROTO_TCP, TCP_INQ) != 0);
	store_relaxed(&c->rcv_timeout_ns, timeout_option(fd, SO_RCVTIMEO));
	store_relaxed(&c->snd_timeout_ns, timeout_option(fd, SO_SNDTIMEO));
	store_relaxed(&c->user_timeout_ns, (unsigned int)int_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) * INT64_C(1000000));
	for (size_t i = 0; i < NR_UNFIT; i++)
		if (is_on(&unfit[i], fd))
			conn_pin(c, unfit[i].why);
	if (has_filter(fd))
		conn_pin(c, REASON_BPF);
	if (load_relaxed(&keyed))
		conn_pin(c, REASON_MD5);
	if (sys_getsockopt(fd, IPPROTO_TCP, TCP_ULP, ulp, &ulp_len) == 0 && ulp_len && ulp[0])
		conn_pin(c, REASON_ULP);
}
