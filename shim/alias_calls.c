/* SPDX-License-Identifier: MIT */
/* Second names under which libc exports the same functions; older binaries and other libraries use them. */
#include "shim/real.h"

#include <unistd.h>

ssize_t __read(int fd, void *buf, size_t len);
ssize_t __write(int fd, const void *buf, size_t len);
ssize_t __send(int fd, const void *buf, size_t len, int flags);
int __poll(struct pollfd *fds, nfds_t nr_fds, int timeout);
int __select(int nr_fds, fd_set *rd, fd_set *wr, fd_set *ex, struct timeval *timeout);

EXPORT ssize_t __read(int fd, void *buf, size_t len)
{
	return read(fd, buf, len);
}

EXPORT ssize_t __write(int fd, const void *buf, size_t len)
{
	return write(fd, buf, len);
}

EXPORT ssize_t __send(int fd, const void *buf, size_t len, int flags)
{
	return send(fd, buf, len, flags);
}

EXPORT int __poll(struct pollfd *fds, nfds_t nr_fds, int timeout)
{
	return poll(fds, nr_fds, timeout);
}

EXPORT int __select(int nr_fds, fd_set *rd, fd_set *wr, fd_set *ex, struct timeval *timeout)
{
	return select(nr_fds, rd, wr, ex, timeout);
}
