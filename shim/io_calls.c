/* SPDX-License-Identifier: MIT */
/* read, write and their kin on a connection. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "shim/calls_common.h"
#include "shim/conn_iov.h"

ssize_t __read_chk(int fd, void *buf, size_t len, size_t size);

static NOINLINE ssize_t read_pinned(int fd, void *buf, size_t len)
{
	return pinned_received(fd, real_read(fd, buf, len));
}

static NOINLINE ssize_t read_slow(int fd, void *buf, size_t len)
{
	struct conn *c = conn_of(fd);

	if (unlikely(!c))
		return real_read(fd, buf, len);
	RETURN_IF_PLAIN_RX(c, fd, 0, real_read(fd, buf, len));
	/* Looked at before it is cut to what a call can move; with recv() it is the other way round. */
	if (user_range_beyond(buf, len))
		return as_errno(-EFAULT);
	return len ? as_errno(conn_recv(c, fd, buf, len, 0)) : 0;
}

EXPORT ssize_t read(int fd, void *buf, size_t len)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, real_read(fd, buf, len), read_pinned(fd, buf, len), read_slow(fd, buf, len));
	return read_slow(fd, buf, len);
}

static NOINLINE ssize_t write_pinned(int fd, const void *buf, size_t len)
{
	return pinned_sent(fd, real_write(fd, buf, len));
}

static NOINLINE ssize_t write_slow(int fd, const void *buf, size_t len)
{
	struct conn *c = conn_of(fd);

	if (unlikely(!c))
		return real_write(fd, buf, len);
	RETURN_IF_PLAIN_TX(c, fd, real_write(fd, buf, len));
	return as_errno(conn_send(c, fd, buf, len, 0));
}

EXPORT ssize_t write(int fd, const void *buf, size_t len)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, real_write(fd, buf, len), write_pinned(fd, buf, len), write_slow(fd, buf, len));
	return write_slow(fd, buf, len);
}

EXPORT ssize_t __read_chk(int fd, void *buf, size_t len, size_t size)
{
	/* The next object's check ends the process, as it should. */
	return len > size ? real___read_chk(fd, buf, len, size) : read(fd, buf, len);
}

/* 0, or what the kernel says of a vector before it looks into it. */
static int vector_fault(const struct iovec *iov, int nr)
{
	if (nr < 0 || nr > IOV_MAX)
		return -EINVAL;
	return user_range_bad(iov, (size_t)nr * sizeof(*iov)) ? -EFAULT : 0;
}

static bool iov_is_empty(const struct iovec *iov, int nr)
{
	for (int i = 0; i < nr; i++)
		if (iov[i].iov_len)
			return false;
	return true;
}

static ssize_t recv_vector(struct conn *c, int fd, const struct iovec *iov, int nr, int flags)
{
	int fault = vector_fault(iov, nr);

	if (fault)
		return as_errno(fault);
	return iov_is_empty(iov, nr) ? 0 : as_errno(conn_recv_iov(c, fd, iov, (size_t)nr, flags, NULL));
}

static ssize_t send_vector(struct conn *c, int fd, const struct iovec *iov, int nr, int flags)
{
	int fault = vector_fault(iov, nr);

	if (fault)
		return as_errno(fault);
	return iov_is_empty(iov, nr) ? 0 : as_errno(conn_send_iov(c, fd, iov, (size_t)nr, flags, NULL));
}

static NOINLINE ssize_t readv_pinned(int fd, const struct iovec *iov, int nr_iov)
{
	return pinned_received(fd, real_readv(fd, iov, nr_iov));
}

static NOINLINE ssize_t readv_slow(int fd, const struct iovec *iov, int nr_iov)
{
	struct conn *c = conn_of(fd);

	if (unlikely(!c))
		return real_readv(fd, iov, nr_iov);
	RETURN_IF_PLAIN_RX(c, fd, 0, real_readv(fd, iov, nr_iov));
	return recv_vector(c, fd, iov, nr_iov, 0);
}

EXPORT ssize_t readv(int fd, const struct iovec *iov, int nr_iov)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, real_readv(fd, iov, nr_iov), readv_pinned(fd, iov, nr_iov), readv_slow(fd, iov, nr_iov));
	return readv_slow(fd, iov, nr_iov);
}

static NOINLINE ssize_t writev_pinned(int fd, const struct iovec *iov, int nr_iov)
{
	return pinned_sent(fd, real_writev(fd, iov, nr_iov));
}

static NOINLINE ssize_t writev_slow(int fd, const struct iovec *iov, int nr_iov)
{
	struct conn *c = conn_of(fd);

	if (unlikely(!c))
		return real_writev(fd, iov, nr_iov);
	RETURN_IF_PLAIN_TX(c, fd, real_writev(fd, iov, nr_iov));
	return send_vector(c, fd, iov, nr_iov, 0);
}

EXPORT ssize_t writev(int fd, const struct iovec *iov, int nr_iov)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, real_writev(fd, iov, nr_iov), writev_pinned(fd, iov, nr_iov), writev_slow(fd, iov, nr_iov));
	return writev_slow(fd, iov, nr_iov);
}

/* Of kernels behind libc's headers. */
#define RWF_BEYOND_NOAPPEND 0x20
#define RWF_BEYOND_NOSIGNAL 0x100

/* Flags that a socket understands or may ignore; the kernel refuses others, and offsets, without moving a byte. */
#define RWF_OF_SOCKETS \
	(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND | RWF_BEYOND_NOAPPEND | RWF_BEYOND_NOSIGNAL)

static int message_flags(int rwf)
{
	return (rwf & RWF_NOWAIT ? MSG_DONTWAIT : 0) | (rwf & RWF_BEYOND_NOSIGNAL ? MSG_NOSIGNAL : 0);
}

EXPORT ssize_t preadv64v2(int fd, const struct iovec *iov, int nr_iov, off64_t off, int flags)
{
	struct conn *c = off == -1 && !(flags & ~RWF_OF_SOCKETS) ? conn_of(fd) : NULL;

	if (likely(!c))
		return real_preadv64v2(fd, iov, nr_iov, off, flags);
	RETURN_IF_PLAIN_RX(c, fd, 0, real_preadv64v2(fd, iov, nr_iov, off, flags));
	return recv_vector(c, fd, iov, nr_iov, message_flags(flags));
}

EXPORT ssize_t pwritev64v2(int fd, const struct iovec *iov, int nr_iov, off64_t off, int flags)
{
	struct conn *c = off == -1 && !(flags & ~RWF_OF_SOCKETS) ? conn_of(fd) : NULL;

	if (likely(!c))
		return real_pwritev64v2(fd, iov, nr_iov, off, flags);
	RETURN_IF_PLAIN_TX(c, fd, real_pwritev64v2(fd, iov, nr_iov, off, flags));
	return send_vector(c, fd, iov, nr_iov, message_flags(flags));
}

EXPORT ssize_t preadv2(int fd, const struct iovec *iov, int nr_iov, off_t off, int flags)
{
	return preadv64v2(fd, iov, nr_iov, off, flags);
}

EXPORT ssize_t pwritev2(int fd, const struct iovec *iov, int nr_iov, off_t off, int flags)
{
	return pwritev64v2(fd, iov, nr_iov, off, flags);
}

EXPORT ssize_t sendfile64(int out, int in, off64_t *off, size_t len)
{
	struct conn *c = conn_of(out);
	int cancel;
	ssize_t n;

	/* Into a pipe it is a splice. */
	if (unlikely(!c && !off && conn_of(in)))
		return splice(in, NULL, out, NULL, len, 0);
	if (likely(!c) || (off && user_range_bad(off, sizeof(*off))))
		return real_sendfile64(out, in, off, len);
	RETURN_IF_PLAIN_TX(c, out, real_sendfile64(out, in, off, len));
	/* No thread is cancelled in libc's. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	n = conn_sendfile(c, out, in, off, len);
	pthread_setcancelstate(cancel, NULL);
	return as_errno(n);
}

EXPORT ssize_t sendfile(int out, int in, off_t *off, size_t len)
{
	_Static_assert(sizeof(off_t) == sizeof(off64_t), "one implementation serves both");
	return sendfile64(out, in, off, len);
}

/* A pipe is one end of every splice; the kernel says what it thinks of offsets on sockets. */
EXPORT ssize_t splice(int in, off64_t *in_off, int out, off64_t *out_off, size_t len, unsigned int flags)
{
	struct conn *from = conn_of(in), *to = conn_of(out);

	if (likely(!from && !to) || in_off || out_off || (from && to))
		return real_splice(in, in_off, out, out_off, len, flags);
	if (from) {
		RETURN_IF_PLAIN_RX(from, in, 0, real_splice(in, NULL, out, NULL, len, flags));
		return as_errno(conn_splice_in(from, in, out, len, flags));
	}
	RETURN_IF_PLAIN_TX(to, out, real_splice(in, NULL, out, NULL, len, flags));
	return as_errno(conn_splice_out(in, to, out, len, flags));
}
