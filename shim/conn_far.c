/* SPDX-License-Identifier: MIT */
/*
 * See conn_far.h. A dead link by itself says little: a peer that closes lets go of its queue pair, too, and what it says by TCP may come
 * later than the news of that. So an end that is told so waits for TCP's word, but not for long: a device can die while TCP lives on.
 */
#include "shim/conn_far.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/clock.h"
#include "shim/conn_end.h"
#include "shim/conn_fin.h"
#include "shim/conn_lock.h"
#include "shim/conn_probe.h"
#include "shim/far.h"
#include "shim/log.h"
#include "shim/options.h"
#include "shim/ready.h"
#include "shim/retreat_far.h"
#include "shim/summary.h"
#include "shim/wait.h"

static void note_death(struct conn *c, int err)
{
	int32_t alive = 0;

	if (load_relaxed(&c->link_dead))
		return;
	store_relaxed(&c->link_died_at, now_ns());
	if (!compare_exchange(&c->link_dead, &alive, err))
		return;
	log_info("connection %u: the link has died (%m)", c->index, -err);
	store_relaxed(&c->tx.alert, 1);
	nego_look_soon(&c->nego);
	ready_changed(c);
}

int conn_pump_far(struct conn *c, unsigned why)
{
	int r = far_pump(c, why);

	/* A relative that has no link has met the peer's leaving. */
	if (unlikely(load_relaxed(&c->rx.leaving)) && r == 0) {
		far_engine->stop(&c->link);
		r = far_pump(c, 0);
	}
	if (unlikely(r < 0 && r != -ESRCH))
		note_death(c, r);
	return r;
}

bool conn_far_stop(struct conn *c)
{
	if (!conn_far_is_dead(c)) {
		far_engine->stop(&c->link);
		conn_pump_far(c, 0);
	}
	return conn_far_is_dead(c);
}

void conn_far_leave(struct conn *c)
{
	bool ours = far_wait_fd(c) >= 0;

	far_leave(c);
	if (ours && load_relaxed(&c->nr_holders) > 0)
		note_death(c, -ESHUTDOWN);
}

int conn_pump_look(struct conn *c)
{
	bool empty;

	if (!conn_is_far(c))
		return 0;
	empty = (conn_rx_on_ring(c) && !conn_rx_avail(c)) ||
		(conn_tx_on_ring(c) && ring_tx_room_now(&c->link.tx) < ring_tx_low_water(&c->link.tx, SIZE_MAX));
	return conn_pump_far(c, empty ? VERBS_EMPTY : 0);
}

void conn_far_make_way(struct conn *c)
{
	if (likely(!conn_is_far(c)) || !conn_rx_on_ring(c) || !ring_rx_may_spill(&c->link.rx) || !conn_trylock_rx(c))
		return;
	ring_rx_spill(&c->link.rx);
	lane_unlock(&c->rx.lock);
}

int conn_far_fd(const struct conn *c)
{
	return conn_is_far(c) ? far_wait_fd(c) : -1;
}

int conn_far_outq(struct conn *c, int fd)
{
	uint64_t bytes;

	if (!conn_hold(c, fd))
		return 0;
	bytes = far_engine->unacked(&c->link);
	conn_drop(c);
	return bytes > INT_MAX ? INT_MAX : (int)bytes;
}

static uint64_t since(_Atomic uint64_t *told, const _Atomic uint64_t *count)
{
	uint64_t now = load_relaxed((_Atomic uint64_t *)count);

	return now - exchange(told, now);
}

void conn_far_tell(struct conn *c)
{
	const struct verbs_counts *counts = conn_is_linked(c) && conn_is_far(c) ? far_engine->counts(&c->link) : NULL;

	if (counts)
		summary_add_verbs(since(&c->told_far[0], &counts->wr), since(&c->told_far[1], &counts->doorbells),
				  since(&c->told_far[2], &counts->cqes));
}

void conn_far_part(struct conn *c)
{
	conn_far_tell(c);
	for (int i = 0; i < 3; i++)
		c->far_before[i] += exchange(&c->told_far[i], 0);
}

void conn_far_blank(struct conn *c)
{
	store_relaxed(&c->link_dead, 0);
	store_relaxed(&c->link_judged, 0);
	c->dead_send_at = 0;
	c->heard_at = 0;
}

static int64_t patience_ns(void)
{
	return (int64_t)options.patience_ms * 1000000;
}

int64_t conn_far_patience(const struct conn *conn)
{
	struct conn *c = (struct conn *)conn;
	enum tx_state s = load_relaxed(&c->tx.state);

	if (likely(!conn_far_is_dead(c)) || (s != TX_RING && s != TX_FRAMING))
		return INT64_MAX;
	/* Judged by who could do nothing for this lane: then whoever is about to sleep does. */
	if (load_relaxed(&c->link_judged))
		return conn_tx_attention(c) ? 0 : INT64_MAX;
	return retreat_far_due(c);
}

void conn_far_judge(struct conn *c)
{
	if (likely(!conn_far_is_dead(c)) || conn_far_patience(c) != 0)
		return;
	/* The other lane's step, for whoever has its lock next. */
	store_relaxed(&c->link_judged, 1);
	ring_tx_keep_attention(&c->link.tx, WAKE_ATTN_WORDS);
	store_relaxed(&c->tx.alert, 1);
}

/* Has the kernel heard of a reset, or with POLLRDHUP of an end? */
static bool kernel_says(int fd, short end)
{
	return sys_ready_now(fd, end);
}

/* A quiet connection's sender asks first whether there still is a receiver; a stream, or an answer, has just heard of it. */
static void hear_before_send(struct conn *c)
{
	uint64_t now = clock_counter();

	if (!now || now - c->heard_at > CLOCK_COUNTER_BRIEF)
		conn_pump_far(c, 0);
	c->heard_at = now;
}

int conn_far_check(struct conn *c, int fd)
{
	int64_t now;

	if (conn_far_fd(c) < 0 && !conn_far_is_dead(c))
		return -ECONNRESET;
	hear_before_send(c);
	if (likely(!conn_far_is_dead(c)))
		return 0;
	now = now_ns();
	if (!c->dead_send_at)
		c->dead_send_at = now;
	if (load_relaxed(&c->tx.state) == TX_RING) {
		conn_take_tx_attention_locked(c, fd);
		conn_frames_try(c, fd);
	}
	if (load_relaxed(&c->tx.state) == TX_RING) {
		bool goes = load_relaxed(&c->tx.gone_hint);

		/* Who goes lets go of the link before its kernel says so. */
		if (kernel_says(fd, goes ? POLLRDHUP : 0))
			conn_tx_set(c, TX_ORPHAN);
		else if (!retreat_far_due(c))
			return retreat_far_leave(c, fd) ? 0 : -EAGAIN;
		else
			conn_probe_ahead(c, fd);
		return load_relaxed(&c->tx.state) == TX_ORPHAN || load_relaxed(&c->rx.pending_errno) ? 0 : -EAGAIN;
	}
	if (load_relaxed(&c->tx.state) != TX_ORPHAN)
		return 0;
	/* Of a peer that has closed the kernel finds out by the probes that go out now. If it does not, there is one. */
	return now - c->dead_send_at > patience_ns() ? -ECONNRESET : 0;
}
