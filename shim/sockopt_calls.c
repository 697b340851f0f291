/* SPDX-License-Identifier: MIT */
/*
 * Socket options on a connection. The kernel's socket has them all; what the rings must obey is copied, and what a ring cannot
 * carry brings the connection back to TCP, or is refused with the error of a kernel that was built without it where that cannot be at once.
 */
#include <errno.h>
#include <netinet/tcp.h>

#include "shim/calls_common.h"
#include "shim/conn_iov.h"
#include "shim/control.h"
#include "shim/fd_conn.h"
#include "shim/sockopt.h"

static void copy_option(struct conn *c, int fd, int level, int name, const void *value, socklen_t len)
{
	if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT && len >= sizeof(int))
		store_relaxed(&c->user_timeout_ns, *(const unsigned int *)value * INT64_C(1000000));
	if (level == IPPROTO_TCP && name == TCP_INQ && len >= sizeof(int))
		store_relaxed(&c->tells_inq, *(const int *)value != 0);
	if (level != SOL_SOCKET)
		return;
	if ((name == SO_RCVTIMEO || name == SO_SNDTIMEO) && len >= sizeof(struct timeval))
		store_relaxed(name == SO_RCVTIMEO ? &c->rcv_timeout_ns : &c->snd_timeout_ns, sockopt_timeout_ns(value));
	if (name == SO_ZEROCOPY && len >= sizeof(int))
		store_relaxed(&c->zero_copies, *(const int *)value != 0);
	if (CONTROL_STAMPS(name) && len >= sizeof(int))
		store_relaxed(&c->stamps, *(const int *)value ? (uint8_t)name : 0);
	if (name == SO_RCVLOWAT && len >= sizeof(int))
		conn_set_lowat(c, fd, *(const int *)value > 0 ? *(const int *)value : 1);
}

EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct conn *c = conn_of(fd);
	const struct sockopt_unfit *bad;
	int r;

	if (likely(!c)) {
		r = real_setsockopt(fd, level, name, value, len);
		if (unlikely(r == 0 && level == IPPROTO_TCP) && fdtab_tcp(fd))
			sockopt_set_early(level, name);
		return r;
	}
	bad = user_range_bad(value, len) ? NULL : sockopt_find_unfit(level, name);
	if (bad && sockopt_switches_on(bad, value, len) && !fd_come_back(fd, bad->why) && bad->refused)
		return (int)as_errno(-bad->refused);
	r = real_setsockopt(fd, level, name, value, len);
	if (r == 0)
		copy_option(c, fd, level, name, value, len);
	return r;
}

EXPORT int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	struct conn *c = conn_of(fd);
	int err;

	if (likely(!c))
		return real_getsockopt(fd, level, name, value, len);
	if (level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE && !fd_come_back(fd, REASON_ZEROCOPY))
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
		conn_error_taken(c);
	return err;
}

EXPORT int sockatmark(int fd)
{
	struct conn *c = conn_of(fd);

	if (c) {
		(void)fd_pin(fd, REASON_OOB);
		/* Bytes that lie in front of those that the kernel would speak of. */
		if (conn_is_linked(c) && conn_hold(c, fd)) {
			bool before;

			conn_frames_try(c, fd);
			before = conn_rx_avail(c) != 0;
			conn_drop(c);
			if (before)
				return 0;
		}
	}
	return real_sockatmark(fd);
}
