/* SPDX-License-Identifier: MIT */
/*
 * Receiving, on whichever road the lane is. One step takes what is there under the rx lock and never blocks; the call around
 * it repeats steps and waits between them, with no lock held.
 *
 * The other road, letting a blocking call sleep inside recv() while a switch is under way, would read past S, frame and all.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "ringbuf/ring_short.h"
#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_iov.h"
#include "shim/conn_lock.h"
#include "shim/conn_probe.h"
#include "shim/conn_use.h"
#include "shim/fdtab.h"
#include "shim/plain.h"
#include "shim/ready.h"
#include "shim/renew.h"
#include "shim/retreat.h"
#include "shim/retreat_far.h"
#include "shim/switch.h"
#include "shim/wait.h"

#define DISCARD_BYTES 1024
#define LOOK_EVERY 64	/* empty reads of a ring for one look at the kernel's socket, where nothing asks for more */

/* What the stash has, as program data: it was taken for the beginning of a frame and is none. */
static ssize_t take_stash(struct conn *c, const struct iov_walk *walk, int flags)
{
	struct iov_walk w = *walk;
	size_t done = 0;
	uint8_t *at;

	if (w.left > c->rx.stash_len)
		w.left = c->rx.stash_len;
	if (!(flags & MSG_TRUNC) && iov_meets_hole(&w))
		return -EFAULT;
	while (done < c->rx.stash_len) {
		size_t len = iov_piece(&w, &at);

		if (!len)
			break;
		len = len < c->rx.stash_len - done ? len : c->rx.stash_len - done;
		if (!(flags & MSG_TRUNC))
			ring_copy(at, c->rx.stash + done, len);
		iov_advance(&w, len);
		done += len;
	}
	if (!(flags & MSG_PEEK)) {
		for (size_t i = done; i < c->rx.stash_len; i++)
			c->rx.stash[i - done] = c->rx.stash[i];
		c->rx.stash_len -= (uint8_t)done;
		fetch_add(&c->rx.tcp_bytes, done);
	}
	return (ssize_t)done;
}

static inline ssize_t take_tcp_by(struct conn *c, int fd, const struct iov_walk *w, size_t cap, int flags, struct msghdr *m, struct iovec *window)
{
	struct msghdr local = { .msg_iov = window };
	size_t bytes;
	ssize_t n;

	if (m) {
		local.msg_name = m->msg_name;
		local.msg_namelen = m->msg_namelen;
		local.msg_control = m->msg_control;
		local.msg_controllen = m->msg_controllen;
	}
	local.msg_iovlen = iov_window(w, cap, window, &bytes);
	n = sys_call3(SYS_recvmsg, fd, &local, (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
	if (n >= 0 && m) {
		m->msg_namelen = local.msg_namelen;
		m->msg_controllen = local.msg_controllen;
		m->msg_flags = local.msg_flags & ~MSG_DONTWAIT;
	}
	if (n > 0 && !(flags & PLAIN_NO_BYTES))
		plain_add(&c->rx.tcp_bytes, (uint64_t)n, lane_is_alone(load_relaxed(&c->shared)));
	else if (n < 0)
		conn_kernel_told(c, (int)-n);
	return n;
}

static NOINLINE ssize_t take_tcp_many(struct conn *c, int fd, const struct iov_walk *w, size_t cap, int flags, struct msghdr *m)
{
	struct iovec window[IOV_WINDOW];

	return take_tcp_by(c, fd, w, cap, flags, m, window);
}

/* At most `cap` bytes from the kernel's socket. */
static ssize_t take_tcp(struct conn *c, int fd, const struct iov_walk *w, size_t cap, int flags, struct msghdr *m)
{
	struct iovec window[IOV_FEW];

	return likely(w->nr <= IOV_FEW) ? take_tcp_by(c, fd, w, cap, flags, m, window) : take_tcp_many(c, fd, w, cap, flags, m);
}

/* What the ring has; 0: nothing. -EFAULT: the program's memory; any other error is a lie. */
static ssize_t take_ring(struct conn *c, const struct iov_walk *walk, int flags)
{
	struct ring_rx *rx = &c->link.rx;
	struct iov_walk w = *walk;
	ssize_t avail = ring_rx_avail_min(rx, w.left);
	uint64_t pos = rx->head_pos;
	size_t done = 0;
	uint8_t *at;

	/* A kernel's socket has no bytes that have come and are not told. */
	if ((size_t)avail < w.left && conn_is_far(c)) {
		conn_pump(c, VERBS_EMPTY);
		avail = ring_rx_avail_min(rx, w.left);
	}
	if (unlikely(avail < 0))
		return avail;
	if (w.left > (size_t)avail)
		w.left = (size_t)avail;
	if (!(flags & MSG_TRUNC) && iov_meets_hole(&w))
		return -EFAULT;
	for (size_t len; (len = iov_piece(&w, &at)); done += len) {
		if (len > RING_STEP_BYTES)
			len = RING_STEP_BYTES;
		if (flags & MSG_TRUNC)
			pos += len;
		else
			pos = ring_get(rx, pos, at, len);
		if (!(flags & MSG_PEEK))
			ring_consume_to(rx, pos);
		iov_advance(&w, len);
	}
	return (ssize_t)done;
}

/*
 * A peek that reaches past S: the program bytes before it, and behind the frame, if that lies there whole, what the ring has.
 * -EAGAIN: nothing but the bytes before S is to be seen.
 */
static ssize_t peek_across(struct conn *c, int fd, const struct iov_walk *walk, size_t cap, int flags)
{
	static uint8_t discarded[DISCARD_BYTES]; /* whoever's */
	uint8_t expected[FRAME_SIZE], got[FRAME_SIZE];
	struct iovec window[IOV_WINDOW];
	struct msghdr local = { .msg_iov = window };
	struct iov_walk rest = *walk;
	size_t bytes, nr = iov_window(walk, cap, window, &bytes);
	ssize_t n;

	/* With MSG_TRUNC the program's memory is left alone, and the frame has to be seen all the same. */
	if (flags & MSG_TRUNC)
		for (nr = 0, bytes = 0; bytes < cap && nr < IOV_WINDOW; bytes += window[nr++].iov_len)
			window[nr] = (struct iovec){ discarded, cap - bytes < DISCARD_BYTES ? cap - bytes : DISCARD_BYTES };
	if (bytes < cap || nr == IOV_WINDOW)
		return -EAGAIN;
	window[nr] = (struct iovec){ .iov_base = got, .iov_len = FRAME_SIZE };
	local.msg_iovlen = nr + 1;
	n = sys_call3(SYS_recvmsg, fd, &local, (flags & ~(MSG_WAITALL | MSG_TRUNC)) | MSG_DONTWAIT);
	frame_make(expected, FRAME_SWITCH, c->peer_nonce, c->nonce, c->rx.cap_pos);
	if (n != (ssize_t)(cap + FRAME_SIZE) || !frame_matches(expected, got, 0, FRAME_SIZE))
		return -EAGAIN;
	iov_skip(&rest, cap);
	n = take_ring(c, &rest, flags);
	return n < 0 ? -EAGAIN : (ssize_t)cap + n;
}

/* The ring is drained and its stream has ended: the error once, then what the kernel says. */
static ssize_t take_end(struct conn *c, int fd, const struct iov_walk *w, int flags, struct msghdr *m)
{
	int err = conn_take_rx_error(c);

	if (err)
		return -err;
	return load_relaxed(&c->rx.dead) ? 0 : take_tcp(c, fd, w, SIZE_MAX, flags, m);
}

/* On TCP. An error that an earlier call met behind its last bytes comes when there are no more, instead of the end. */
static ssize_t take_plain(struct conn *c, int fd, const struct iov_walk *w, size_t cap, int flags, struct msghdr *m)
{
	ssize_t n = take_tcp(c, fd, w, cap, flags, m);
	int err;

	if (unlikely(c->rx.resent_left) && n > 0 && !(flags & (MSG_PEEK | PLAIN_NO_BYTES)))
		retreat_far_came(c, (uint64_t)n);
	else if (n == 0 && w->left)
		retreat_far_is_short(c, fd);
	err = n > 0 || (n == 0 && !w->left) ? 0 : conn_take_rx_error(c);
	return err ? -err : n;
}

/* An end that was told may come at any moment now; without a word the kernel is asked now and then, and before we say 0 for it. */
static bool wants_look(struct conn *c)
{
	conn_take_rx_attention(c);
	return load_relaxed(&c->rx.told_end) || load_relaxed(&c->rx.shut) || unlikely(c->rx.fin_known) || conn_far_is_dead(c) ||
	       load_relaxed(&c->rx.looks_skipped) >= LOOK_EVERY;
}

static ssize_t step_ring(struct conn *c, int fd, const struct iov_walk *w, int flags, struct msghdr *m)
{
	bool ended = load_relaxed(&c->rx.state) == RX_ENDED;
	ssize_t n;
	int err;

	if (!ended || c->rx.proven) {
		n = take_ring(c, w, flags);
		if (n > 0 || n == -EFAULT)
			return n;
		if (n == 0 && !w->left && ring_rx_avail(&c->link.rx) > 0)
			return 0;
		if (n < 0)
			conn_lied(c, fd, REASON_BAD_POSITION);
		else if (!ended && wants_look(c)) {
			conn_look(c, fd);
			conn_far_judge(c);
		}
		else if (!ended)
			count_add(&c->rx.looks_skipped, 1);
		if (load_relaxed(&c->rx.state) == RX_ENDED && !ended && c->rx.proven) {
			/* The kernel has told the end: the tail is final now, and may have moved since we looked. */
			n = take_ring(c, w, flags);
			if (n > 0 || n == -EFAULT)
				return n;
		}
	}
	if (load_relaxed(&c->rx.state) == RX_ENDED)
		return take_end(c, fd, w, flags, m);
	/* Noted by a call that had something else to tell. */
	err = conn_take_rx_error(c);
	if (unlikely(err))
		return -err;
	if (ring_rx_may_trim(&c->link.rx))
		ring_rx_trim(&c->link.rx, now_ns());
	if (load_relaxed(&c->rx.shut))
		return 0;
	return conn_far_is_orphaned(c) ? -ECONNRESET : -EAGAIN;
}

/* An urgent byte is next: a call that has bytes in front of it stops there. */
static bool at_mark(int fd)
{
	int at = 0;

	return sys_call3(SYS_ioctl, fd, SIOCATMARK, &at) == 0 && at;
}

/* The ring was left, and has `done` bytes for a peek that wants more: a program that waits until enough are there would do so for ever. */
static ssize_t peek_behind_ring(struct conn *c, int fd, const struct iov_walk *w, size_t done, int flags)
{
	struct iov_walk rest = *w;
	ssize_t n;

	if (!retreat_clear(c, fd) || at_mark(fd))
		return 0;
	iov_skip(&rest, done);
	n = take_tcp(c, fd, &rest, SIZE_MAX, flags, NULL);
	return n > 0 ? n : 0;
}

/* One step: bytes, 0 for the end, -EAGAIN for nothing yet, -errno. */
static ssize_t step(struct conn *c, int fd, const struct iov_walk *w, int flags, struct msghdr *m)
{
	size_t cap;
	ssize_t n;

	if (load_relaxed(&c->linked)) {
		enum rx_state s = load_relaxed(&c->rx.state);

		/* Or a sleep would not begin. */
		if (s != RX_RING && s != RX_ENDED)
			conn_take_rx_attention(c);
		if (s == RX_SEEK || s == RX_ACKED)
			switch_acknowledge(c, fd);
		if (s == RX_SEEK && load_relaxed(&c->pinned) && !load_relaxed(&c->passing) && !load_relaxed(&c->rx.pending_errno))
			switch_stay_rx(c);
	}
	for (;;) {
		switch ((enum rx_state)load_relaxed(&c->rx.state)) {
		case RX_RING:
			n = likely(!retreat_left(c)) ? step_ring(c, fd, w, flags, m) : -EAGAIN;
			/* A look may have found that the sender has left. */
			if (likely(load_relaxed(&c->rx.state) != RX_LEFT) || n != -EAGAIN)
				return n;
			/* fall through */
		case RX_LEFT:
			n = take_ring(c, w, flags);
			/* What came twice goes out of the socket with the last byte. */
			if (n > 0 && (size_t)n == w->left && !(flags & MSG_PEEK))
				retreat_follow(c, fd);
			if (n > 0 && (size_t)n < w->left && flags & MSG_PEEK)
				n += peek_behind_ring(c, fd, w, (size_t)n, flags);
			if (n > 0 || (!w->left && conn_rx_avail(c)))
				return n;
			if (n < 0)
				conn_lied(c, fd, REASON_BAD_POSITION);
			/* fall through */
		case RX_FOLLOW:
			retreat_follow(c, fd);
			if (load_relaxed(&c->rx.state) == RX_FOLLOW)
				return load_relaxed(&c->rx.shut) ? 0 : -EAGAIN;
			continue;
		case RX_ENDED:
			return step_ring(c, fd, w, flags, m);
		case RX_ACKED:
			cap = switch_read_cap(c);
			if (cap && flags & MSG_PEEK && w->left > cap) {
				n = peek_across(c, fd, w, cap, flags);

				if (n >= 0)
					return n;
			}
			if (cap)
				return take_plain(c, fd, w, cap, flags, m);
			if (switch_take(c, fd) == TAKE_WAIT)
				return load_relaxed(&c->rx.shut) ? 0 : -EAGAIN;
			continue;
		case RX_CLOSED:
			return -EBADF;
		default:
			if (c->rx.stash_len)
				return take_stash(c, w, flags);
			n = take_plain(c, fd, w, SIZE_MAX, flags, m);
			/* It may have read up to an announced count, before its peer waits for the answer. */
			if (n > 0 && load_relaxed(&c->rx.state) == RX_SEEK && load_relaxed(&c->linked))
				switch_acknowledge(c, fd);
			return n;
		}
	}
}

/* As recvmsg() leaves them for a TCP socket when it has told nothing else. */
static void blank_header(struct msghdr *m, int flags)
{
	m->msg_namelen = 0;
	m->msg_controllen = 0;
	m->msg_flags = flags & MSG_CMSG_CLOEXEC;
}

static void after_call(struct conn *c, int fd)
{
	uint64_t calls = load_relaxed(&c->rx.calls) + 1;

	store_relaxed(&c->rx.calls, calls);
	if (unlikely(conn_nego_due(c)))
		nego_poke(c, fd);
	if (unlikely(conn_stats_due(c, calls)))
		conn_tell_stats(c, fd);
}

/* Nothing comes any more, or nothing that a peek could see beside what is there: one that wants more has it all. */
static bool stream_is_over(struct conn *c, int fd)
{
	return load_relaxed(&c->rx.state) == RX_ENDED || load_relaxed(&c->rx.state) == RX_LEFT || sys_ready_now(fd, POLLRDHUP);
}

static bool has_error_alone(int fd)
{
	int kernel = 0;

	return sys_ready_now(fd, 0) & POLLERR && sys_call3(SYS_ioctl, fd, SIOCINQ, &kernel) == 0 && !kernel;
}

/*
 * The ring was left, and has given what it had: what TCP has behind that belongs to the same call, or not. An error, and no bytes before it, stays in the
 * socket, for whoever calls next, be it a send.
 */
static bool stops_behind_ring(struct conn *c, int fd)
{
	retreat_follow(c, fd);
	return at_mark(fd) || has_error_alone(fd);
}

/* Of a call that has slept and has bytes to tell the kernel keeps an error, and shows it to poll, as nobody else does where there is no link. */
static bool leaves_error(struct conn *c, int fd)
{
	return !conn_is_linked(c) && has_error_alone(fd);
}

ssize_t conn_recv_iov(struct conn *c, int fd, const struct iovec *iov, size_t nr, int flags, struct msghdr *m)
{
	struct iov_walk w;
	size_t low, done = 0;
	int64_t deadline = -1;
	bool over = false, blocks;
	int woken = 0;	/* by what the last sleep, which no bytes have ended, may end the call */
	struct conn_sleep sleep = { 0 };
	ssize_t n = iov_start(&w, iov, nr);

	if (n < 0)
		return n;
	if (unlikely(!load_relaxed(&c->have_options)))
		conn_read_options(c, fd);
	if (conn_is_stalled(c) && conn_hold(c, fd)) {
		conn_probe_if_due(c, fd);
		conn_drop(c);
	}
	if (flags & (MSG_OOB | MSG_ERRQUEUE))
		return take_tcp(c, fd, &w, SIZE_MAX, flags, m);
	low = flags & MSG_WAITALL ? w.left : (size_t)load_relaxed(&c->rcv_lowat);
	if (low > w.left)
		low = w.left;
	/* As the file is when the call begins. */
	blocks = !(flags & MSG_DONTWAIT) && !load_relaxed(&c->nonblock);
	if (m)
		blank_header(m, flags);
	for (;;) {
		bool wait, behind_ring;

		n = conn_entered(c, fd, &c->rx.lock, conn_lock_rx(c));
		if (unlikely(n == -EBADF) && sleep.slept && (fd = conn_call_number(c)) >= 0)
			continue;
		if (n < 0)
			break;
		n = step(c, fd, &w, flags, m);
		if (n > 0 && flags & MSG_PEEK)
			done = (size_t)n;
		else if (n > 0) {
			iov_skip(&w, (size_t)n);
			done += (size_t)n;
		}
		/*
		 * A short step may have stopped at a window of many pieces, or where TCP ends and the ring begins: a call that
		 * returns less than was asked for must have left nothing behind.
		 */
		behind_ring = n > 0 && w.left && !(flags & MSG_PEEK) && load_relaxed(&c->rx.state) == RX_LEFT;
		if (unlikely(behind_ring))
			over = stops_behind_ring(c, fd);
		if (n > 0 && w.left && !(flags & MSG_PEEK) && !over && (done < low || switch_read_cap(c) == 0 || behind_ring)) {
			lane_unlock(&c->rx.lock);
			continue;
		}
		/* What came between this look at the bytes and that at the end is still to be taken. */
		if (n > 0 && (flags & (MSG_PEEK | MSG_DONTWAIT)) == MSG_PEEK && done < low && !over && stream_is_over(c, fd)) {
			over = true;
			lane_unlock(&c->rx.lock);
			continue;
		}
		wait = (n == -EAGAIN || (n > 0 && done < low && !over)) && done < (low ? low : 1) && blocks && woken >= 0 && !(woken && done);
		if (wait)
			conn_call_sleeps(c, &sleep);
		lane_unlock(&c->rx.lock);
		if (n == -EAGAIN && load_relaxed(&c->linked))
			renew_serve(c, fd);
		after_call(c, fd);
		if (!wait) {
			if (n == -EAGAIN && woken < 0)
				n = woken;
			break;
		}
		if (deadline < 0)
			deadline = wait_deadline(load_relaxed(&c->rcv_timeout_ns));
		/* With a peek, while more bytes are needed than have come, "something is there" is no reason to try again. */
		n = conn_call_waits(c, &sleep, &fd, WAIT_RX, flags & MSG_PEEK && done, deadline);
		/* The kernel waits for nothing, too, and calls it success when the time is over. */
		if (n == -EAGAIN && !low) {
			n = 0;
			break;
		}
		/* On TCP fewer bytes than the low-water mark wake nobody, and are the call's all the same when it ends without more. */
		woken = low > 1 && !done && n != -EBADF && (n < 0 || n == WAIT_HANDLED) ? n : 0;
		if (unlikely(woken))
			continue;
		if (n < 0 || (done && (n == WAIT_HANDLED || conn_call_is_due(&sleep) || leaves_error(c, fd))))
			break;
	}
	/* Bytes first; an error that a later step met is the next call's. */
	if (done && n < 0 && n != -EAGAIN && n != -EINTR && n != -EBADF && n != -EFAULT && !(flags & MSG_PEEK))
		conn_set_pending(c, (int)-n);
	conn_call_ends(c, &sleep);
	return done ? (ssize_t)done : n;
}

/* From another host: what has come and was not told yet. Its kernel would have told it. */
static ssize_t take_late(struct conn *c, uint8_t *buf, size_t len)
{
	ssize_t n;

	conn_pump(c, 0);
	n = ring_read(&c->link.rx, buf, len);
	return n > 0 ? n : 0;
}

/*
 * The sender has left the ring, and it is drained. What came twice goes out of the socket at once: unread, it would make a reset of this process's
 * end. And where the ring has not filled the buffer, what lies in the socket by now belongs to the same call.
 */
static __attribute__((noinline)) size_t recv_behind_ring(struct conn *c, int fd, void *buf, size_t len, int flags)
{
	struct iovec iov = { .iov_base = buf, .iov_len = len };
	ssize_t n;

	if (conn_lock_rx(c) == 0) {
		if (fdtab_get(fd) == c && retreat_left(c))
			retreat_follow(c, fd);
		lane_unlock(&c->rx.lock);
	}
	if (!len || at_mark(fd) || has_error_alone(fd))
		return 0;
	n = conn_recv_iov(c, fd, &iov, 1, flags | MSG_DONTWAIT, NULL);

	if (n < 0 && n != -EAGAIN && n != -EINTR && n != -EBADF)
		conn_set_pending(c, (int)-n);
	return n > 0 ? (size_t)n : 0;
}

#define HOT_FLAGS (MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CMSG_CLOEXEC)

/* The warm path: bytes are in the ring, or about to come, and nothing special is asked. */
static __attribute__((noinline)) ssize_t recv_any(struct conn *c, int fd, void *buf, size_t len, int flags)
{
	struct iovec iov;

	if (likely(load_relaxed(&c->rx.mode) == MODE_RING) &&
	    likely(!(flags & ~HOT_FLAGS)) && likely(!user_range_bad(buf, len)) &&
	    likely(load_relaxed(&c->rcv_lowat) <= 1) && likely(conn_entered(c, fd, &c->rx.lock, conn_lock_rx(c)) == 0)) {
		bool left = false;
		ssize_t n = 0;

		if (likely(load_relaxed(&c->rx.state) == RX_RING)) {
			/* The answer to a question is most often about to come: a few looks, before the locks and clocks of a wait. */
			if (!ring_rx_known(&c->link.rx) && !(flags & MSG_DONTWAIT) && !load_relaxed(&c->nonblock) && spin_pays())
				ring_rx_avail_soon(&c->link.rx);
			n = ring_read(&c->link.rx, buf, len);
			if (unlikely(n > 0 && (size_t)n < len && conn_is_far(c)))
				n += take_late(c, (uint8_t *)buf + n, len - (size_t)n);
			left = n > 0 && ring_rx_is_drained(&c->link.rx) && unlikely(lane_left(c->link.rx.ctl) != LEFT_NOT);
		}
		lane_unlock(&c->rx.lock);
		if (likely(n > 0)) {
			if (unlikely(left))
				n += (ssize_t)recv_behind_ring(c, fd, (uint8_t *)buf + n, len - (size_t)n, flags);
			count_add(&c->rx.calls, 1);
			if (unlikely(load_relaxed(&c->rx.calls) % CONN_TELL_EVERY == 0))
				conn_tell_stats(c, fd);
			return n;
		}
	}
	iov = (struct iovec){ .iov_base = buf, .iov_len = len < IOV_MAX_BYTES ? len : IOV_MAX_BYTES };
	return conn_recv_iov(c, fd, &iov, 1, flags, NULL);
}

static __attribute__((noinline)) ssize_t recv_unlocked(struct conn *c, int fd, void *buf, size_t len, int flags)
{
	lane_unlock(&c->rx.lock);
	return recv_any(c, fd, buf, len, flags);
}

static __attribute__((noinline)) ssize_t recv_told(struct conn *c, int fd, ssize_t n)
{
	lane_unlock(&c->rx.lock);
	if (load_relaxed(&c->rx.calls) % CONN_TELL_EVERY == 0)
		conn_tell_stats(c, fd);
	return n;
}

/* The hot path: a short message that is known to be there. All other ways end in a call that is the last thing it does, so that it saves nothing. */
ssize_t conn_recv(struct conn *c, int fd, void *buf, size_t len, int flags)
{
	struct ring_rx *rx = &c->link.rx;
	uint64_t calls;

	if (unlikely(load_relaxed(&c->rx.mode) != MODE_RING) || unlikely(flags & ~HOT_FLAGS) || unlikely(user_range_bad(buf, len)) ||
	    unlikely(load_relaxed(&c->rcv_lowat) > 1) || unlikely(!conn_lock_alone(c, &c->rx.lock)))
		return recv_any(c, fd, buf, len, flags);
	/* Where the sender has left the ring, its last bytes are more than a copy. */
	if (unlikely(load_relaxed(&c->rx.state) != RX_RING) || (ring_rx_known(rx) == len && unlikely(lane_left(rx->ctl) != LEFT_NOT)) ||
	    unlikely(!ring_read_short(rx, buf, len)))
		return recv_unlocked(c, fd, buf, len, flags);
	calls = load_relaxed(&c->rx.calls) + 1;
	store_relaxed(&c->rx.calls, calls);
	if (unlikely(calls % CONN_TELL_EVERY == 0) || unlikely(!lane_unlock_alone(&c->rx.lock)))
		return recv_told(c, fd, (ssize_t)len);
	return (ssize_t)len;
}
