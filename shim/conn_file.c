/* SPDX-License-Identifier: MIT */
/*
 * sendfile and splice where the kernel cannot move the bytes itself because the lane is on a ring, or may go there.
 *
 * Nothing is ever taken from a source and then lost: a file is read at a position, which moves by what was sent, also where
 * a handler jumps out of the call; a pipe is read straight into room that there is, under the lane's lock; what goes into a pipe leaves the
 * ring when the pipe has it. The road not taken, a buffer between the two, has to put bytes back when the second half fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_probe.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_iov.h"
#include "shim/conn_lock.h"
#include "shim/fdtab.h"
#include "shim/pipe_io.h"
#include "shim/plain.h"
#include "shim/ready.h"
#include "shim/retreat.h"
#include "shim/retreat_far.h"
#include "shim/signals.h"
#include "shim/switch.h"
#include "shim/unwound.h"
#include "shim/wait.h"

#define BOUNCE_BYTES 4096	/* on the stack: the program's threads may have the smallest */
#define RING_STEP 65536	/* at a time, so that the receiver works on the first part meanwhile */

/*
 * ---- Into the ring ----
 */

/* The lane is on a ring, its lock held. `patient`: as with a send, a full ring is worth a moment's wait before the overflow ring is taken to. */
static ssize_t into_ring_locked(struct conn *c, int fd, int in_fd, off_t pos, size_t len, bool patient)
{
	struct ring_tx *tx = &c->link.tx;
	uint8_t nowhere[BOUNCE_BYTES];
	uint32_t said = 0;
	size_t straight;
	ssize_t room, n;

	if (load_relaxed(&c->tx.alert) || conn_is_stalled(c) || load_relaxed(&c->tx.state) != TX_RING || conn_tx_attention(c)) {
		int r = conn_ring_check(c, fd);

		if (r == RING_ORPHAN)
			return pipe_or_file_read(in_fd, pos, nowhere, len < sizeof(nowhere) ? len : sizeof(nowhere));
		if (r < 0)
			return r;
		if (load_relaxed(&c->tx.state) != TX_RING)
			return -EOPNOTSUPP;
	}
	room = ring_tx_room(tx, len);
	if (room == 0 && patient && ring_tx_spare(tx))
		return -EAGAIN;
	if (room == 0 && unlikely(!conn_may_overflow(c)))
		return -EOPNOTSUPP;
	if (room == 0 && ring_tx_overflow(tx))
		room = ring_tx_room(tx, len);
	/* A lie: a send finds out and says so. */
	if (room < 0)
		return -EOPNOTSUPP;
	if (room == 0) {
		conn_note_full(c);
		conn_note_stall(c);
		conn_ask_far(c);
		return -EAGAIN;
	}
	len = len < (size_t)room ? len : (size_t)room;
	straight = ring_tx_bytes(tx) - (tx->tail_pos & tx->mask);
	n = pipe_or_file_read(in_fd, pos, tx->data + (tx->tail_pos & tx->mask), len < straight ? len : straight);
	if (n > 0) {
		ring_publish(tx, tx->tail_pos + (uint64_t)n);
		said = ring_tx_notify(tx);
	}
	if (unlikely(n < (ssize_t)len))
		ring_tx_unclaim(tx);
	if (unlikely(said))
		conn_ring_said(c, fd, said);
	return n;
}

/*
 * Straight into the ring, if the lane is there: bytes, 0 at the source's end, -EAGAIN for no room or nothing to be read at once,
 * -EOPNOTSUPP: not this way; other errors are the connection's.
 */
static ssize_t into_ring(struct conn *c, int fd, int in_fd, off_t pos, size_t len, bool patient)
{
	struct signals_held held = { .held = false };
	ssize_t n = -EOPNOTSUPP;

	if (!conn_tx_on_ring(c))
		return n;
	/* From a pipe to a ring, or back, no handler comes between the taking and the giving: it might jump away. */
	if (pos < 0)
		signals_hold_these(&held, signals_all());
	if (conn_lock_tx(c) < 0) {
		n = -EAGAIN;
	} else {
		if (fdtab_get(fd) == c && conn_tx_on_ring(c))
			n = into_ring_locked(c, fd, in_fd, pos, len < RING_STEP ? len : RING_STEP, patient);
		lane_unlock(&c->tx.lock);
	}
	signals_release(&held);
	return n;
}

static void drop(void *c)
{
	conn_drop(c);
}

/* No lock is held. 0: try again; -EAGAIN: the time is over; WAIT_HANDLED, -EINTR; -EBADF: closed meanwhile. */
static int await_room(struct conn *c, int fd, uint64_t *handled)
{
	int64_t deadline = wait_deadline(load_relaxed(&c->snd_timeout_ns));
	int r;

	if (!conn_hold(c, fd))
		return -EBADF;
	UNWOUND_BEGIN(drop, c);
	r = wait_lane(c, fd, WAIT_TX, deadline, handled, true);
	UNWOUND_END();
	if (fdtab_get(fd) != c)
		r = -EBADF;
	conn_drop(c);
	return r;
}

/* As a send does: a one-way stream gives the switch its quiet moment. */
static void hold_for_switch(struct conn *c, int fd, bool block)
{
	if (load_relaxed(&c->tx.mode) != MODE_SLOW || !conn_hold(c, fd))
		return;
	if (conn_is_linked(c) && switch_wants_hold(c))
		wait_for_acknowledgement(c, fd, block);
	conn_drop(c);
}

/*
 * ---- sendfile ----
 */

struct sending {
	int in_fd;
	off_t *off, start;
	size_t done;
	uint8_t *large;	/* mapped for this call: RING_STEP bytes; the stack may be small */
};

/*
 * What the ring cannot read by itself: from a file system that does not know how to read without waiting (tmpfs and overlayfs do not), or has
 * to wait. No more than there is room for, which is read once more otherwise.
 */
static ssize_t sendfile_bounced(struct conn *c, int fd, struct sending *s, size_t len)
{
	size_t room = conn_tx_on_ring(c) ? conn_tx_room(c) : RING_STEP, size = BOUNCE_BYTES;
	uint8_t small[BOUNCE_BYTES], *buf = small;
	ssize_t n;

	len = len < room || room < BOUNCE_BYTES ? len : room;
	if (len > BOUNCE_BYTES && !s->large) {
		long at = sys_mmap(NULL, RING_STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		s->large = sys_failed(at) ? NULL : (uint8_t *)at;
	}
	if (len > BOUNCE_BYTES && s->large) {
		buf = s->large;
		size = RING_STEP;
	}
	n = sys_call4(SYS_pread64, s->in_fd, buf, len < size ? len : size, s->start + (off_t)s->done);
	return n <= 0 ? n : conn_send(c, fd, buf, (size_t)n, MSG_DONTWAIT | (s->done ? MSG_NOSIGNAL : 0));
}

/* The call is over, or a handler has jumped out of it: where the next one goes on. */
static void sendfile_over(void *arg)
{
	struct sending *s = arg;

	if (s->large)
		sys_munmap(s->large, RING_STEP);
	s->large = NULL;
	if (s->off)
		*s->off = s->start + (off_t)s->done;
	else if (s->done)
		sys_call3(SYS_lseek, s->in_fd, s->start + (off_t)s->done, SEEK_SET);
}

static ssize_t send_all(struct conn *c, int fd, struct sending *s, size_t count)
{
	uint64_t handled = counted_now();
	bool patient = true;
	ssize_t n = 0;

	while (s->done < count) {
		bool block = !load_relaxed(&c->nonblock), waits = patient && block;
		off_t pos = s->start + (off_t)s->done;

		n = into_ring(c, fd, s->in_fd, pos, count - s->done, waits);
		patient = n != -EAGAIN;
		if (n == -EOPNOTSUPP || (n == -EAGAIN && !waits)) {
			hold_for_switch(c, fd, block);
			n = sendfile_bounced(c, fd, s, count - s->done);
		} else if (n == -EPIPE && !s->done) {
			conn_raise_sigpipe();
		}
		if (n > 0) {
			s->done += (size_t)n;
			patient = true;
			continue;
		}
		if (n != -EAGAIN || !block)
			break;
		n = await_room(c, fd, &handled);
		if (n < 0 || (n == WAIT_HANDLED && s->done))
			break;
	}
	return n;
}

ssize_t conn_sendfile(struct conn *c, int fd, int in_fd, off_t *off, size_t count)
{
	struct sending s = { .in_fd = in_fd, .off = off };
	ssize_t n;

	s.start = off ? *off : (off_t)sys_call3(SYS_lseek, in_fd, 0, SEEK_CUR);
	if (s.start < 0)
		return s.start == -EBADF ? -EBADF : -EINVAL;
	if (unlikely(!load_relaxed(&c->have_options)))
		conn_read_options(c, fd);
	UNWOUND_BEGIN(sendfile_over, &s);
	n = send_all(c, fd, &s, count);
	UNWOUND_END();
	sendfile_over(&s);
	if (s.done && n == -ECONNRESET)
		conn_set_pending(c, ECONNRESET);
	return s.done ? (ssize_t)s.done : n;
}

/*
 * ---- splice ----
 */

/* Bytes that lie before S, or all that the kernel has, where there is no S. The lane's lock is held. */
static ssize_t tcp_to_pipe(struct conn *c, int fd, int pipe_fd, size_t len, unsigned flags)
{
	size_t cap = switch_read_cap(c);
	ssize_t n;

	/* The kernel sleeps for bytes whatever the flags say, but not where there are some. */
	if (!cap || !sys_ready_now(fd, POLLIN))
		return -EAGAIN;
	n = sys_call6(SYS_splice, fd, 0, pipe_fd, 0, (long)(len < cap ? len : cap), flags | SPLICE_F_NONBLOCK);
	if (n > 0) {
		plain_add(&c->rx.tcp_bytes, (uint64_t)n, lane_is_alone(load_relaxed(&c->shared)));
		retreat_far_came(c, (uint64_t)n);
	} else if (n < 0) {
		conn_kernel_told(c, (int)-n);
	}
	return n;
}

/* The few bytes that were taken for the beginning of a frame and are none. */
static ssize_t stash_to_pipe(struct conn *c, int pipe_fd, size_t len)
{
	ssize_t n = pipe_write(pipe_fd, c->rx.stash, len < c->rx.stash_len ? len : c->rx.stash_len);

	if (n <= 0)
		return n;
	c->rx.stash_len -= (uint8_t)n;
	for (size_t i = 0; i < c->rx.stash_len; i++)
		c->rx.stash[i] = c->rx.stash[i + (size_t)n];
	fetch_add(&c->rx.tcp_bytes, (uint64_t)n);
	return n;
}

static ssize_t ring_to_pipe(struct conn *c, int pipe_fd, size_t len)
{
	struct ring_rx *rx = &c->link.rx;
	ssize_t n = ring_rx_avail(rx);
	const void *from;

	if (n <= 0)
		return -EAGAIN;
	len = len < (size_t)n ? len : (size_t)n;
	from = ring_peek(rx, rx->head_pos, &len);
	n = pipe_write(pipe_fd, from, len);
	if (n > 0)
		ring_consume(rx, (size_t)n);
	return n;
}

static ssize_t ring_and_left_to_pipe(struct conn *c, int fd, int pipe_fd, size_t len)
{
	ssize_t n = ring_to_pipe(c, pipe_fd, len);

	if (retreat_left(c))
		retreat_follow(c, fd);
	return n;
}

/* What is there now. -EAGAIN: nothing, or no room in the pipe. */
static ssize_t splice_in_step(struct conn *c, int fd, int pipe_fd, size_t len, unsigned flags)
{
	struct signals_held held;
	ssize_t n = -EAGAIN;

	signals_hold_these(&held, signals_all());
	if (conn_lock_rx(c) < 0) {
		signals_release(&held);
		return n;
	}
	if (fdtab_get(fd) != c)
		n = -EBADF;
	else if (conn_rx_on_ring(c))
		n = ring_and_left_to_pipe(c, fd, pipe_fd, len);
	else if (c->rx.stash_len && load_relaxed(&c->rx.state) != RX_ACKED)
		n = stash_to_pipe(c, pipe_fd, len);
	else if (load_relaxed(&c->rx.state) != RX_ENDED && load_relaxed(&c->rx.state) != RX_FOLLOW)
		n = tcp_to_pipe(c, fd, pipe_fd, len, flags);
	lane_unlock(&c->rx.lock);
	signals_release(&held);
	return n;
}

/* As the kernel does, which stops where there is nothing more, or no room: the first step may have ended with the ring, at its edge, or before a frame. */
static ssize_t splice_in_more(struct conn *c, int fd, int pipe_fd, size_t len, unsigned flags, ssize_t done)
{
	uint8_t byte;
	ssize_t n;

	while (done > 0 && (size_t)done < len) {
		n = conn_recv(c, fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		if (n > 0)
			n = splice_in_step(c, fd, pipe_fd, len - (size_t)done, flags);
		if (n <= 0) {
			conn_keep_error(c, n == -EBADF ? 0 : n);
			break;
		}
		done += n;
	}
	return done;
}

ssize_t conn_splice_in(struct conn *c, int fd, int pipe_fd, size_t len, unsigned flags)
{
	uint64_t handled = counted_now();
	uint8_t byte;
	ssize_t n;
	int r = pipe_check(pipe_fd);

	while (r == 0) {
		r = pipe_await(pipe_fd, POLLOUT, !pipe_never_blocks(pipe_fd, flags), &handled);
		if (r < 0)
			break;
		/* A look at one byte waits for it, takes what steps are due, and finds the end; the bytes then move in one step. */
		n = conn_recv(c, fd, &byte, 1, MSG_PEEK);
		if (n <= 0)
			return n;
		n = splice_in_step(c, fd, pipe_fd, len, flags);
		if (n != -EAGAIN)
			return splice_in_more(c, fd, pipe_fd, len, flags, n);
	}
	return r;
}

/*
 * Between hosts a send that voids an announcement has to know whether it could be taken for a frame (switch.c). NULL: it is not known.
 */
static const struct iov_walk *look_into_pipe(const struct conn *conn, int pipe_fd, size_t len, uint8_t first[FRAME_SIZE], struct iovec *iov, struct iov_walk *w)
{
	struct conn *c = (struct conn *)conn;
	ssize_t n;

	if (!conn_is_far(c) || load_relaxed(&c->tx.state) != TX_ANNOUNCED)
		return NULL;
	n = pipe_peek(pipe_fd, first, len < FRAME_SIZE ? len : FRAME_SIZE);
	if (n <= 0)
		return NULL;
	*iov = (struct iovec){ .iov_base = first, .iov_len = (size_t)n };
	return iov_start(w, iov, 1) < 0 ? NULL : w;
}

/*
 * On TCP, but not plainly: one atomic step of the kernel's, under the lock that keeps S still. A socket that may block must not do
 * so meanwhile: poll() promises that a third of its buffer is free, and a sixteenth fits there however it is cut up.
 */
static ssize_t splice_tcp(int pipe_fd, struct conn *c, int fd, size_t len, unsigned flags)
{
	bool may_block = !load_relaxed(&c->nonblock);
	unsigned size = sizeof(int);
	uint8_t first[FRAME_SIZE];
	struct iov_walk w;
	struct iovec iov;
	int room = 0, r;
	ssize_t n;

	if (conn_lock_tx(c) < 0)
		return -EAGAIN;
	r = load_relaxed(&c->rx.pending_errno) ? -exchange(&c->rx.pending_errno, 0) : 0;
	if (r == 0 && load_relaxed(&c->linked)) {
		conn_take_tx_attention_locked(c, fd);
		r = switch_before_send(c, fd, look_into_pipe(c, pipe_fd, len, first, &iov, &w));
	}
	n = r;
	if (r == 0 && may_block) {
		sys_getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, &size);
		room = room / 16 > 0 ? room / 16 : 1;
		len = len < (size_t)room ? len : (size_t)room;
		if (!sys_ready_now(fd, POLLOUT))
			n = r = -EAGAIN;
	}
	if (r == 0) {
		n = sys_call6(SYS_splice, pipe_fd, 0, fd, 0, (long)len, flags | SPLICE_F_NONBLOCK);
		if (n > 0)
			plain_add(&c->tx.tcp_bytes, (uint64_t)n, lane_is_alone(load_relaxed(&c->shared)));
		else if (n < 0)
			conn_kernel_told(c, (int)-n);
		switch_announce_after(c, n);
	}
	lane_unlock(&c->tx.lock);
	return r == 1 ? -EOPNOTSUPP : n;
}

/* -EOPNOTSUPP: the lane has changed roads just now. */
static ssize_t splice_out_step(int pipe_fd, struct conn *c, int fd, size_t len, unsigned flags, bool first, bool patient)
{
	ssize_t n;

	if (!conn_tx_on_ring(c))
		return splice_tcp(pipe_fd, c, fd, len, flags);
	n = into_ring(c, fd, pipe_fd, -1, len, patient);
	if (n == -EPIPE && first)
		conn_raise_sigpipe();
	return n;
}

ssize_t conn_splice_out(int pipe_fd, struct conn *c, int fd, size_t len, unsigned flags)
{
	uint64_t handled = counted_now();
	size_t done = 0;
	bool block, patient = true;
	ssize_t n = pipe_check(pipe_fd);

	if (n < 0)
		return n;
	if (unlikely(!load_relaxed(&c->have_options)))
		conn_read_options(c, fd);
	block = !load_relaxed(&c->nonblock);
	while (done < len) {
		n = pipe_await(pipe_fd, POLLIN, !done && !pipe_never_blocks(pipe_fd, flags), &handled);
		if (n < 0)
			break;
		hold_for_switch(c, fd, block);
		n = splice_out_step(pipe_fd, c, fd, len - done, flags, !done, patient && block);
		patient = n != -EAGAIN;
		if (n > 0)
			done += (size_t)n;
		if (n > 0 || n == -EOPNOTSUPP)
			continue;
		if (n != -EAGAIN || !block)
			break;
		n = await_room(c, fd, &handled);
		if (n < 0 || (n == WAIT_HANDLED && done))
			break;
	}
	if (done && n == -ECONNRESET)
		conn_set_pending(c, ECONNRESET);
	return done ? (ssize_t)done : n;
}
