/* SPDX-License-Identifier: MIT */
/*
 * See renew.h. A link is given up in two steps, since other threads may look at it without a lock: first the connection has none, then, with the
 * last use from before, it is taken down (conn_use.c).
 */
#include "shim/renew.h"

#include <errno.h>

#include "ringbuf/shm.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_holders.h"
#include "shim/conn_lock.h"
#include "shim/conn_use.h"
#include "shim/handler.h"
#include "shim/log.h"
#include "shim/ready.h"
#include "shim/retreat.h"
#include "shim/switch.h"

bool renew_is_off(const struct conn *c)
{
	return unlikely(stats_any_off()) && stats_is_off(c);
}

/* Between hosts the link is the process's that made it, and is let go of with functions that free memory. */
static bool is_others(const struct conn *c)
{
	return conn_is_far(c) && !conn_far_is_dead(c) && (conn_far_fd(c) < 0 || handler_inside());
}

static bool can_be_asked(struct conn *c)
{
	if (!conn_is_linked(c) || is_others(c) || load_relaxed(&c->asked_back) || load_relaxed(&c->rx.dead))
		return false;
	if (load_relaxed(&c->pinned) && !conn_tx_on_ring(c) && !conn_rx_on_ring(c))
		return false;
	/* A signal handler in the middle of a call of its own thread. */
	return !lane_is_mine(&c->tx.lock) && !lane_is_mine(&c->rx.lock);
}

enum reason renew_weigh(struct conn *c)
{
	return can_be_asked(c) && renew_is_off(c) ? REASON_OFF : REASON_NONE;
}

static void take_back_locked(struct conn *c, int fd, enum reason why)
{
	/* What keeps it on TCP from now on may be more than that. */
	if (!load_relaxed(&c->pinned)) {
		store_relaxed(&c->reason, (uint8_t)why);
		store_relaxed(&c->passing, 1);
		store_relaxed(&c->pinned, 1);
	}
	store_relaxed(&c->asked_back, 1);
	/* Where it cannot leave just now, its next send comes to it. */
	store_relaxed(&c->tx.alert, 1);
	/* A far peer is asked by the end of its link, and says then whether what was announced stands. */
	if (conn_is_far(c)) {
		conn_far_stop(c);
	} else {
		peer_publish_u32(&c->link.rx.ctl->rx_state.asked, ASKED_BACK);
		ring_rx_raise_attention(&c->link.rx, WAKE_ATTN_WORDS);
		switch_withdraw_tx(c);
	}
	if (load_relaxed(&c->tx.state) == TX_RING && retreat_leave(c, fd))
		retreat_resend_kept(c, fd);
	conn_frames_locked(c, fd);
	retreat_settle(c);
	log_info("connection %u: asks back (%s)", c->index, reason_word(why));
	ready_changed(c);
}

void renew_take_back_for(struct conn *c, int fd, enum reason why)
{
	if (!can_be_asked(c) || !conn_trylock_tx(c))
		return;
	if (conn_trylock_rx(c)) {
		if (!load_relaxed(&c->asked_back) && load_relaxed(&c->linked) && conn_call_has(c, fd))
			take_back_locked(c, fd, why);
		lane_unlock(&c->rx.lock);
	}
	lane_unlock(&c->tx.lock);
	conn_refresh_stats(c);
}

void renew_take_back(struct conn *c, int fd)
{
	enum reason why = renew_weigh(c);

	if (why != REASON_NONE)
		renew_take_back_for(c, fd, why);
}

void renew_serve(struct conn *c, int fd)
{
	if (!conn_hold(c, fd))
		return;
	if (conn_is_linked(c))
		retreat_serve(c, fd);
	if (unlikely(renew_wanted(c) != REASON_NONE))
		renew_take_back(c, fd);
	conn_drop(c);
}

/*
 * ---- The link ----
 */

static bool lane_is_quiet(const struct conn *conn)
{
	struct conn *c = (struct conn *)conn;
	enum tx_state tx = load_relaxed(&c->tx.state);
	enum rx_state rx = load_relaxed(&c->rx.state);

	return (tx == TX_SEEK || tx == TX_PINNED) && (rx == RX_SEEK || rx == RX_PINNED) && !c->rx.stash_len;
}

/* A connection that ends keeps its link: what there is to tell of its end is told through it. */
static bool is_ending(const struct conn *conn)
{
	struct conn *c = (struct conn *)conn;

	return load_relaxed(&c->tx.shut) || load_relaxed(&c->rx.shut) || load_relaxed(&c->tx.gone_hint) || load_relaxed(&c->rx.told_end) ||
	       load_relaxed(&c->tx.peer_ended) || load_relaxed(&c->rx.dead) || load_relaxed(&c->rx.pending_errno) || load_relaxed(&c->rx.error_told);
}

bool renew_could_part(const struct conn *c)
{
	return !is_others(c) && load_relaxed(&((struct conn *)c)->nr_maps) == 1 && !is_ending(c);
}

/* What it moved is counted on, and Ringway's own bytes among those of the socket, since the kernel counts them, too. */
static void settle_counts(struct conn *c)
{
	uint64_t tx = (uint64_t)c->tx.frames * FRAME_SIZE + c->tx.leaving_done + (c->tx.resent_pos - c->tx.left_pos);
	uint64_t rx = (uint64_t)c->rx.frames * FRAME_SIZE + c->rx.discarded;

	fetch_add(&c->ring_before[0], c->link.tx.tail_pos);
	fetch_add(&c->ring_before[1], c->link.rx.head_pos);
	fetch_add(&c->own_bytes[0], tx);
	fetch_add(&c->own_bytes[1], rx);
	fetch_add(&c->tx.tcp_bytes, tx);
	fetch_add(&c->rx.tcp_bytes, rx);
	c->switches_before = load_relaxed(&c->switches);
}

/* As in a connection that has never had a link. */
static void forget_lanes(struct conn *c)
{
	struct lane_tx *tx = &c->tx;
	struct lane_rx *rx = &c->rx;

	tx->rest_done = tx->probe_done = 0;
	tx->announced_seq = 0;
	tx->voids = 0;
	tx->hold_at = CONN_HOLD_AFTER;
	tx->hold_step = 1;
	tx->left_pos = tx->resent_pos = tx->have_pos = 0;
	tx->leaving_done = 0;
	tx->frames = 0;
	tx->piece = 0;
	store_relaxed(&tx->alert, 0);
	store_relaxed(&tx->probe_due, 0);
	store_relaxed(&tx->probe_at, 0);
	store_relaxed(&tx->ask_at, 0);
	store_relaxed(&tx->probes, 0);
	store_relaxed(&tx->stalled_at, 0);
	store_relaxed(&tx->room_seq, load_relaxed(&tx->full_seq));
	rx->proven = 0;
	rx->acked_seq = 0;
	rx->frames = 0;
	rx->end_told = 0;
	rx->left_pos = rx->discarded = rx->upto_pos = 0;
	store_relaxed(&rx->peer_has, 0);
	store_relaxed(&rx->leaving, 0);
	store_relaxed(&rx->unlooked, 0);
}

/* Nothing arrives any more behind what was counted, and what the peer's frames have promised has come. */
static bool far_is_over(struct conn *c)
{
	return !conn_is_far(c) || (!c->rx.resent_left && !handler_inside() && conn_far_stop(c));
}

enum renew_part renew_part(struct conn *c)
{
	bool anew = load_relaxed(&c->passing) && lane_asked(c->link.tx.ctl) != ASKED_GONE;
	struct ring_bells rx = c->link.rx.bells, tx = c->link.tx.bells;

	if (!lane_is_quiet(c) || is_ending(c) || load_relaxed(&c->nr_maps) != 1 || conn_use_is_leaving(c) || !far_is_over(c) || ready_part(c) || !conn_use_parts(c))
		return RENEW_NOT_NOW;
	if (conn_is_far(c))
		conn_far_part(c);
	settle_counts(c);
	c->parted = 1;
	forget_lanes(c);
	store_relaxed(&c->returned, 0);
	store_relaxed(&c->passing, 0);
	store_relaxed(&c->asked_back, 0);
	store_relaxed(&c->pinned, !anew);
	if (anew)
		conn_unseek(c);
	/* Without a link first: a poll that sleeps on the old bells finds that its connection is another one, and no poll has armed the old link for that. */
	store_release(&c->linked, 0);
	fence_full();
	c->generation++;
	bell_ring(rx.bell_fd, &rx.own);
	bell_ring(tx.bell_fd, &tx.own);
	conn_use_part(c);
	log_info("connection %u: the link is given up", c->index);
	return anew ? RENEW_ANEW : RENEW_NEVER;
}

bool renew_is_clear(struct conn *c)
{
	if (likely(!c->parted))
		return true;
	if (conn_use_is_leaving(c))
		return false;
	shm_blank(&c->link);
	conn_far_blank(c);
	for (unsigned h = 0; h < CONN_MAX_HOLDERS; h++) {
		store_relaxed(&c->asleep[h].rx, 0);
		store_relaxed(&c->asleep[h].tx, 0);
	}
	conn_use_renew(c);
	c->parted = 0;
	return true;
}
