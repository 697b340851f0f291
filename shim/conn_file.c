/* SPDX-License-Identifier: MIT */
/*
 * sendfile and splice where the kernel cannot move the bytes itself because the lane is on a ring, or may go there: through a
 * buffer on the stack, small because the program's threads may have small ones.
 *
 * A file is read at a position and the position moves by what was sent. A pipe cannot be read back, so it is read straight
 * into the room that there is. Bytes for a pipe are peeked at and consumed when the pipe has them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_probe.h"
#include "shim/conn_end.h"
#include "shim/fdtab.h"
#include "shim/plain.h"
#include "shim/ready.h"
#include "shim/switch.h"
#include "shim/wait.h"

#define BOUNCE_BYTES 16384
#define RING_STEP 65536	/* of a file at a time, so that the receiver works on the first part meanwhile */

/*
 * Straight into the ring, if the lane is there and has room: from a file at `pos`, or from a pipe, where `pos` is -1. The read is told not
 * to sleep, because the lane is locked meanwhile. Bytes, 0 at the source's end, -EAGAIN for no room or nothing to be read at
 * once, -EOPNOTSUPP: not this way.
 */
static ssize_t into_ring(struct conn *c, int fd, int in_fd, off_t pos, size_t len)
{
	struct ring_tx *tx = &c->link.tx;
	struct iovec piece;
	ssize_t n = -EOPNOTSUPP;
	int r;

	if (load_relaxed(&c->tx.mode) != MODE_RING || load_relaxed(&c->tx.alert))
		return n;
	r = lane_lock(&c->tx.lock, load_relaxed(&c->shared));
	if (r < 0)
		return -EAGAIN;
	if (r > 0)
		conn_tx_recover(c);
	if (fdtab_get(fd) == c && load_relaxed(&c->tx.state) == TX_RING && !conn_tx_attention(c)) {
		size_t straight = ring_tx_bytes(tx) - (tx->tail_pos & tx->mask);
		ssize_t room = ring_tx_room(tx, len);

		n = -EAGAIN;
		if (room > 0) {
			piece.iov_len = len < (size_t)room ? len : (size_t)room;
			piece.iov_len = piece.iov_len < straight ? piece.iov_len : straight;
			piece.iov_base = tx->data + (tx->tail_pos & tx->mask);
			n = sys_call6(SYS_preadv2, in_fd, (long)&piece, 1, pos, pos < 0 ? -1 : 0, RWF_NOWAIT);
		} else {
			fetch_add(&c->tx.full_seq, 1);
			ready_changed(c);
		}
		if (n > 0) {
			ring_publish(tx, tx->tail_pos + (uint64_t)n);
			if (unlikely(ring_tx_notify(tx) & RING_UNHEARD))
				conn_write_probe(c, fd);
		}
	}
	lane_unlock(&c->tx.lock);
	return n;
}

ssize_t conn_sendfile(struct conn *c, int fd, int in_fd, off_t *off, size_t count)
{
	uint8_t buf[BOUNCE_BYTES];
	size_t done = 0;
	ssize_t n = 0;
	off_t pos = off ? *off : (off_t)sys_call3(SYS_lseek, in_fd, 0, SEEK_CUR);

	if (pos < 0)
		return pos == -EBADF ? -EBADF : -EINVAL;
	while (done < count) {
		size_t left = count - done, want = left < sizeof(buf) ? left : sizeof(buf);
		ssize_t got = into_ring(c, fd, in_fd, pos + (off_t)done, left < RING_STEP ? left : RING_STEP);

		if (got > 0) {
			done += (size_t)got;
			continue;
		}
		got = sys_call4(SYS_pread64, in_fd, buf, want, pos + (off_t)done);
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

/* On TCP, but not plainly: one atomic step of the kernel's, under the lock that keeps S still. 1: the lane is on the ring now. */
static ssize_t splice_tcp(int pipe_fd, struct conn *c, int fd, size_t len, unsigned flags, bool *on_ring)
{
	ssize_t n = 0;
	int r = lane_lock(&c->tx.lock, load_relaxed(&c->shared));

	if (r < 0)
		return -EAGAIN;
	if (r > 0)
		conn_tx_recover(c);
	r = load_relaxed(&c->linked) ? switch_before_send(c, fd) : 0;
	*on_ring = r == 1;
	if (r == 0)
		n = sys_call6(SYS_splice, pipe_fd, 0, fd, 0, (long)len, flags | SPLICE_F_NONBLOCK);
	else if (r < 0)
		n = r;
	if (n > 0)
		plain_add(&c->tx.tcp_bytes, (uint64_t)n, lane_is_alone(load_relaxed(&c->shared)));
	lane_unlock(&c->tx.lock);
	return n;
}

/* What into_ring() cannot do: no more is taken out of the pipe than there seems to be room for, and what was taken must go. */
static ssize_t splice_bounced(int pipe_fd, struct conn *c, int fd, size_t len)
{
	uint8_t buf[PIPE_BUF];
	ssize_t n, sent;

	n = sys_read(pipe_fd, buf, len < sizeof(buf) ? len : sizeof(buf));
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

/*
 * On TCP, a socket that may block: the kernel's splice would sleep for room with the lane locked. Nothing is taken out of the pipe
 * before there is room and a send would not fail.
 */
static ssize_t splice_tcp_blocking(int pipe_fd, struct conn *c, int fd, size_t len)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	struct timespec now = { 0 };
	ssize_t n;

	if (sys_call5(SYS_ppoll, &p, 1, &now, NULL, 8) <= 0)
		return -EAGAIN;
	n = conn_send(c, fd, "", 0, 0);
	return n < 0 ? n : splice_bounced(pipe_fd, c, fd, len);
}

ssize_t conn_splice_out(int pipe_fd, struct conn *c, int fd, size_t len, unsigned flags)
{
	bool block;
	int64_t deadline;
	int r = check_pipe(pipe_fd);

	if (unlikely(!load_relaxed(&c->have_options)))
		conn_read_options(c, fd);
	block = !(flags & SPLICE_F_NONBLOCK) && !load_relaxed(&c->nonblock);
	deadline = wait_deadline(load_relaxed(&c->snd_timeout_ns));
	while (r >= 0) {
		bool on_ring = true;
		ssize_t n = 0;

		r = await_pipe(pipe_fd, POLLIN, !never_blocks(pipe_fd, flags));
		if (r < 0)
			break;
		if (!conn_tx_on_ring(c) && !load_relaxed(&c->nonblock)) {
			on_ring = false;
			n = splice_tcp_blocking(pipe_fd, c, fd, len);
		} else if (!conn_tx_on_ring(c)) {
			n = splice_tcp(pipe_fd, c, fd, len, flags, &on_ring);
		}
		if (on_ring) {
			n = into_ring(c, fd, pipe_fd, -1, len < RING_STEP ? len : RING_STEP);
			if (n == -EOPNOTSUPP)
				n = splice_bounced(pipe_fd, c, fd, len);
		}
		if (n != -EAGAIN || !block)
			return n;
		if (!conn_hold(c, fd))
			return -EBADF;
		r = wait_lane(c, fd, WAIT_TX, deadline);
		conn_drop(c);
	}
	return r;
}
