/* SPDX-License-Identifier: MIT */
/* Sockets come into being: a TCP connection gets its record where the program connects or accepts. */
#include "shim/real.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_iov.h"
#include "shim/fd_conn.h"
#include "shim/fdtab.h"
#include "shim/guard.h"
#include "shim/stats_slots.h"

int __connect(int fd, const struct sockaddr *addr, socklen_t len); /* in no header */

/* Known from socket(), or, for one that was inherited, asked once and kept. */
static bool is_tcp(int fd)
{
	int protocol = 0, kept_errno = errno;
	unsigned int len = sizeof(protocol);

	if (fdtab_tcp(fd))
		return true;
	if (fdtab_other(fd) != FD_MARK_NONE || sys_getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) < 0 ||
	    protocol != IPPROTO_TCP)
		return false;
	fdtab_mark(fd, FD_MARK_TCP);
	errno = kept_errno;
	return true;
}

EXPORT int socket(int domain, int type, int protocol)
{
	int fd = real_socket(domain, type, protocol);
	bool tcp;

	if (!guard_ready() || fd < 0)
		return fd;
	tcp = (domain == AF_INET || domain == AF_INET6) && (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM &&
	      (protocol == 0 || protocol == IPPROTO_TCP);
	fd_fresh(fd, tcp ? FD_MARK_TCP : FD_MARK_NONE);
	return fd;
}

EXPORT int socketpair(int domain, int type, int protocol, int fds[2])
{
	int result = real_socketpair(domain, type, protocol, fds);

	if (guard_ready() && result == 0) {
		fd_fresh(fds[0], FD_MARK_NONE);
		fd_fresh(fds[1], FD_MARK_NONE);
	}
	return result;
}

/* A server may be told to stay on TCP before anybody comes, and the child of one before its first connection is busy. */
static void serves(void)
{
	int kept_errno = errno;

	stats_slots_make();
	errno = kept_errno;
}

EXPORT int listen(int fd, int backlog)
{
	int result = real_listen(fd, backlog);

	if (guard_ready() && result == 0 && is_tcp(fd))
		serves();
	return result;
}

static int accepted(int listener, int fd, bool nonblock)
{
	if (fd < 0)
		return fd;
	if (is_tcp(listener)) {
		fd_opened(fd, CONN_ACCEPTED, nonblock);
		serves();
	} else {
		fd_fresh(fd, FD_MARK_NONE);
	}
	return fd;
}

EXPORT int accept(int fd, struct sockaddr *addr, socklen_t *len)
{
	if (!guard_ready())
		return real_accept(fd, addr, len);
	return accepted(fd, real_accept(fd, addr, len), false);
}

EXPORT int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	if (!guard_ready())
		return real_accept4(fd, addr, len, flags);
	return accepted(fd, real_accept4(fd, addr, len, flags), flags & SOCK_NONBLOCK);
}

/* A connection, or one on its way: a blocking connect() that a signal interrupts goes on without the program. */
static bool begun(int result)
{
	return result == 0 || errno == EINPROGRESS || errno == EINTR;
}

EXPORT int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	bool dissolves, ours, copied;
	int result, kept_errno;

	if (!guard_ready())
		return real_connect(fd, addr, len);
	dissolves = len >= sizeof(addr->sa_family) && !user_range_bad(addr, len) && addr->sa_family == AF_UNSPEC;
	ours = fdtab_get(fd) || is_tcp(fd);
	result = real_connect(fd, addr, len);
	if (!ours)
		return result;
	kept_errno = errno;
	if (dissolves) {
		if (result == 0)
			fd_dissolved(fd);
	} else if (!fdtab_get(fd) && begun(result)) {
		copied = fdtab_copied(fd);
		/* Whether it blocks is asked for by conn_read_options(), once the connection has proved busy. */
		fd_opened(fd, CONN_CONNECTED, false);
		/* The other numbers have no record. */
		if (copied)
			(void)fd_pin(fd, REASON_COPIED);
	}
	errno = kept_errno;
	return result;
}

EXPORT int __connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	return connect(fd, addr, len);
}

EXPORT int shutdown(int fd, int how)
{
	struct conn *c;
	int result;

	if (!guard_ready())
		return real_shutdown(fd, how);
	c = fdtab_get(fd);
	/* Another thread may be closing it. */
	if (!c || !conn_hold(c, fd))
		return real_shutdown(fd, how);
	result = conn_shutdown(c, fd, how);
	conn_drop(c);
	return (int)as_errno(result);
}
