/* SPDX-License-Identifier: MIT */
/*
 * sendfile and splice where the kernel cannot move the bytes itself because the lane is on a ring, or may go there: through a
 * buffer on the stack, small because the program's threads may have small ones.
 *
 * A file is read at a position and the position moves by what was sent. A pipe cannot be read back, so no more is taken out
 * of one than there is room for. Bytes for a pipe are peeked at and consumed when the pipe has them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/plain.h"
#include "shim/wait.h"

#define BOUNCE_BYTES 16384

ssize_t conn_sendfile(struct conn *c, int fd, int in_fd, off_t *off, size_t count)
{
	uint8_t buf[BOUNCE_BYTES];
	size_t done = 0;
	ssize_t n = 0;
	off_t pos = off ? *off : (off_t)sys_call3(SYS_lseek, in_fd, 0, SEEK_CUR);

	if (pos < 0)
		return pos == -EBADF ? -EBADF : -EINVAL;
	while (done < count) {
		size_t want = count - done < sizeof(buf) ? count - done : sizeof(buf);
		ssize_t got = sys_call4(SYS_pread64, in_fd, buf, want, pos + (off_t)done);

		if (got <= 0) {
			n = got;
			break;
		}
		n = conn_send(c, fd, buf, (size_t)got, done ? MSG_NOSIGNAL : 0);
		if (n < 0)
			break;
		done += (size_t)n;
		if (n < got)
			break;
	}
	if (off)
		*off = pos + (off_t)done;
	else if (done)
		sys_call3(SYS_lseek, in_fd, pos + (off_t)done, SEEK_SET);
	return done ? (ssize_t)done : n;
}

/* What splice() says of something that is no pipe. */
static int check_pipe(int pipe_fd)
{
	long r = sys_fcntl(pipe_fd, F_GETPIPE_SZ, 0);

	return r == -EBADF ? -EBADF : r < 0 ? -EINVAL : 0;
}

static bool never_blocks(int pipe_fd, unsigned flags)
{
	return flags & SPLICE_F_NONBLOCK || sys_fcntl(pipe_fd, F_GETFL, 0) & O_NONBLOCK;
}

/* 0 when the pipe is ready, -EAGAIN where it is not and must not be waited for, -EINTR. */
static int await_pipe(int pipe_fd, short event, bool block)
{
	struct pollfd p = { .fd = pipe_fd, .events = event };
	struct timespec now = { 0 };
	long r = sys_call5(SYS_ppoll, &p, 1, block ? NULL : &now, NULL, 8);

	return r > 0 ? 0 : r == 0 ? -EAGAIN : (int)r;
}

ssize_t conn_splice_in(struct conn *c, int fd, int pipe_fd, size_t len, unsigned flags)
{
	uint8_t buf[PIPE_BUF];
	ssize_t n, put;
	int r = check_pipe(pipe_fd);

	if (r == 0)
		r = await_pipe(pipe_fd, POLLOUT, !never_blocks(pipe_fd, flags));
	if (r < 0)
		return r;
	if (len > sizeof(buf))
		len = sizeof(buf);
	n = conn_recv(c, fd, buf, len, MSG_PEEK | (flags & SPLICE_F_NONBLOCK ? MSG_DONTWAIT : 0));
	if (n <= 0)
		return n;
	put = sys_call3(SYS_write, pipe_fd, buf, n);
	if (put > 0)
		conn_recv(c, fd, buf, (size_t)put, MSG_DONTWAIT);
	return put;
}

ssize_t conn_splice_out(int pipe_fd, struct conn *c, int fd, size_t len, unsigned flags)
{
	uint8_t buf[BOUNCE_BYTES];
	size_t room = sizeof(buf);
	bool block = !(flags & SPLICE_F_NONBLOCK) && !load_relaxed(&c->nonblock);
	int64_t deadline = wait_deadline(load_relaxed(&c->snd_timeout_ns));
	ssize_t n, sent;
	int r = check_pipe(pipe_fd);

	if (r < 0)
		return r;
	while (conn_tx_on_ring(c) && conn_hold(c, fd)) {
		room = conn_tx_room(c);
		r = room || !block ? 0 : wait_lane(c, fd, WAIT_TX, deadline);
		conn_drop(c);
		if (room)
			break;
		if (!block)
			return -EAGAIN;
		if (r < 0)
			return r;
	}
	r = await_pipe(pipe_fd, POLLIN, !never_blocks(pipe_fd, flags));
	if (r < 0)
		return r;
	if (!conn_tx_on_ring(c)) {
		/* On TCP, but not plainly: one atomic step of the kernel's, under the lock that keeps S still. */
		if (lane_lock(&c->tx.lock, load_relaxed(&c->shared)) < 0)
			return -EAGAIN;
		n = conn_tx_on_ring(c) ? -EAGAIN
				       : sys_call6(SYS_splice, pipe_fd, 0, fd, 0, (long)len, flags | SPLICE_F_NONBLOCK);
		if (n > 0)
			plain_add(&c->tx.tcp_bytes, (uint64_t)n, lane_is_alone(load_relaxed(&c->shared)));
		lane_unlock(&c->tx.lock);
		return n;
	}
	room = room < sizeof(buf) ? room : sizeof(buf);
	n = sys_read(pipe_fd, buf, len < room ? len : room);
	if (n <= 0)
		return n;
	/* Another thread may have taken the room meanwhile; what has left the pipe must go. */
	for (ssize_t done = 0; done < n; done += sent) {
		sent = conn_send(c, fd, buf + done, (size_t)(n - done), done ? MSG_NOSIGNAL : 0);
		if (sent == -EAGAIN && conn_hold(c, fd)) {
			wait_lane(c, fd, WAIT_TX, WAIT_FOREVER);
			conn_drop(c);
			sent = 0;
		}
		if (sent < 0)
			return done ? done : sent;
	}
	return n;
}
