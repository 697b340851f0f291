/* SPDX-License-Identifier: MIT */
/*
 * See retreat_far.h. Three frames carry what on one host four words say. With HAVE, the peer need not send again what is here, and one that closes
 * meanwhile is not answered with a reset; with UPTO, a sender that is killed before it has sent everything again is not taken for one that has ended.
 */
#include "shim/retreat_far.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_lock.h"
#include "shim/conn_probe.h"
#include "shim/log.h"
#include "shim/options.h"
#include "shim/ready.h"
#include "shim/retreat.h"
#include "shim/switch.h"
#include "shim/wait.h"

#define LEAVING_BYTES (3 * FRAME_SIZE)
#define MOMENT_NS 10000000

static int64_t patience_ns(void)
{
	return (int64_t)options.patience_ms * 1000000;
}

static short ask(int fd, short events, int64_t ns)
{
	struct pollfd p = { .fd = fd, .events = events };
	struct timespec left = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

	return sys_call5(SYS_ppoll, &p, 1, &left, NULL, 8) > 0 ? p.revents : 0;
}

int64_t retreat_far_due(const struct conn *conn)
{
	struct conn *c = (struct conn *)conn;
	int64_t left;

	if (load_relaxed(&c->rx.leaving) & LEAVING_RETREAT || retreat_receiver_is_gone(c))
		return 0;
	if (load_relaxed(&c->link_dead) != -ECONNRESET && !load_relaxed(&c->tx.gone_hint))
		return 0;
	left = load_relaxed(&c->link_died_at) + patience_ns() - now_ns();
	return left > 0 ? left : 0;
}

/*
 * ---- Tx ----
 */

/* Where TCP goes on: what the peer is known to have taken, or what it has told that it has. */
static bool find_place(struct conn *c, uint64_t *pos)
{
	struct ring_tx *tx = &c->link.tx;
	uint64_t has = load_relaxed(&c->rx.peer_has);

	if (!conn_far_stop(c) || ring_tx_refresh(tx) < 0)
		return false;
	*pos = tx->head_seen;
	/* A lie is as good as nothing said. */
	if (load_acquire(&c->rx.leaving) & LEAVING_HAVE && has - *pos <= tx->tail_pos - *pos)
		*pos = has;
	return true;
}

/* No word comes any more, so it is known whether what was acknowledged is void. Which one it was is said: the peer may have announced another since. */
static uint64_t what_it_has(struct conn *c)
{
	struct lane_rx *rx = &c->rx;

	if (load_acquire(&rx->state) == RX_ACKED && !lane_voided(c->link.rx.ctl, load_unlocked(&rx->acked_seq)))
		return HAVE_STANDS | load_unlocked(&rx->cap_pos);
	return ring_rx_published(&c->link.rx);
}

static void leave(struct conn *c, uint64_t pos)
{
	c->tx.left_pos = pos;
	c->tx.resent_pos = pos;
	c->tx.have_pos = what_it_has(c);
	c->tx.leaving_done = 0;
	if (!load_relaxed(&c->pinned)) {
		/* Of a link that the peer has left, and let go of, this end has lost none. */
		store_relaxed(&c->reason, (uint8_t)(retreat_receiver_is_gone(c) || (load_relaxed(&c->rx.leaving) & LEAVING_RETREAT && load_relaxed(&c->link_dead) == -ECONNRESET)
							    ? REASON_RETREAT
							    : REASON_LINK_LOST));
		store_relaxed(&c->passing, 1);
		store_relaxed(&c->pinned, 1);
	}
	store_relaxed(&c->link_judged, 1);
	conn_tx_set(c, TX_LEFT);
	log_info("connection %u: tx lane leaves the ring of a dead link after %llu bytes, of which the last %llu are sent again", c->index,
		 (unsigned long long)c->link.tx.tail_pos, (unsigned long long)(c->link.tx.tail_pos - pos));
	/* Who waits for room is about to be told of the end that this end is telling. */
	if (!load_relaxed(&c->tx.fin))
		ready_changed(c);
}

bool retreat_far_leave(struct conn *c, int fd)
{
	uint64_t pos;

	if (!find_place(c, &pos)) {
		ring_tx_keep_attention(&c->link.tx, WAKE_ATTN_WORDS);
		return false;
	}
	leave(c, pos);
	return true;
}

/* What it announced last stands, or does not: the peer says so when it leaves its own lane. */
static void answer_announced(struct conn *c, int fd)
{
	if (!(load_acquire(&c->rx.leaving) & LEAVING_HAVE))
		return;
	if (load_relaxed(&c->rx.peer_has) == (HAVE_STANDS | c->tx.announced_pos))
		switch_carry_out(c, fd);
	else
		switch_withdraw_tx(c);
	retreat_settle(c);
}

bool retreat_far_answer(struct conn *c, int fd)
{
	uint64_t pos;
	short said;

	if (!conn_far_is_dead(c) || retreat_far_due(c) > 0)
		return true;
	if (load_relaxed(&c->tx.state) == TX_ANNOUNCED)
		answer_announced(c, fd);
	/* A switch that was begun is carried out. */
	if (load_relaxed(&c->tx.state) == TX_FRAMING && switch_finish_frame(c, fd) < 0)
		return true;
	/* Behind a FIN nothing is said. */
	if (load_relaxed(&c->tx.state) != TX_RING || load_relaxed(&c->tx.fin) == TX_FIN_SENT)
		return true;
	if (!find_place(c, &pos))
		return false;
	store_relaxed(&c->link_judged, 1);
	said = ask(fd, POLLRDHUP, 0);
	if (said & (POLLERR | POLLHUP))
		return true;
	if (said & POLLRDHUP && !load_relaxed(&c->rx.shut) && (pos == c->link.tx.tail_pos || load_relaxed(&c->tx.gone_hint)))
		return true;
	leave(c, pos);
	return true;
}

int retreat_far_frames(struct conn *c, int fd)
{
	uint8_t frames[LEAVING_BYTES];
	ssize_t n;

	/* Of who has gone, at either end, a message has said it all. */
	if (c->tx.leaving_done == LEAVING_BYTES || retreat_receiver_is_gone(c) || lane_asked(c->link.rx.ctl) >= ASKED_GONE)
		return 0;
	if (c->tx.probe_done) {
		n = conn_write_probe(c, fd);
		return n < 0 ? (int)n : 1;
	}
	frame_make(frames, FRAME_HAVE, c->nonce, c->peer_nonce, c->tx.have_pos);
	frame_make(frames + FRAME_SIZE, FRAME_UPTO, c->nonce, c->peer_nonce, c->link.tx.tail_pos);
	frame_make(frames + 2 * FRAME_SIZE, FRAME_RETREAT, c->nonce, c->peer_nonce, c->tx.left_pos);
	if (!retreat_piece_begin(c, fd, PIECE_LEAVING))
		return -EAGAIN;
	n = switch_send_now(fd, frames + c->tx.leaving_done, LEAVING_BYTES - c->tx.leaving_done);
	retreat_piece_end(c, PIECE_LEAVING, n);
	return n < 0 ? (int)n : 1;
}

/*
 * ---- Rx ----
 */

bool retreat_far_settle(struct conn *c)
{
	struct ring_rx *rx = &c->link.rx;
	uint64_t most = ring_rx_comes(rx), has, left = c->rx.left_pos;

	if (!(load_relaxed(&c->rx.leaving) & LEAVING_RETREAT) || lane_left(rx->ctl) != LEFT_NOT || !conn_far_stop(c))
		return true;
	if (ring_rx_refresh(rx) < 0)
		return false;
	has = rx->tail_seen;
	if (has - left > most || c->rx.upto_pos - left > most || c->rx.upto_pos - left < has - left)
		return false;
	c->rx.resent_left = c->rx.upto_pos - has;
	peer_publish_u64(&rx->ctl->tx_state.left_at, left);
	peer_publish_u64(&rx->ctl->tx_state.resent_to, c->rx.upto_pos);
	peer_publish_u32(&rx->ctl->tx_state.frames, c->rx.frames);
	peer_publish_u32(&rx->ctl->tx_state.left, LEFT_RESENDS);
	return true;
}

bool retreat_far_take(struct conn *c, int fd, const struct frame_due *due)
{
	uint8_t before = load_relaxed(&c->rx.leaving);

	if (c->rx.fin_known)
		return false;
	switch (due->type) {
	case FRAME_HAVE:
		if (before)
			return false;
		store_relaxed(&c->rx.peer_has, due->pos);
		store_release(&c->rx.leaving, LEAVING_HAVE);
		return true;
	case FRAME_UPTO:
		if (before != LEAVING_HAVE)
			return false;
		c->rx.upto_pos = due->pos;
		store_release(&c->rx.leaving, before | LEAVING_UPTO);
		return true;
	case FRAME_RETREAT:
		if (before != (LEAVING_HAVE | LEAVING_UPTO))
			return false;
		c->rx.left_pos = due->pos;
		store_release(&c->rx.leaving, before | LEAVING_RETREAT);
		log_info("connection %u: the peer has left its ring", c->index);
		/* It has said what it knows of an announcement, too. */
		ring_tx_keep_attention(&c->link.tx, WAKE_ATTN_WORDS);
		store_relaxed(&c->tx.alert, 1);
		return retreat_far_settle(c);
	default:
		return false;
	}
}

void retreat_far_came(struct conn *c, uint64_t n)
{
	if (unlikely(c->rx.resent_left))
		c->rx.resent_left -= n < c->rx.resent_left ? n : c->rx.resent_left;
}

bool retreat_far_is_short(struct conn *c, int fd)
{
	if (likely(!c->rx.resent_left) || load_relaxed(&c->rx.shut))
		return false;
	conn_cut(c, fd, REASON_LINK_LOST);
	return true;
}

/*
 * ---- Ends ----
 */

bool retreat_far_end(struct conn *c, int fd)
{
	int64_t end = now_ns() + patience_ns();

	/* Behind a FIN nothing is said. */
	if (load_relaxed(&c->tx.fin) == TX_FIN_SENT)
		return true;
	if (load_relaxed(&c->tx.state) == TX_RING) {
		int r = conn_fin_wait(c);

		/* Of a dead link more is to be told than the end. */
		if (!r && !conn_far_is_dead(c))
			return true;
		conn_take_tx_attention_locked(c, fd);
		/* Who has let go of the link, and said that it goes, waits for no end. */
		if (load_relaxed(&c->tx.gone_hint) && (c->rx.fin_known || r == -ECONNRESET))
			return true;
		if (load_relaxed(&c->tx.state) == TX_RING && !retreat_far_leave(c, fd))
			return false;
	}
	while (load_relaxed(&c->tx.state) == TX_LEFT) {
		uint64_t sent = c->tx.resent_pos + c->tx.leaving_done;

		if (retreat_resend_last(c, fd) != -EAGAIN)
			return true;
		if (c->tx.resent_pos + c->tx.leaving_done != sent)
			end = now_ns() + patience_ns();
		else if (now_ns() >= end)
			return false;
		ask(fd, POLLOUT, MOMENT_NS);
	}
	return true;
}

static bool is_awaited(struct conn *c)
{
	enum rx_state s = load_relaxed(&c->rx.state);

	if (!conn_far_is_dead(c) || conn_rx_avail(c) || load_relaxed(&c->rx.shut))
		return false;
	return (s == RX_RING && !c->rx.fin_known) || s == RX_LEFT || s == RX_FOLLOW;
}

void retreat_far_await(struct conn *c, int fd, int64_t until)
{
	int64_t left;

	if (likely(!conn_is_far(c)) || !is_awaited(c))
		return;
	/* What this end has for the peer is what it waits for. */
	if (conn_lock_both(c) == 0) {
		retreat_far_end(c, fd);
		conn_unlock_both(c);
	}
	while (is_awaited(c) && (left = until - now_ns()) > 0) {
		short said = ask(fd, POLLIN | POLLRDHUP, left);

		conn_frames_try(c, fd);
		if (said & (POLLRDHUP | POLLHUP | POLLERR))
			return;
	}
}
