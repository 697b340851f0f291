/* SPDX-License-Identifier: MIT */
/*
 * The retreat of a lane, as its sender makes it and its receiver follows. How an end goes is in retreat_go.c.
 *
 * What is not consumed is sent again straight from the ring, which the sender maps as well: no copy, and nothing to be kept for it. The
 * other road, leaving it to the receiver's ring alone, would keep a receiver from passing its socket on later.
 */
#include "shim/retreat.h"

#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_lock.h"
#include "shim/conn_use.h"
#include "shim/far.h"
#include "shim/log.h"
#include "shim/nego.h"
#include "shim/ready.h"
#include "shim/renew.h"
#include "shim/retreat_far.h"
#include "shim/summary.h"
#include "shim/switch.h"

static bool tx_is_on_tcp(struct conn *c)
{
	enum tx_state s = load_relaxed(&c->tx.state);

	return s == TX_SEEK || s == TX_PINNED;
}

static bool rx_is_on_tcp(struct conn *c)
{
	enum rx_state s = load_relaxed(&c->rx.state);

	return (s == RX_SEEK && !c->rx.stash_len) || s == RX_PINNED;
}

void retreat_note_returned(struct conn *c)
{
	if (exchange(&c->returned, 1))
		return;
	if (load_relaxed(&c->switches) != c->switches_before) {
		summary_add_retreat();
		if (fetch_add(&c->retreats, 1) == 0)
			summary_add_retreated();
	}
	/* The link has no use any more: see renew.h. */
	nego_look_soon(&c->nego);
}

void retreat_settle(struct conn *c)
{
	if (load_relaxed(&c->pinned) && load_relaxed(&c->linked) && tx_is_on_tcp(c) && rx_is_on_tcp(c))
		retreat_note_returned(c);
}

/* A peer that goes stays where it is: another link would be sought in vain. */
static void pin_in_passing(struct conn *c)
{
	bool gone = lane_asked(c->link.tx.ctl) == ASKED_GONE;

	if (!load_relaxed(&c->pinned)) {
		store_relaxed(&c->reason, (uint8_t)REASON_RETREAT);
		store_relaxed(&c->passing, !gone);
		store_relaxed(&c->pinned, 1);
	} else if (gone) {
		store_relaxed(&c->passing, 0);
	}
}

/* Pinned, but by the lane's next call: until then an error that is still to be told finds the slow way. */
static void back_on_tcp(struct conn *c, const char *lane)
{
	pin_in_passing(c);
	retreat_settle(c);
	log_info("connection %u: %s lane is back on TCP", c->index, lane);
	ready_changed(c);
}

/*
 * ---- Tx ----
 */

bool retreat_receiver_is_gone(const struct conn *c)
{
	return lane_asked(c->link.tx.ctl) >= ASKED_GONE;
}

/* The lane is on the ring, and the move lock is held. */
static bool leave_locked(struct conn *c)
{
	struct ring_tx *tx = &c->link.tx;

	if (c->tx.probe_done || ring_tx_refresh(tx) < 0)
		return false;
	ring_tx_unclaim(tx);
	c->tx.left_pos = c->tx.resent_pos = tx->head_seen;
	peer_publish_u64(&tx->ctl->tx_state.left_at, tx->head_seen);
	peer_publish_u64(&tx->ctl->tx_state.resent_to, tx->head_seen);
	lane_leave(tx->ctl, LEFT_RESENDS);
	conn_tx_set(c, TX_LEFT);
	return true;
}

/*
 * The receiver has shut both directions, or closed, with bytes of the ring unread: its kernel would answer them with a reset, which they have not drawn on TCP, where they came before.
 */
static bool must_not_come_twice(struct conn *c)
{
	return unlikely(load_relaxed(&c->tx.gone_hint) || ring_tx_attention(&c->link.tx) & WAKE_ATTN_KERNEL) && conn_tx_untaken(c);
}

bool retreat_leave(struct conn *c, int fd)
{
	bool left;

	/* Where the end is being told, that brings it back. */
	if (conn_is_far(c))
		return !load_relaxed(&c->tx.fin) && retreat_far_leave(c, fd);
	if (must_not_come_twice(c) || !retreat_move_try(c, fd))
		return false;
	left = leave_locked(c);
	lane_move_end(c->link.tx.ctl);
	if (!left)
		return false;
	log_info("connection %u: tx lane leaves the ring after %llu bytes, %llu not taken", c->index,
		 (unsigned long long)c->link.tx.tail_pos, (unsigned long long)(c->link.tx.tail_pos - c->link.tx.head_seen));
	ring_tx_raise_attention(&c->link.tx, WAKE_ATTN_WORDS);
	ready_changed(c);
	return true;
}

bool retreat_answer(struct conn *c, int fd)
{
	if (conn_is_far(c) && !retreat_receiver_is_gone(c))
		return retreat_far_answer(c, fd);
	if (lane_asked(c->link.tx.ctl) == ASKED_NOTHING)
		return true;
	switch ((enum tx_state)load_relaxed(&c->tx.state)) {
	case TX_RING:
		/* One that owes the rest of a probe leaves when that is out. */
		return retreat_leave(c, fd) || c->tx.probe_done || (!conn_is_far(c) && must_not_come_twice(c));
	case TX_FRAMING:
		/* It was told of before who goes has said so, and is waited for. */
		return !conn_is_far(c) || switch_finish_frame(c, fd) < 0 || retreat_leave(c, fd);
	case TX_SEEK:
	case TX_ANNOUNCED:
		pin_in_passing(c);
		/* Its calls stay the slow ones, which nobody is inside of when the next link comes. */
		if (load_relaxed(&c->passing))
			switch_withdraw_tx(c);
		else if (!switch_stay_tx(c))
			return true;
		back_on_tcp(c, "tx");
		return true;
	default:
		return true;
	}
}

/* What came before the ring, and a receiver that has gone had not read. NULL: it lies. */
static const void *given_piece(struct conn *c, size_t *len)
{
	struct lane_ctl *ctl = c->link.tx.ctl;
	uint64_t given = peer_read_u64(&ctl->rx_state.given);

	if (given < c->tx.given_done || given > ring_rx_bytes(&c->link.rx))
		return NULL;
	*len = (size_t)(given - c->tx.given_done);
	return ring_rx_gift(&c->link.rx, peer_read_u64(&ctl->rx_state.given_at) + c->tx.given_done, len);
}

/* One piece, or what makes it needless. The move lock is held. 0: nothing is owed; 1: go on; -errno. */
static int resend_piece(struct conn *c, int fd)
{
	struct ring_tx *tx = &c->link.tx;
	struct lane_ctl *ctl = tx->ctl;
	bool gone = retreat_receiver_is_gone(c);
	enum piece what = PIECE_RESENT;
	const void *at;
	size_t len = 0;
	ssize_t n;
	int r;

	if (conn_is_far(c)) {
		r = retreat_far_frames(c, fd);
		if (r)
			return r;
	}
	if (ring_tx_refresh(tx) < 0)
		return -EPROTO;
	/* What it took before it went is not in the socket; what it takes from a ring that it still has is there for nothing. */
	if (gone && (int64_t)(tx->head_seen - c->tx.resent_pos) > 0)
		c->tx.resent_pos = tx->head_seen;
	/* Between hosts no word says so any more: what was said is sent. */
	if (!gone && !conn_is_far(c) && tx->head_seen == tx->tail_pos && c->tx.resent_pos != tx->tail_pos) {
		lane_leave(ctl, LEFT_CUT);
		/* It waits for what is not sent again, or for this word. */
		ring_tx_raise_attention(tx, WAKE_ATTN_WORDS);
		return 0;
	}
	at = gone ? given_piece(c, &len) : NULL;
	if (gone && !at)
		return -EPROTO;
	if (len) {
		what = PIECE_GIVEN;
	} else {
		len = (size_t)(tx->tail_pos - c->tx.resent_pos);
		if (!len)
			return 0;
		at = ring_tx_peek(tx, c->tx.resent_pos, &len);
	}
	if (!retreat_piece_begin(c, fd, what))
		return -EAGAIN;
	n = switch_send_now(fd, at, len);
	retreat_piece_end(c, what, n);
	return n < 0 ? (int)n : 1;
}

int retreat_resend_quietly(struct conn *c, int fd)
{
	int r = 1;

	while (r > 0) {
		if (!retreat_move_try(c, fd))
			return -EAGAIN;
		r = resend_piece(c, fd);
		lane_move_end(c->link.tx.ctl);
	}
	if (r == 0) {
		conn_tx_set(c, TX_SEEK);
		/* The kernel's socket was never full, perhaps, and makes no edge for who found the ring so. */
		conn_note_room(c);
	}
	/* A head that lies: the receiver's bytes are its own loss, but it must not be served with the wrong ones. */
	return r == -EPROTO ? -ECONNRESET : r;
}

int retreat_resend(struct conn *c, int fd)
{
	int r = retreat_resend_quietly(c, fd);

	if (r == 0)
		back_on_tcp(c, "tx");
	return r;
}

int retreat_resend_kept(struct conn *c, int fd)
{
	int r = retreat_resend(c, fd);

	conn_keep_error(c, r);
	return r;
}

void retreat_push(struct conn *c, int fd)
{
	if (load_relaxed(&c->tx.state) == TX_FRAMING && retreat_owes(c) && !retreat_far_answer(c, fd))
		return;
	if (load_relaxed(&c->tx.state) != TX_LEFT || (!retreat_owes(c) && conn_tx_untaken(c)))
		return;
	retreat_resend_kept(c, fd);
}

bool retreat_owes(const struct conn *c)
{
	enum tx_state s = load_relaxed(&((struct conn *)c)->tx.state);

	/* Between hosts the bytes are in the sender's ring alone, as is the rest of a frame of a switch that is carried out in spite of all. */
	if (unlikely(conn_is_far(c)) && conn_far_is_dead(c))
		return s == TX_LEFT || s == TX_FRAMING;
	return unlikely(s == TX_LEFT) && retreat_receiver_is_gone(c);
}

void retreat_serve(struct conn *c, int fd)
{
	if (likely(!conn_tx_attention(c)) && likely(load_relaxed(&c->tx.state) != TX_LEFT) && likely(!renew_leaves(c)) && !retreat_owes(c))
		return;
	if (!conn_trylock_tx(c))
		return;
	if (conn_call_has(c, fd) && load_relaxed(&c->linked)) {
		conn_take_tx_attention_locked(c, fd);
		if (renew_leaves(c))
			retreat_leave(c, fd);
		retreat_push(c, fd);
	}
	lane_unlock(&c->tx.lock);
}

/*
 * ---- Rx ----
 */

bool retreat_left(struct conn *c)
{
	if (load_relaxed(&c->rx.state) == RX_LEFT)
		return true;
	if (load_relaxed(&c->rx.state) != RX_RING || lane_left(c->link.rx.ctl) == LEFT_NOT)
		return false;
	c->rx.left_pos = peer_read_u64(&c->link.rx.ctl->tx_state.left_at);
	c->rx.discarded = 0;
	conn_rx_set(c, RX_LEFT);
	ready_changed(c);
	return true;
}

static void lied(struct conn *c, int fd)
{
	conn_lied(c, fd, REASON_BAD_POSITION);
}

/* The sender has left and the ring is drained: from where on does TCP repeat it? */
static bool begin_to_follow(struct conn *c, int fd)
{
	struct ring_rx *rx = &c->link.rx;

	/* The last look at the tail comes after what says that it is final. */
	if (ring_rx_refresh(rx) < 0) {
		lied(c, fd);
		return false;
	}
	if (rx->tail_seen != rx->head_pos)
		return false;
	if (rx->head_pos - c->rx.left_pos > ring_rx_bytes(rx)) {
		lied(c, fd);
		return false;
	}
	c->rx.proven = 0;
	/* A sender that sleeps need not send again what is drained now. */
	if (lane_left(rx->ctl) == LEFT_RESENDS && peer_read_u64(&rx->ctl->tx_state.resent_to) != rx->tail_seen)
		ring_rx_raise_attention(rx, WAKE_ATTN_WORDS);
	return conn_rx_set(c, RX_FOLLOW);
}

/* How many bytes of the socket came twice, of which -EPROTO: that cannot be. */
static ssize_t overlap(struct conn *c)
{
	struct lane_ctl *ctl = c->link.rx.ctl;
	uint64_t most = c->link.rx.tail_seen - c->rx.left_pos, n = most;

	if (lane_left(ctl) == LEFT_CUT)
		n = peer_read_u64(&ctl->tx_state.resent_to) - c->rx.left_pos;
	return n > most || n < c->rx.discarded ? -EPROTO : (ssize_t)(n - c->rx.discarded);
}

static void met_end(struct conn *c, int fd)
{
	if (conn_is_far(c) && overlap(c) >= 0 && (overlap(c) > 0 || c->rx.resent_left) && !load_relaxed(&c->rx.shut)) {
		conn_cut(c, fd, REASON_LINK_LOST);
		return;
	}
	fetch_add(&c->rx.ends, 1);
	conn_take_rx_attention(c);
	conn_rx_set(c, RX_ENDED);
	conn_peer_ended(c);
	ready_changed(c);
}

bool retreat_frame_took(struct conn *c, const struct frame_due *due)
{
	c->rx.frames++;
	return due->type == FRAME_PROBE || (due->type == FRAME_FIN && conn_fin_came(c, due->pos));
}

/* True: one more frame is out of the way. */
static bool take_frame(struct conn *c, int fd)
{
	struct frame_due due = { FRAME_PROBE, 0, .or_far = conn_is_far(c) };

	switch (frame_receive(c, fd, &due, NULL)) {
	case FRAME_TAKEN:
		if (retreat_frame_took(c, &due))
			return true;
		lied(c, fd);
		return false;
	case FRAME_NOT_YET:
		return false;
	case FRAME_NONE:
		conn_lied(c, fd, REASON_BAD_FRAME);
		return false;
	case FRAME_END:
		met_end(c, fd);
		return false;
	}
	return false;
}

bool retreat_overlaps(struct conn *c)
{
	return overlap(c) > 0;
}

size_t retreat_inq_behind(struct conn *c, int fd)
{
	uint32_t frames = peer_read_u32(&c->link.rx.ctl->tx_state.frames) - c->rx.frames;
	ssize_t twice = overlap(c);
	uint64_t not_its;
	int kernel = 0;

	if (twice < 0 || sys_call3(SYS_ioctl, fd, SIOCINQ, &kernel) < 0 || kernel < 0)
		return 0;
	not_its = (uint64_t)twice + (uint64_t)frames * FRAME_SIZE;
	return (uint64_t)kernel > not_its ? (size_t)((uint64_t)kernel - not_its) : 0;
}

/* 1: go on; 0: nothing is there, or all of it is done; the state says which. */
static bool discard(struct conn *c, int fd)
{
	ssize_t left = overlap(c), n = 0;

	/* The bytes are looked at first: who cuts says so before it writes on. */
	if (left > 0) {
		n = sys_recvfrom(fd, NULL, (size_t)left, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT, NULL, NULL);
		if (n == 0) {
			met_end(c, fd);
			return false;
		}
		if (n < 0 && n != -EAGAIN && n != -EINTR) {
			conn_set_pending(c, (int)-n);
			met_end(c, fd);
			return false;
		}
		left = overlap(c);
	}
	if (left < 0) {
		lied(c, fd);
		return false;
	}
	if (left == 0) {
		conn_rx_set(c, RX_SEEK);
		back_on_tcp(c, "rx");
		return false;
	}
	n = n < left ? n : left;
	if (n <= 0 || sys_recvfrom(fd, NULL, (size_t)n, MSG_TRUNC | MSG_DONTWAIT, NULL, NULL) != n)
		return false;
	c->rx.discarded += (uint64_t)n;
	return true;
}

static bool frames_come(struct conn *c)
{
	return c->rx.frames != peer_read_u32(&c->link.rx.ctl->tx_state.frames);
}

bool retreat_clear(struct conn *c, int fd)
{
	/* From another host what came by TCP begins where anything is missing, and was looked at when it was taken. */
	uint64_t twice = conn_is_far(c) ? 0 : c->link.rx.head_pos - c->rx.left_pos;

	if (ring_rx_refresh(&c->link.rx) < 0 || twice > ring_rx_bytes(&c->link.rx)) {
		lied(c, fd);
		return false;
	}
	while (load_relaxed(&c->rx.state) == RX_LEFT) {
		bool frames = frames_come(c);

		if (!frames && overlap(c) == 0)
			return true;
		if (!(frames ? take_frame(c, fd) : discard(c, fd)))
			return false;
	}
	return false;
}

void retreat_clear_taken(struct conn *c, int fd)
{
	while (load_relaxed(&c->rx.state) == RX_LEFT) {
		int64_t left = (int64_t)(c->link.rx.head_pos - c->rx.left_pos - c->rx.discarded), most = retreat_overlaps(c) ? left : 0;
		ssize_t n;

		if (frames_come(c)) {
			if (!take_frame(c, fd))
				return;
			continue;
		}
		if (most <= 0)
			return;
		n = sys_recvfrom(fd, NULL, (size_t)most, MSG_TRUNC | MSG_DONTWAIT, NULL, NULL);
		conn_keep_error(c, n);
		if (n <= 0)
			return;
		c->rx.discarded += (uint64_t)n;
	}
}

void retreat_follow(struct conn *c, int fd)
{
	if (load_relaxed(&c->rx.state) == RX_LEFT && !begin_to_follow(c, fd))
		return;
	while (load_relaxed(&c->rx.state) == RX_FOLLOW) {
		if (!(frames_come(c) ? take_frame(c, fd) : discard(c, fd)))
			return;
	}
}
