/* SPDX-License-Identifier: MIT */
/*
 * The switch of a lane, step by step as in PROTOCOL.md section 4; tests/model/switch.pml checks that no byte is lost, doubled
 * or reordered by it.
 *
 * The SWITCH frame leaves only in a send call that has data to follow it. The other road, writing it as soon as
 * the acknowledgement is seen, met peers that had just closed and turned their FIN into a reset.
 */
#include "shim/switch.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_iov.h"
#include "shim/conn_lock.h"
#include "shim/diag.h"
#include "shim/far.h"
#include "shim/log.h"
#include "shim/options.h"
#include "shim/ready.h"
#include "shim/retreat.h"
#include "shim/retreat_far_go.h"
#include "shim/summary.h"

#define COUNT_TRIES 4

uint32_t switch_little = RETREAT_RESENT_AT_END;

/* Do our counts of this lane agree with the kernel's? 0; -EAGAIN: cannot be told now; -EPROTO: they do not. */
static int check_counts(struct conn *c, int fd, bool tx)
{
	struct diag_bytes kernel;

	for (int i = 0; i < COUNT_TRIES; i++) {
		int r = diag_counts(fd, c->role == CONN_CONNECTED, &kernel);

		if (r == -EAGAIN)
			continue;
		if (r < 0)
			return -EPROTO;
		/* A lane that has ended needs no ring. */
		if (!(tx ? kernel.writable : kernel.readable))
			return -EAGAIN;
		if (tx)
			return kernel.written == load_relaxed(&c->tx.tcp_bytes) ? 0 : -EPROTO;
		return kernel.read == load_relaxed(&c->rx.tcp_bytes) ? 0 : -EPROTO;
	}
	return -EAGAIN;
}

static void lane_switched(struct conn *c, const char *lane)
{
	summary_add_switch();
	if (fetch_add(&c->switches, 1) == 0)
		summary_add_switched(conn_is_far(c) ? TRANSPORT_BIT_VERBS : TRANSPORT_BIT_SHM);
	/* Pinned after the last moment at which this lane could have stayed. */
	else if (!load_relaxed(&c->rx.dead))
		store_relaxed(&c->reason, (uint8_t)REASON_NONE);
	log_info("connection %u: %s lane left TCP after %llu bytes", c->index, lane,
		 (unsigned long long)(lane[0] == 't' ? load_relaxed(&c->tx.tcp_bytes) : load_relaxed(&c->rx.tcp_bytes)));
	ready_changed(c);
}

/* One lane stays on TCP although the other may move. */
static void lane_refused(struct conn *c, enum reason why)
{
	store_relaxed(&c->reason, (uint8_t)why);
	store_relaxed(&c->passing, 0);
	store_relaxed(&c->pinned, 1);
}

/* A peer that lets go of the link before anything went over it most often closes. */
static enum reason reason_of_loss(int heard)
{
	return heard == -ECONNRESET ? REASON_NOT_BUSY : REASON_LINK_LOST;
}

/*
 * The link has died, and this lane has not left TCP. Where the other one had, this is how the connection comes back, and another link may follow: its calls stay the
 * slow ones. True: it stays there for good.
 */
static bool lane_lost(struct conn *c, int heard)
{
	if (load_relaxed(&c->pinned))
		return !load_relaxed(&c->passing);
	if (load_relaxed(&c->switches) == c->switches_before) {
		lane_refused(c, reason_of_loss(heard));
		return true;
	}
	store_relaxed(&c->reason, (uint8_t)REASON_LINK_LOST);
	store_relaxed(&c->passing, 1);
	store_relaxed(&c->pinned, 1);
	retreat_settle(c);
	return false;
}

/*
 * ---- Tx ----
 */

/*
 * What the peer's words say is not in our memory before a pump has put it there. 0; -ESRCH: in this process it never is; -errno of a dead
 * link.
 */
static int hear_words(struct conn *c)
{
	return conn_is_far(c) ? conn_pump_far(c, 0) : 0;
}

#define LOOK_EVERY 16	/* announcements: a power of two */

/*
 * For who announces, and never sleeps: a peer that has let go of the link says so where a sleep would have heard of it, and acknowledges nothing. To find that out with
 * bytes at hand that could be a frame's is too late.
 */
static int hear_answer(struct conn *c)
{
	if (conn_is_far(c) && !(c->tx.announced_seq % LOOK_EVERY))
		return conn_pump_far(c, VERBS_RUNG);
	return hear_words(c);
}

static bool is_lost(int heard)
{
	return heard < 0 && heard != -ESRCH;
}

void switch_announce(struct conn *c)
{
	int r;

	if (load_relaxed(&c->tx.state) != TX_SEEK || !load_relaxed(&c->linked) || load_relaxed(&c->pinned) ||
	    load_relaxed(&c->tx.in_calls) || load_relaxed(&c->tx.gone_hint) || c->exec_soon)
		return;
	r = hear_words(c);
	if (is_lost(r) && lane_lost(c, r))
		conn_tx_set(c, TX_PINNED);
	if (r < 0)
		return;
	c->tx.announced_pos = load_relaxed(&c->tx.tcp_bytes);
	if (++c->tx.announced_seq == 0)
		c->tx.announced_seq = 1;
	if (!conn_tx_set(c, TX_ANNOUNCED))
		return;
	lane_announce(c->link.tx.ctl, c->tx.announced_seq, c->tx.announced_pos);
	ring_tx_raise_attention(&c->link.tx, WAKE_ATTN_WORDS);
}

/*
 * A send that found no room comes again, perhaps at once and for long, and withdraws what stands. Between hosts either is a message, so there
 * such a send only counts.
 */
void switch_announce_after(struct conn *c, ssize_t n)
{
	if (n != -EAGAIN || !conn_is_far(c))
		switch_announce(c);
	else if (load_relaxed(&c->tx.state) == TX_SEEK && c->tx.voids < UINT16_MAX)
		c->tx.voids++;
}

/* Could these bytes be the beginning of the frame that the receiver awaits? */
static bool looks_like_frame(const struct conn *c, const struct iov_walk *walk)
{
	uint8_t frame[FRAME_SIZE], *at;
	struct iov_walk w;
	size_t done = 0;

	if (!walk)
		return true;
	w = *walk;
	frame_make(frame, FRAME_SWITCH, c->nonce, c->peer_nonce, c->tx.announced_pos);
	for (size_t len; done < FRAME_SIZE && (len = iov_piece(&w, &at)); iov_advance(&w, len)) {
		if (len > FRAME_SIZE - done)
			len = FRAME_SIZE - done;
		/* The kernel stops there, and so do we. */
		if (user_range_bad(at, len))
			return true;
		if (!frame_matches(frame, at, done, len))
			return false;
		done += len;
	}
	return true;
}

/*
 * 0, or -errno. Between hosts the receiver decides by the bytes, and needs the word where they could be a frame's: then it must have it. Where
 * that cannot be known any more, neither can what it takes them for.
 */
static int withdraw(struct conn *c, int fd, enum tx_state to, const struct iov_walk *w)
{
	bool told = conn_is_far(c) && peer_read_u32(&c->link.tx.ctl->tx_state.frames) != c->tx.frames;

	retreat_far_frame_void(c);
	lane_void(c->link.tx.ctl, c->tx.announced_seq);
	if (c->tx.voids < UINT16_MAX)
		c->tx.voids++;
	conn_tx_set(c, to);
	if (!conn_is_far(c))
		return 0;
	if (!looks_like_frame(c, w)) {
		far_pump(c, 0);
		return 0;
	}
	if (!far_engine->flush(&c->link, (int)options.patience_ms))
		return 0;
	/* Who has gone awaits no frame that it was not told of. */
	if (retreat_receiver_is_gone(c) && !told)
		return 0;
	if (conn_lock_rx(c) == 0) {
		conn_cut(c, fd, REASON_LINK_LOST);
		store_relaxed(&c->rx.pending_errno, 0);
		lane_unlock(&c->rx.lock);
	}
	return -ECONNRESET;
}

/*
 * The frame is small and the program's next bytes wait behind it, so Nagle's algorithm and TCP_CORK must not hold it back:
 * setting TCP_NODELAY pushes what is queued, whatever it was before.
 */
ssize_t switch_send_now(int fd, const void *bytes, size_t len)
{
	int was = 1, one = 1, zero = 0;
	unsigned was_len = sizeof(was);
	ssize_t n;

	sys_getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &was, &was_len);
	n = sys_sendto(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
	sys_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!was)
		sys_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &zero, sizeof(zero));
	return n;
}

int switch_finish_frame(struct conn *c, int fd)
{
	uint8_t frame[FRAME_SIZE];
	ssize_t n;

	if (load_relaxed(&c->tx.state) != TX_FRAMING)
		return 0;
	if (!retreat_frame_begin(c, fd, PIECE_SWITCH)) {
		if (!retreat_receiver_is_gone(c))
			return -EAGAIN;
		lane_void(c->link.tx.ctl, c->tx.announced_seq);
		conn_tx_set(c, TX_PINNED);
		return 0;
	}
	frame_make(frame, FRAME_SWITCH, c->nonce, c->peer_nonce, c->tx.announced_pos);
	n = switch_send_now(fd, frame + c->tx.rest_done, FRAME_SIZE - c->tx.rest_done);
	retreat_frame_end(c, PIECE_SWITCH, n);
	if (n < 0) {
		conn_kernel_told(c, (int)-n);
		return (int)n;
	}
	if (c->tx.rest_done < FRAME_SIZE)
		return -EAGAIN;
	conn_tx_set(c, TX_RING);
	lane_switched(c, "tx");
	return 0;
}

int switch_before_send(struct conn *c, int fd, const struct iov_walk *w)
{
	int r;

	switch ((enum tx_state)load_relaxed(&c->tx.state)) {
	case TX_ANNOUNCED:
		r = hear_answer(c);
		if (is_lost(r)) {
			bool stays = lane_lost(c, r);

			return withdraw(c, fd, stays ? TX_PINNED : TX_SEEK, w);
		}
		/* A frame to a receiver that has gone would draw the reset that the data is to draw. */
		if (!lane_acked(c->link.tx.ctl, c->tx.announced_seq) || load_relaxed(&c->pinned) ||
		    load_relaxed(&c->tx.gone_hint))
			return withdraw(c, fd, TX_SEEK, w);
		r = check_counts(c, fd, true);
		if (r == -EPROTO) {
			lane_refused(c, REASON_COUNT_MISMATCH);
			return withdraw(c, fd, TX_PINNED, w);
		}
		if (r < 0)
			return withdraw(c, fd, TX_SEEK, w);
		if (conn_is_far(c) && !retreat_far_frame_may(c))
			return withdraw(c, fd, TX_SEEK, w);
		c->tx.rest_done = 0;
		conn_tx_set(c, TX_FRAMING);
		/* fall through */
	case TX_FRAMING:
		r = switch_finish_frame(c, fd);
		if (r < 0 || load_relaxed(&c->tx.state) != TX_RING)
			return r;
		/* Asked while the frame was owed: it is carried out, and followed. */
		retreat_answer(c, fd);
		return load_relaxed(&c->tx.state) == TX_LEFT ? retreat_resend(c, fd) : 1;
	case TX_LEFT:
		return retreat_resend(c, fd);
	case TX_RING:
	case TX_ORPHAN:
		return 1;
	default:
		return 0;
	}
}

bool switch_wants_hold(const struct conn *c)
{
	return load_relaxed(&((struct conn *)c)->tx.state) == TX_ANNOUNCED && c->tx.voids >= c->tx.hold_at &&
	       !lane_acked(c->link.tx.ctl, c->tx.announced_seq);
}

void switch_held_in_vain(struct conn *c)
{
	if (c->tx.hold_step < 1024)
		c->tx.hold_step *= 2;
	c->tx.hold_at = (uint16_t)(c->tx.voids > UINT16_MAX - c->tx.hold_step ? UINT16_MAX : c->tx.voids + c->tx.hold_step);
}

void switch_carry_out(struct conn *c, int fd)
{
	if (load_relaxed(&c->tx.gone_hint) || check_counts(c, fd, true)) {
		switch_withdraw_tx(c);
		return;
	}
	c->tx.rest_done = 0;
	conn_tx_set(c, TX_FRAMING);
	switch_finish_frame(c, fd);
}

void switch_withdraw_tx(struct conn *c)
{
	if (load_relaxed(&c->tx.state) != TX_ANNOUNCED)
		return;
	lane_void(c->link.tx.ctl, c->tx.announced_seq);
	conn_tx_set(c, TX_SEEK);
	/* No data follows that would make it look. */
	ring_tx_raise_attention(&c->link.tx, WAKE_ATTN_WORDS);
}

bool switch_stay_tx(struct conn *c)
{
	switch ((enum tx_state)load_relaxed(&c->tx.state)) {
	case TX_TCP:
	case TX_SEEK:
		return conn_tx_set(c, TX_PINNED);
	case TX_ANNOUNCED:
		lane_void(c->link.tx.ctl, c->tx.announced_seq);
		/* What will be sent is not known: where the word may not have come, the next send finds the announcement standing. */
		return (!conn_is_far(c) || retreat_receiver_is_gone(c) || far_engine->flush(&c->link, (int)options.patience_ms) == 0) && conn_tx_set(c, TX_PINNED);
	case TX_FRAMING:
	case TX_RING:
	case TX_LEFT:
	case TX_ORPHAN:
		return false;
	default:
		return true;
	}
}

/*
 * ---- Rx ----
 */

/*
 * A frame behind bytes that the program has not read stays there, and only the sender can put those into the socket again that it parts: who has ended by then
 * cannot. So it is awaited that the program has read on, unless there is so much that a sender would not send it twice at its end, either.
 */
static bool buries_little(const struct conn *c, uint64_t at)
{
	uint64_t unread = at - load_relaxed(&((struct conn *)c)->rx.tcp_bytes);

	return unread && unread <= switch_little;
}

void switch_acknowledge(struct conn *c, int fd)
{
	struct lane_ctl *ctl = c->link.rx.ctl;
	uint64_t at;
	uint32_t seq;
	int r;

	r = hear_words(c);
	if (load_relaxed(&c->rx.state) == RX_ACKED && lane_voided(ctl, c->rx.acked_seq)) {
		conn_rx_set(c, RX_SEEK);
		retreat_settle(c);
	}
	if (load_relaxed(&c->rx.state) != RX_SEEK || load_relaxed(&c->pinned) || c->rx.stash_len ||
	    load_relaxed(&c->rx.in_calls))
		return;
	if (is_lost(r) && lane_lost(c, r))
		switch_stay_rx(c);
	if (r < 0)
		return;
	seq = lane_announced(ctl, &at);
	if (!seq || seq == c->rx.acked_seq || lane_voided(ctl, seq) || at < load_relaxed(&c->rx.tcp_bytes) || buries_little(c, at))
		return;
	/* Pairs with conn_wait_enters(): who sleeps without a bell sees the next bytes come, by TCP. */
	fence_full();
	if (load_relaxed(&c->rx.in_waits))
		return;
	r = check_counts(c, fd, false);
	if (r == -EPROTO) {
		lane_refused(c, REASON_COUNT_MISMATCH);
		switch_stay_rx(c);
		return;
	}
	if (r < 0)
		return;
	c->rx.acked_seq = seq;
	c->rx.cap_pos = at;
	if (!conn_rx_set(c, RX_ACKED))
		return;
	lane_ack(ctl, seq);
	ring_rx_raise_attention(&c->link.rx, WAKE_ATTN_WORDS);
}

size_t switch_read_cap(const struct conn *c)
{
	struct conn *m = (struct conn *)c;

	if (load_relaxed(&m->rx.state) != RX_ACKED)
		return SIZE_MAX;
	return (size_t)(c->rx.cap_pos - load_relaxed(&m->rx.tcp_bytes));
}

/*
 * The kernel had nothing to read and says that it will stay so. Where our own end is shut for reading it says that of any empty queue,
 * and hands out what comes later all the same.
 */
static bool peer_has_ended(struct conn *c, int fd)
{
	return !load_relaxed(&c->rx.shut) || diag_peer_ended(fd);
}

/* Of these the position is known from the frame itself alone. */
static bool tells_position(uint32_t type)
{
	return type == FRAME_FIN || type == FRAME_HAVE || type == FRAME_UPTO || type == FRAME_RETREAT;
}

/* Are these bytes the frame that is due, as far as they go? */
static bool frame_agrees(struct conn *c, struct frame_due *due, const uint8_t *bytes, size_t len)
{
	uint8_t expected[FRAME_SIZE];

	if (due->or_far && tells_position(frame_type_of(bytes, len))) {
		due->type = (enum frame_type)frame_type_of(bytes, len);
		due->pos = frame_pos_of(bytes, len);
		if (len < 16)
			len = 8;
	} else if (due->or_far && len < 8) {
		len = len < 4 ? len : 4;
	}
	frame_make(expected, due->type, c->peer_nonce, c->nonce, due->pos);
	return frame_matches(expected, bytes, 0, len);
}

enum frame_sight frame_receive(struct conn *c, int fd, struct frame_due *due, bool (*is_data)(struct conn *c))
{
	uint8_t bytes[FRAME_SIZE];
	size_t have = c->rx.stash_len;
	ssize_t n = sys_recvfrom(fd, bytes + have, FRAME_SIZE - have, MSG_PEEK | MSG_DONTWAIT, NULL, NULL);

	if (n == -EAGAIN || n == -EINTR || (n == 0 && !peer_has_ended(c, fd)))
		return FRAME_NOT_YET;
	if (n <= 0) {
		/* The error that the peek took is the program's to hear. The beginning of a frame is no data. */
		if (n < 0)
			conn_set_pending(c, (int)-n);
		c->rx.stash_len = 0;
		return FRAME_END;
	}
	memcpy(bytes, c->rx.stash, have);
	if (!frame_agrees(c, due, bytes, have + (size_t)n))
		return FRAME_NONE;
	if (have + (size_t)n < FRAME_SIZE && is_data && is_data(c))
		return FRAME_NONE;
	if (sys_recvfrom(fd, c->rx.stash + have, (size_t)n, MSG_DONTWAIT, NULL, NULL) != n)
		return FRAME_NOT_YET;
	c->rx.stash_len = (uint8_t)(have + (size_t)n);
	if (c->rx.stash_len < FRAME_SIZE)
		return FRAME_NOT_YET;
	c->rx.stash_len = 0;
	return FRAME_TAKEN;
}

/* Asked after the bytes at S were seen: what the sender of a voided announcement wrote there, it wrote after the void. */
static bool announcement_is_void(struct conn *c)
{
	hear_words(c);
	return lane_voided(c->link.rx.ctl, c->rx.acked_seq);
}

enum switch_take switch_take(struct conn *c, int fd)
{
	struct frame_due due = { FRAME_SWITCH, c->rx.cap_pos };

	switch (frame_receive(c, fd, &due, announcement_is_void)) {
	case FRAME_TAKEN:
		c->rx.proven = 1;
		c->rx.frames++;
		retreat_far_switched(c, fd);
		conn_rx_set(c, RX_RING);
		lane_switched(c, "rx");
		return TAKE_RING;
	case FRAME_NOT_YET:
		return TAKE_WAIT;
	case FRAME_END:
		fetch_add(&c->rx.ends, 1);
		conn_rx_set(c, RX_ENDED);
		return TAKE_END;
	case FRAME_NONE:
		break;
	}
	/* Between hosts the void may come after the data that it tells of. */
	if (!announcement_is_void(c) && !conn_is_far(c)) {
		log_warn("connection %u: the bytes at the announced offset are no frame", c->index);
		lane_refused(c, REASON_BAD_FRAME);
	}
	conn_rx_set(c, RX_SEEK);
	return TAKE_DATA;
}

/*
 * Who waits in the kernel for bytes hears nothing of a receiver of the other lane that goes, and needs what lies in its ring; or of a link to another host
 * that dies, and does nothing for the lane that comes back from it.
 */
static bool waits_for_tx(struct conn *c)
{
	enum tx_state s = load_relaxed(&c->tx.state);

	return conn_is_linked(c) && (s == TX_RING || s == TX_LEFT || s == TX_FRAMING);
}

bool switch_stay_rx(struct conn *c)
{
	switch ((enum rx_state)load_relaxed(&c->rx.state)) {
	case RX_TCP:
		return conn_rx_set(c, RX_PINNED);
	case RX_SEEK:
		return c->rx.stash_len || c->rx.resent_left || waits_for_tx(c) || conn_rx_set(c, RX_PINNED);
	case RX_ACKED:
	case RX_RING:
	case RX_LEFT:
	case RX_FOLLOW:
	case RX_ENDED:
		return false;
	default:
		return true;
	}
}
