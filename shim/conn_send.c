/* SPDX-License-Identifier: MIT */
/*
 * Sending, on whichever road the lane is. One step gives what fits under the tx lock and never blocks; the call around it
 * repeats steps and waits between them, with no lock held.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include "ringbuf/cgroup.h"
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

#define HEALTH_EVERY 64	/* sends to a half-closed peer for one look at the socket, after the first few */
#define HEALTH_FIRST 4

static inline ssize_t give_tcp_by(struct conn *c, int fd, const struct iov_walk *w, int flags, const struct msghdr *m, struct iovec *window)
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
	local.msg_iovlen = iov_window(w, SIZE_MAX, window, &bytes);
	n = sys_call3(SYS_sendmsg, fd, &local, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n > 0)
		plain_add(&c->tx.tcp_bytes, (uint64_t)n, lane_is_alone(load_relaxed(&c->shared)));
	else if (n < 0)
		conn_kernel_told(c, (int)-n);
	return n;
}

static NOINLINE ssize_t give_tcp_many(struct conn *c, int fd, const struct iov_walk *w, int flags, const struct msghdr *m)
{
	struct iovec window[IOV_WINDOW];

	return give_tcp_by(c, fd, w, flags, m, window);
}

static ssize_t give_tcp(struct conn *c, int fd, const struct iov_walk *w, int flags, const struct msghdr *m)
{
	struct iovec window[IOV_FEW];

	return likely(w->nr <= IOV_FEW) ? give_tcp_by(c, fd, w, flags, m, window) : give_tcp_many(c, fd, w, flags, m);
}

static inline void notified(struct conn *c, int fd, uint32_t said)
{
	if (unlikely(said))
		conn_ring_said(c, fd, said);
}

/*
 * What fits into the ring; 0: nothing. A large piece is published in steps, the receiver woken after the first. To a far receiver it goes at
 * once: a step would be a request and a doorbell of its own.
 */
static ssize_t give_ring(struct conn *c, int fd, const struct iov_walk *walk)
{
	struct ring_tx *tx = &c->link.tx;
	struct iov_walk w = *walk;
	ssize_t room = ring_tx_room(tx, w.left);
	size_t done = 0, unpublished = 0, publish_at = conn_is_far(c) ? SIZE_MAX : RING_STEP_BYTES;
	uint64_t pos = tx->tail_pos;
	uint32_t attention = 0;
	uint8_t *at;

	if (unlikely(room < 0))
		return room;
	if (w.left > (size_t)room)
		w.left = (size_t)room;
	for (size_t len; (len = iov_piece(&w, &at)); done += len) {
		if (len > RING_STEP_BYTES)
			len = RING_STEP_BYTES;
		pos = ring_put(tx, pos, at, len);
		iov_advance(&w, len);
		unpublished += len;
		if (unpublished >= publish_at || !w.left) {
			ring_publish(tx, pos);
			attention |= ring_tx_notify(tx);
			unpublished = 0;
		}
	}
	notified(c, fd, attention);
	return (ssize_t)done;
}

/* The receiver said that it goes, its own stream has ended, or the program was told an error: does the kernel know of more by now? */
static void check_health(struct conn *c, int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };
	struct timespec now = { 0 };

	conn_take_tx_attention_locked(c, fd);
	/* It may have asked for the lane before it went. */
	if (load_relaxed(&c->tx.state) != TX_RING)
		return;
	if (!load_relaxed(&c->tx.gone_hint)) {
		if (!load_relaxed(&c->tx.peer_ended) && !load_relaxed(&c->rx.error_told))
			return;
		if (c->tx.sends_since_look++ >= HEALTH_FIRST && c->tx.sends_since_look % HEALTH_EVERY)
			return;
	}
	if (sys_call5(SYS_ppoll, &p, 1, &now, NULL, 8) <= 0)
		return;
	if (p.revents & POLLRDHUP && conn_check_killed(c, fd))
		return;
	if (p.revents & (POLLERR | POLLHUP) || (load_relaxed(&c->tx.gone_hint) && p.revents & POLLRDHUP))
		conn_tx_set(c, TX_ORPHAN);
}

static int take_pending(struct conn *c)
{
	return unlikely(load_relaxed(&c->rx.pending_errno)) ? exchange(&c->rx.pending_errno, 0) : 0;
}

int conn_ring_check(struct conn *c, int fd)
{
	ssize_t n;
	int err;

	if (unlikely(load_relaxed(&c->rx.dead)) || unlikely(load_relaxed(&c->tx.fin)))
		return -EPIPE;
	if (conn_is_far(c)) {
		err = conn_far_check(c, fd);
		if (unlikely(err == -EAGAIN))
			conn_note_full(c);
		if (unlikely(err))
			return err;
	}
	if (unlikely(renew_leaves(c)) && retreat_leave(c, fd))
		return 0;
	if (load_relaxed(&c->tx.state) == TX_RING)
		check_health(c, fd);
	if (conn_is_stalled(c))
		conn_judge_stall_locked(c, fd);
	err = take_pending(c);
	if (unlikely(err))
		return -err;
	if (unlikely(load_relaxed(&c->rx.dead)))
		return -EPIPE;
	if (load_relaxed(&c->tx.state) == TX_ORPHAN) {
		n = conn_write_probe(c, fd);
		if (n >= 0 || n == -EAGAIN)
			return RING_ORPHAN;
		store_relaxed(&c->rx.error_told, 1);
		return (int)n;
	}
	/* In front of the bytes: who has read them has the probe in its socket, and takes it away before it closes. */
	conn_probe_ahead(c, fd);
	return 0;
}

/* STEP_LEFT: nothing was done, the lane is not on the ring any more. */
#define STEP_LEFT (-EXDEV)

bool conn_may_overflow(const struct conn *c)
{
	uint64_t bytes = likely(!cgroup_is_limited()) ? 0 : ring_tx_spare(&c->link.tx);

	return likely(!bytes) || cgroup_may_overflow(bytes, now_ns());
}

/* The kernel's socket takes what the receiver does not, and its buffers give way where memory is short. */
static bool leave_for_memory(struct conn *c, int fd)
{
	if (!retreat_leave(c, fd))
		return false;
	if (!load_relaxed(&c->pinned)) {
		store_relaxed(&c->reason, (uint8_t)REASON_NO_MEMORY);
		store_relaxed(&c->pinned, 1);
	}
	return true;
}

/*
 * `patient`: a full ring is worth a moment's wait. A receiver that keeps up makes room within it, and the lane stays in the ring that
 * is warm; from one that does not read the program must not notice before a kernel's socket would be full.
 */
static ssize_t give(struct conn *c, int fd, const struct iov_walk *w, bool patient)
{
	struct iov_walk rest = *w;
	ssize_t more, n = give_ring(c, fd, w);

	if (likely((size_t)n == w->left) || unlikely(n < 0) || unlikely(load_relaxed(&c->tx.state) != TX_RING) || (patient && ring_tx_spare(&c->link.tx)))
		return n;
	/* What the receiver has taken since is only known once somebody has looked. */
	if (conn_is_far(c)) {
		conn_pump(c, VERBS_EMPTY);
		iov_skip(&rest, (size_t)n);
		more = give_ring(c, fd, &rest);
		if (unlikely(more < 0))
			return more;
		n += more;
		if ((size_t)n < w->left)
			conn_far_make_way(c);
	}
	if (unlikely(!conn_may_overflow(c))) {
		if (n)
			return n;
		if (leave_for_memory(c, fd))
			return STEP_LEFT;
	} else if (ring_tx_overflow(&c->link.tx)) {
		iov_skip(&rest, (size_t)n);
		more = give_ring(c, fd, &rest);
		if (unlikely(more < 0))
			return more;
		n += more;
	}
	if ((size_t)n < w->left) {
		conn_note_full(c);
		conn_note_stall(c);
	}
	return n;
}

static ssize_t step_ring(struct conn *c, int fd, const struct iov_walk *w, int flags, const struct msghdr *m, bool patient)
{
	ssize_t n;

	/* Without bytes a send only asks whether the socket is well; and the kernel says which control messages it takes. */
	if ((!w->left || unlikely((m && m->msg_controllen) || flags & MSG_FASTOPEN)) && !load_relaxed(&c->rx.dead)) {
		n = give_tcp(c, fd, &(struct iov_walk){ 0 }, flags, m);
		if (n < 0 || !w->left)
			return n;
	}
	n = conn_ring_check(c, fd);
	if (n < 0)
		return n;
	if (unlikely(load_relaxed(&c->tx.state) == TX_LEFT))
		return STEP_LEFT;
	if (iov_meets_hole(w))
		return -EFAULT;
	if (n == RING_ORPHAN)
		return (ssize_t)w->left;
	n = give(c, fd, w, patient);
	if (unlikely(n == STEP_LEFT))
		return n;
	if (n < 0) {
		lane_unlock(&c->tx.lock);
		if (conn_lock_both(c) == 0) {
			conn_lied(c, fd, REASON_BAD_POSITION);
			store_relaxed(&c->rx.pending_errno, 0);
			lane_unlock(&c->rx.lock);
		} else {
			lane_lock_surely(&c->tx.lock);
		}
		return -ECONNRESET;
	}
	if (n)
		return n;
	conn_ask_far(c);
	return -EAGAIN;
}

static ssize_t step(struct conn *c, int fd, const struct iov_walk *w, int flags, const struct msghdr *m, bool patient)
{
	int r, err = take_pending(c);
	ssize_t n;

	/* What a look took from the socket comes before anything that the socket would say now. */
	if (unlikely(err))
		return -err;
	switch ((enum tx_state)load_relaxed(&c->tx.state)) {
	case TX_RING:
	case TX_ORPHAN:
		n = step_ring(c, fd, w, flags, m, patient);
		if (likely(n != STEP_LEFT))
			return n;
		/* fall through */
	case TX_SEEK:
	case TX_ANNOUNCED:
	case TX_FRAMING:
	case TX_LEFT:
		if (!load_relaxed(&c->linked))
			break;
		conn_take_tx_attention_locked(c, fd);
		if (load_relaxed(&c->tx.state) == TX_SEEK && load_relaxed(&c->pinned) && !load_relaxed(&c->passing))
			switch_stay_tx(c);
		if (!w->left && load_relaxed(&c->tx.state) != TX_FRAMING)
			break;
		r = switch_before_send(c, fd, w);
		if (r == 1) {
			n = step_ring(c, fd, w, flags, m, patient);
			if (n != STEP_LEFT)
				return n;
			r = switch_before_send(c, fd, w);
		}
		if (r < 0)
			return r;
		n = give_tcp(c, fd, w, flags, m);
		switch_announce_after(c, n);
		return n;
	case TX_CLOSED:
		return -EBADF;
	default:
		break;
	}
	return give_tcp(c, fd, w, flags, m);
}

void conn_raise_sigpipe(void)
{
	sys_call3(SYS_tgkill, sys_getpid(), sys_call0(SYS_gettid), SIGPIPE);
}

static void after_call(struct conn *c, int fd)
{
	uint64_t calls = load_relaxed(&c->tx.calls) + 1;

	store_relaxed(&c->tx.calls, calls);
	if (unlikely(conn_nego_due(c)))
		nego_poke(c, fd);
	if (unlikely(conn_stats_due(c, calls)))
		conn_tell_stats(c, fd);
}

static bool may_block(struct conn *c, int flags)
{
	return !(flags & MSG_DONTWAIT) && !load_relaxed(&c->nonblock);
}

/* The mark is a position of the TCP stream. A far peer is told, and if it cannot be, the link is taken down. */
static void leave_for_urgent(struct conn *c, int fd)
{
	if (conn_is_far(c) && conn_hold(c, fd)) {
		retreat_back_unlocked(c, fd, REASON_OOB);
		conn_drop(c);
	}
	if (conn_lock_tx(c) < 0)
		return;
	if (conn_is_far(c) && conn_far_is_dead(c) && retreat_far_due(c) > 0) {
		lane_unlock(&c->tx.lock);
		return;
	}
	if (fdtab_get(fd) == c && load_relaxed(&c->tx.state) == TX_RING && retreat_leave(c, fd) && !load_relaxed(&c->pinned)) {
		store_relaxed(&c->reason, (uint8_t)REASON_OOB);
		store_relaxed(&c->pinned, 1);
	}
	lane_unlock(&c->tx.lock);
}

/* Where the lane cannot leave. The last byte is the urgent one: the kernel's, while those before it go the lane's own way. */
static ssize_t send_urgent(struct conn *c, int fd, const struct iovec *iov, size_t nr, int flags)
{
	struct iov_walk w;
	struct iovec window[IOV_WINDOW];
	size_t bytes, pieces;
	uint8_t *last;
	ssize_t sent, n = iov_start(&w, iov, nr);

	if (n < 0)
		return n;
	if (w.left > 1) {
		pieces = iov_window(&w, w.left - 1, window, &bytes);
		n = conn_send_iov(c, fd, window, pieces, flags & ~MSG_OOB, NULL);
		if (n < 0 || (size_t)n < w.left - 1)
			return n;
		iov_skip(&w, (size_t)n);
	}
	if (!iov_piece(&w, &last))
		return n;
	sent = sys_sendto(fd, last, 1, flags | MSG_NOSIGNAL, NULL, 0);
	if (sent == -EPIPE && !n && !(flags & MSG_NOSIGNAL))
		conn_raise_sigpipe();
	return sent < 0 && n ? n : n + sent;
}

ssize_t conn_send_iov(struct conn *c, int fd, const struct iovec *iov, size_t nr, int flags, const struct msghdr *m)
{
	struct iov_walk w;
	struct conn_sleep sleep = { 0 };
	size_t done = 0;
	int64_t deadline = -1;
	bool patient = true, blocks;
	ssize_t n = iov_start(&w, iov, nr);

	if (n < 0)
		return n;
	if (unlikely(!load_relaxed(&c->have_options)))
		conn_read_options(c, fd);
	/* As the file is when the call begins. */
	blocks = may_block(c, flags);
	if (flags & MSG_OOB && conn_tx_on_ring(c))
		leave_for_urgent(c, fd);
	if (flags & MSG_OOB && conn_tx_on_ring(c))
		return send_urgent(c, fd, iov, nr, flags);
	for (;;) {
		bool wait;

		if (unlikely(load_relaxed(&c->tx.mode) == MODE_SLOW) && conn_hold(c, fd)) {
			if (conn_is_linked(c) && switch_wants_hold(c))
				wait_for_acknowledgement(c, fd, blocks);
			conn_drop(c);
		}
		n = conn_entered(c, fd, &c->tx.lock, conn_lock_tx(c));
		if (unlikely(n == -EBADF) && sleep.slept && (fd = conn_call_number(c)) >= 0)
			continue;
		if (n < 0)
			break;
		n = step(c, fd, &w, flags & ~MSG_DONTWAIT, m, patient && blocks);
		patient = n > 0;
		if (n > 0) {
			iov_skip(&w, (size_t)n);
			done += (size_t)n;
		}
		wait = (n == -EAGAIN || (n > 0 && w.left)) && blocks;
		if (wait && n == -EAGAIN)
			conn_call_sleeps(c, &sleep);
		lane_unlock(&c->tx.lock);
		if (n == -EAGAIN && load_relaxed(&c->linked))
			renew_serve(c, fd);
		after_call(c, fd);
		if (n > 0 && w.left)
			continue;
		if (!wait)
			break;
		if (deadline < 0)
			deadline = wait_deadline(load_relaxed(&c->snd_timeout_ns));
		n = conn_call_waits(c, &sleep, &fd, WAIT_TX, false, deadline);
		if (n < 0 || (done && (n == WAIT_HANDLED || conn_call_is_due(&sleep))))
			break;
	}
	if (done && n == -ECONNRESET)
		conn_set_pending(c, ECONNRESET);
	conn_call_ends(c, &sleep);
	if (done)
		return (ssize_t)done;
	if (n == -EPIPE && !(flags & MSG_NOSIGNAL))
		conn_raise_sigpipe();
	return n;
}

static __attribute__((noinline)) bool has_room(struct conn *c, size_t len, int flags)
{
	struct ring_tx *tx = &c->link.tx;

	return (may_block(c, flags) && spin_allowed() ? ring_tx_room_soon(tx, len) : ring_tx_room(tx, len)) >= (ssize_t)len;
}

#define HOT_FLAGS (MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE | MSG_EOR)

/* The warm path: the ring has room for all of it, and nothing special has happened. */
static __attribute__((noinline)) ssize_t send_any(struct conn *c, int fd, const void *buf, size_t len, int flags)
{
	struct iovec iov;

	if (likely(load_relaxed(&c->tx.mode) == MODE_RING) && likely(len - 1 < RING_STEP_BYTES) &&
	    likely(!(flags & ~HOT_FLAGS)) && likely(!user_range_bad(buf, len)) &&
	    likely(!load_relaxed(&c->tx.alert)) && likely(conn_entered(c, fd, &c->tx.lock, conn_lock_tx(c)) == 0)) {
		struct ring_tx *tx = &c->link.tx;
		bool sent = false;

		if (likely(load_relaxed(&c->tx.state) == TX_RING) && likely(!conn_tx_attention(c)) &&
		    (likely(ring_tx_known(tx) >= len) || has_room(c, len, flags))) {
			ring_write(tx, buf, len);
			notified(c, fd, ring_tx_notify(tx));
			sent = true;
		}
		lane_unlock(&c->tx.lock);
		if (likely(sent)) {
			count_add(&c->tx.calls, 1);
			if (unlikely(load_relaxed(&c->tx.calls) % CONN_TELL_EVERY == 0))
				conn_tell_stats(c, fd);
			return (ssize_t)len;
		}
	}
	/* What no program has cannot be sent, where the kernel would find out on its way. */
	if (user_range_beyond(buf, len))
		return -EFAULT;
	iov = (struct iovec){ .iov_base = (void *)buf, .iov_len = len < IOV_MAX_BYTES ? len : IOV_MAX_BYTES };
	return conn_send_iov(c, fd, &iov, 1, flags, NULL);
}

static __attribute__((noinline)) ssize_t send_unlocked(struct conn *c, int fd, const void *buf, size_t len, int flags)
{
	lane_unlock(&c->tx.lock);
	return send_any(c, fd, buf, len, flags);
}

static __attribute__((noinline)) ssize_t send_told(struct conn *c, int fd, ssize_t n)
{
	notified(c, fd, ring_tx_notify(&c->link.tx));
	lane_unlock(&c->tx.lock);
	if (load_relaxed(&c->tx.calls) % CONN_TELL_EVERY == 0)
		conn_tell_stats(c, fd);
	return n;
}

/* The hot path: a short message of a stream to a receiver that polls. As in conn_recv(), all else is called last. */
ssize_t conn_send(struct conn *c, int fd, const void *buf, size_t len, int flags)
{
	uint64_t calls;

	if (unlikely(load_relaxed(&c->tx.mode) != MODE_RING) || unlikely(flags & ~HOT_FLAGS) || unlikely(user_range_bad(buf, len)) ||
	    unlikely(load_relaxed(&c->tx.alert)) || unlikely(!conn_lock_alone(c, &c->tx.lock)))
		return send_any(c, fd, buf, len, flags);
	if (unlikely(load_relaxed(&c->tx.state) != TX_RING) || unlikely(!ring_write_short(&c->link.tx, buf, len)))
		return send_unlocked(c, fd, buf, len, flags);
	calls = load_relaxed(&c->tx.calls) + 1;
	store_relaxed(&c->tx.calls, calls);
	fence_compiler();
	if (unlikely(calls % CONN_TELL_EVERY == 0) || unlikely(!ring_tx_is_heard(&c->link.tx)) ||
	    unlikely(!lane_unlock_alone(&c->tx.lock)))
		return send_told(c, fd, (ssize_t)len);
	return (ssize_t)len;
}
