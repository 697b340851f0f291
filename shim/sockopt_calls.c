/* SPDX-License-Identifier: MIT */
/*
 * Socket options on a connection. The kernel's socket has them all; what the rings must obey is copied, and what a ring cannot
 * carry keeps the connection on TCP, or is refused with the error of a kernel that was built without it if it is too late.
 */
#include <errno.h>
#include <netinet/tcp.h>

#include "shim/calls_common.h"
#include "shim/conn_iov.h"
#include "shim/fd_conn.h"
#include "shim/sockopt.h"

#ifndef TCP_INQ
#define TCP_INQ 36
#endif
#ifndef TCP_AO_ADD_KEY
#define TCP_AO_ADD_KEY 38
#endif

/* Options that a ring cannot carry. */
static const struct unfit {
	int level, name;
	enum reason why;
	int refused;	/* errno where the connection is on a ring already */
} unfit[] = {
	{ IPPROTO_TCP, TCP_ULP, REASON_ULP, ENOENT },
	{ IPPROTO_TCP, TCP_MD5SIG, REASON_MD5, ENOPROTOOPT },
	{ IPPROTO_TCP, TCP_MD5SIG_EXT, REASON_MD5, ENOPROTOOPT },
	{ IPPROTO_TCP, TCP_AO_ADD_KEY, REASON_MD5, ENOPROTOOPT },
	{ IPPROTO_TCP, TCP_REPAIR, REASON_REPAIR, EPERM },
	{ IPPROTO_TCP, TCP_INQ, REASON_TIMESTAMPS, ENOPROTOOPT },
	{ SOL_SOCKET, SO_ZEROCOPY, REASON_ZEROCOPY, EOPNOTSUPP },
	{ SOL_SOCKET, SO_OOBINLINE, REASON_OOB, 0 },
	{ SOL_SOCKET, SO_PEEK_OFF, REASON_PEEK_OFFSET, EOPNOTSUPP },
	{ SOL_SOCKET, SO_TIMESTAMP, REASON_TIMESTAMPS, 0 },
	{ SOL_SOCKET, SO_TIMESTAMPNS, REASON_TIMESTAMPS, 0 },
	{ SOL_SOCKET, SO_TIMESTAMPING, REASON_TIMESTAMPS, 0 },
	{ SOL_SOCKET, SO_ATTACH_FILTER, REASON_BPF, 0 },
	{ SOL_SOCKET, SO_ATTACH_BPF, REASON_BPF, 0 },
};

static const struct unfit *find_unfit(int level, int name)
{
	for (size_t i = 0; i < sizeof(unfit) / sizeof(unfit[0]); i++)
		if (unfit[i].level == level && unfit[i].name == name)
			return &unfit[i];
	return NULL;
}

/* Does the value switch something on? Options that are no number always do. */
static bool switches_on(const struct unfit *option, const void *value, socklen_t len)
{
	if (option->why == REASON_PEEK_OFFSET && len >= sizeof(int))
		return *(const int *)value >= 0;
	return len != sizeof(int) || *(const int *)value != 0;
}

static void copy_option(struct conn *c, int level, int name, const void *value, socklen_t len)
{
	if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT && len >= sizeof(int))
		store_relaxed(&c->user_timeout_ns, *(const unsigned int *)value * INT64_C(1000000));
	if (level != SOL_SOCKET)
		return;
	if ((name == SO_RCVTIMEO || name == SO_SNDTIMEO) && len >= sizeof(struct timeval))
		store_relaxed(name == SO_RCVTIMEO ? &c->rcv_timeout_ns : &c->snd_timeout_ns, sockopt_timeout_ns(value));
	if (name == SO_RCVLOWAT && len >= sizeof(int))
		store_relaxed(&c->rcv_lowat, *(const int *)value > 0 ? *(const int *)value : 1);
}

EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct conn *c = conn_of(fd);
	const struct unfit *bad;
	int r;

	if (likely(!c))
		return real_setsockopt(fd, level, name, value, len);
	bad = user_range_bad(value, len) ? NULL : find_unfit(level, name);
	if (bad && switches_on(bad, value, len) && !fd_pin(fd, bad->why) && bad->refused)
		return (int)as_errno(-bad->refused);
	r = real_setsockopt(fd, level, name, value, len);
	if (r == 0)
		copy_option(c, level, name, value, len);
	return r;
}

EXPORT int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	struct conn *c = conn_of(fd);
	int err;

	if (likely(!c))
		return real_getsockopt(fd, level, name, value, len);
	if (level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE && !fd_pin(fd, REASON_ZEROCOPY))
		return (int)as_errno(-EINVAL);
	if (level == SOL_SOCKET && name == SO_ERROR && load_relaxed(&c->rx.pending_errno)) {
		/* Ours was the kernel's once: told once, as it would have been. */
		int r = real_getsockopt(fd, level, name, value, len);

		err = exchange(&c->rx.pending_errno, 0);
		if (r == 0 && err && *len >= sizeof(int))
			*(int *)value = err;
		return r;
	}
	err = real_getsockopt(fd, level, name, value, len);
	if (level == SOL_SOCKET && name == SO_ERROR && err == 0 && *len >= sizeof(int) && *(int *)value)
		store_relaxed(&c->rx.error_told, 1);
	return err;
}

EXPORT int sockatmark(int fd)
{
	if (conn_of(fd))
		(void)fd_pin(fd, REASON_OOB);
	return real_sockatmark(fd);
}
