/* SPDX-License-Identifier: MIT */
/* See conn_zerocopy.h. The other road, copying into the ring and writing completions of our own, would have to make the kernel's socket readable for errors. */
#include "shim/conn_zerocopy.h"

#include <errno.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_iov.h"
#include "shim/conn_lock.h"
#include "shim/conn_probe.h"
#include "shim/conn_use.h"
#include "shim/far.h"
#include "shim/fd_conn.h"
#include "shim/retreat.h"
#include "shim/retreat_far.h"
#include "shim/switch.h"
#include "shim/wait.h"

/* What keeps a lane on its ring is over in a moment: a peer that goes just now, a probe that is half written. */
#define PATIENCE_NS INT64_C(1000000000)

/* One step, the tx lock held. 0: the kernel has the lane; 1: go on; -EAGAIN: the socket is full; -EBUSY: not just now; other -errno. */
static int step_to_tcp(struct conn *c, int fd, const struct iov_walk *w)
{
	ssize_t n;
	int r;

	switch ((enum tx_state)load_relaxed(&c->tx.state)) {
	case TX_TCP:
	case TX_SEEK:
		return switch_stay_tx(c) ? 0 : -EBUSY;
	case TX_ANNOUNCED:
		if (switch_stay_tx(c))
			return 0;
		if (conn_pump(c, VERBS_RUNG) >= 0)
			return -EBUSY;
		/* What the peer would take these bytes for hangs on which they are. */
		r = switch_before_send(c, fd, w);
		return r < 0 ? r : 1;
	case TX_FRAMING:
		r = switch_finish_frame(c, fd);
		return r < 0 ? r : 1;
	case TX_RING:
		n = c->tx.probe_done ? conn_write_probe(c, fd) : 0;
		if (n < 0)
			return (int)n;
		/* Of a far peer that has let go it is not known yet what it has. Else its link is taken down, if it could not be told. */
		if (conn_is_far(c) && conn_far_is_dead(c) && retreat_far_due(c) > 0)
			return -EBUSY;
		return retreat_leave(c, fd) ? 1 : -EBUSY;
	case TX_LEFT:
		r = retreat_resend(c, fd);
		return r < 0 ? r : 1;
	case TX_ORPHAN:
		/* Nobody reads what is sent from now on; the kernel says so. */
		return conn_tx_set(c, TX_PINNED) ? 0 : -EBUSY;
	default:
		return 0;
	}
}

static int go_to_tcp(struct conn *c, int fd, const struct iov_walk *w, int flags)
{
	bool may_block = !(flags & MSG_DONTWAIT) && !load_relaxed(&c->nonblock);
	int64_t deadline = wait_deadline(load_relaxed(&c->snd_timeout_ns)), end = now_ns() + PATIENCE_NS;
	struct conn_sleep sleep = { 0 };
	int r;

	for (;;) {
		r = conn_entered(c, fd, &c->tx.lock, conn_lock_tx(c));
		if (unlikely(r == -EBADF) && sleep.slept && (fd = conn_call_number(c)) >= 0)
			continue;
		if (r < 0)
			break;
		do
			r = step_to_tcp(c, fd, w);
		while (r == 1);
		if (r == -EAGAIN && may_block)
			conn_call_sleeps(c, &sleep);
		lane_unlock(&c->tx.lock);
		if (r == -EBUSY && now_ns() < end) {
			sys_call0(SYS_sched_yield);
			continue;
		}
		if (r != -EAGAIN || !may_block)
			break;
		r = conn_call_waits(c, &sleep, &fd, WAIT_TX, false, deadline);
		if (r < 0)
			break;
	}
	conn_call_ends(c, &sleep);
	return r == -EBUSY ? -ENOBUFS : r;
}

int conn_before_zerocopy(struct conn *c, int fd, const struct iovec *iov, size_t nr, int flags)
{
	struct iov_walk w;
	int r;

	if (unlikely(!load_relaxed(&c->have_options)))
		conn_read_options(c, fd);
	if (!load_relaxed(&c->zero_copies) || load_relaxed(&c->tx.mode) == MODE_PINNED)
		return 0;
	if (fd_come_back(fd, REASON_ZEROCOPY) && load_relaxed(&c->tx.mode) == MODE_PINNED)
		return 0;
	/* The send says what is wrong with them. */
	if (iov_start(&w, iov, nr) < 0)
		return 0;
	r = go_to_tcp(c, fd, &w, flags);
	if (r == -EPIPE && !(flags & MSG_NOSIGNAL))
		conn_raise_sigpipe();
	return r;
}
