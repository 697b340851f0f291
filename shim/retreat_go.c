/* SPDX-License-Identifier: MIT */
/*
 * An end of a connection goes (RETREAT.md sections 3 to 7): what has its descriptor afterwards reads and writes the socket itself. All that the socket
 * holds and is not the program's is taken out first, and the peer is told from where to go on.
 */
#include "shim/retreat.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_lock.h"
#include "shim/far.h"
#include "shim/fdtab.h"
#include "shim/log.h"
#include "shim/ready.h"
#include "shim/retreat_far.h"
#include "shim/retreat_far_go.h"
#include "shim/switch.h"
#include "shim/wait.h"

#define PATIENCE_NS INT64_C(1000000000)
#define MOMENT_NS 1000000

/* Readiness of the socket within a moment: revents, 0 for none. */
static short await(int fd, short events, long ns)
{
	struct pollfd p = { .fd = fd, .events = events };
	struct timespec left = { .tv_nsec = ns };

	return sys_call5(SYS_ppoll, &p, 1, &left, NULL, 8) > 0 ? p.revents : 0;
}

/* The peer has ended its stream: it says nothing more, and sends nothing more. A reset hangs up; POLLERR alone may be completions in the error queue. */
static bool peer_ended(int fd)
{
	return sys_ready_now(fd, POLLRDHUP) & (POLLRDHUP | POLLHUP);
}

/* The sender's system calls take a moment; one that was killed in them holds nothing any more, but the kernel may need time to say so. */
static bool move_await(struct lane_ctl *ctl, int fd)
{
	int64_t end = now_ns() + PATIENCE_NS;

	while (!lane_move_try(ctl, MOVER_RECEIVER)) {
		if (peer_ended(fd)) {
			peer_publish_u32(&ctl->tx_state.moving, MOVER_RECEIVER);
			return true;
		}
		if (now_ns() >= end)
			return false;
		sys_call0(SYS_sched_yield);
	}
	return true;
}

/*
 * ---- Rx ----
 */

/* What the sender has written is in the kernel's hands: at most a moment away. */
static bool bytes_come(int fd, int64_t end)
{
	return now_ns() < end && await(fd, POLLIN, MOMENT_NS) >= 0;
}

static bool take_frames(struct conn *c, int fd, uint32_t all)
{
	int64_t end = now_ns() + PATIENCE_NS;

	while (c->rx.frames != all) {
		struct frame_due due = { FRAME_PROBE, 0, .or_far = conn_is_far(c) };
		enum frame_sight sight = frame_receive(c, fd, &due, NULL);

		if (sight == FRAME_TAKEN ? !retreat_frame_took(c, &due) : sight != FRAME_NOT_YET || !bytes_come(fd, end))
			return false;
	}
	return true;
}

static bool take_twice(struct conn *c, int fd, uint64_t left)
{
	int64_t end = now_ns() + PATIENCE_NS;

	while (left) {
		ssize_t n = sys_recvfrom(fd, NULL, left, MSG_TRUNC | MSG_DONTWAIT, NULL, NULL);

		if (n > 0)
			left -= (uint64_t)n;
		else if (n != -EAGAIN || !bytes_come(fd, end)) {
			conn_keep_error(c, n);
			return false;
		}
	}
	return true;
}

/* How much of what lies in the socket is not the successor's; -EPROTO: that cannot be. */
static ssize_t came_twice(struct conn *c, enum lane_left left, uint64_t tail)
{
	struct lane_ctl *ctl = c->link.rx.ctl;
	uint64_t head = c->link.rx.head_pos, at = peer_read_u64(&ctl->tx_state.left_at), to = peer_read_u64(&ctl->tx_state.resent_to);

	if (left == LEFT_NOT)
		return 0;
	if (head - at > ring_rx_bytes(&c->link.rx) || to - at > tail - at || c->rx.discarded > head - at)
		return -EPROTO;
	if (to - at < head - at)
		head = to;
	return (ssize_t)(head - at - c->rx.discarded);
}

/* The lane is on the ring, or comes back from it. The move lock is held. */
static bool leave_ring_rx(struct conn *c, int fd)
{
	struct lane_ctl *ctl = c->link.rx.ctl;
	bool ended = peer_ended(fd);
	ssize_t unread = ring_rx_avail_min(&c->link.rx, SIZE_MAX), twice;
	enum lane_left left = lane_left(ctl);

	if (unread < 0)
		return false;
	/* What lies in the ring alone is nobody's to send. */
	if (unread && left == LEFT_CUT)
		return false;
	if (unread && ended && (left == LEFT_NOT || peer_read_u64(&ctl->tx_state.resent_to) != c->link.rx.tail_seen))
		return false;
	twice = came_twice(c, left, c->link.rx.tail_seen);
	if (twice < 0 || peer_read_u32(&ctl->tx_state.owed))
		return false;
	return take_frames(c, fd, peer_read_u32(&ctl->tx_state.frames)) && take_twice(c, fd, (uint64_t)twice);
}

/* Out of the socket, into memory that the sender has as well: up to S, and the frame there. */
static bool take_back(struct conn *c, int fd, uint64_t bytes)
{
	int64_t end = now_ns() + PATIENCE_NS;
	enum switch_take took;

	for (uint64_t done = 0; done < bytes;) {
		size_t len = (size_t)(bytes - done);
		void *at = ring_tx_gift(&c->link.tx, c->link.tx.tail_pos + done, &len);
		ssize_t n = sys_recvfrom(fd, at, len, MSG_DONTWAIT, NULL, NULL);

		if (n > 0)
			done += (uint64_t)n;
		else if ((n != -EAGAIN && n != -EINTR) || !bytes_come(fd, end)) {
			conn_keep_error(c, n);
			return false;
		}
	}
	/* The program has not read them: of that the count is to tell, once the lane has passed S. */
	fetch_add(&c->rx.tcp_bytes, bytes);
	while ((took = switch_take(c, fd)) == TAKE_WAIT && bytes_come(fd, end))
		;
	fetch_sub(&c->rx.tcp_bytes, bytes);
	return took == TAKE_RING;
}

/*
 * A SWITCH frame is in the stream, perhaps behind bytes that the program has not read. Nobody can put those back into the socket in its place, but the sender:
 * it gets them back, to send them before what lies in the ring.
 */
static bool carry_out_switch(struct conn *c, int fd)
{
	struct lane_ctl *ctl = c->link.rx.ctl;
	uint64_t unread = switch_read_cap(c);

	if (!unread)
		return take_back(c, fd, 0) && leave_ring_rx(c, fd);
	if (lane_left(ctl) != LEFT_NOT || peer_read_u32(&ctl->tx_state.owed) || peer_ended(fd) || !ring_tx_gift_begin(&c->link.tx, unread))
		return false;
	if (!take_back(c, fd, unread) || !leave_ring_rx(c, fd)) {
		/* They are in nobody's socket any more. */
		conn_cut(c, fd, REASON_LINK_LOST);
		return false;
	}
	peer_publish_u64(&ctl->rx_state.given_at, c->link.tx.tail_pos);
	peer_publish_u64(&ctl->rx_state.given, unread);
	return true;
}

/* Between hosts: the frame of a switch that was about to be written when this end went, or the data that came instead. */
static void await_switch(struct conn *c, int fd)
{
	int64_t end = now_ns() + PATIENCE_NS;

	do
		conn_frames_locked(c, fd);
	while (load_relaxed(&c->rx.state) == RX_ACKED && lane_left(c->link.rx.ctl) != LEFT_NOT && !switch_read_cap(c) && bytes_come(fd, end));
}

static bool has_ended(struct conn *c)
{
	return c->rx.fin_known && conn_rx_avail(c) == 0 && conn_fin_sight(c) == FIN_REACHED;
}

/* ... and what a peer says that leaves a dead link, as it does in its next call. */
static void await_left(struct conn *c, int fd)
{
	int64_t end = now_ns() + PATIENCE_NS;

	while (load_relaxed(&c->rx.state) == RX_RING && !has_ended(c) && !load_relaxed(&c->rx.dead) && bytes_come(fd, end))
		conn_frames_locked(c, fd);
}

static bool go_rx_locked(struct conn *c, int fd)
{
	struct lane_ctl *ctl = c->link.rx.ctl;

	if (conn_is_far(c)) {
		await_switch(c, fd);
		await_left(c, fd);
	}
	switch ((enum rx_state)load_relaxed(&c->rx.state)) {
	case RX_TCP:
	case RX_SEEK:
	case RX_PINNED:
		return !c->rx.stash_len;
	case RX_ACKED:
		if (conn_is_far(c))
			return false;
		if (peer_read_u32(&ctl->tx_state.frames))
			return carry_out_switch(c, fd);
		return !c->rx.stash_len && !peer_read_u32(&ctl->tx_state.owed);
	case RX_RING:
		if (conn_is_far(c))
			return has_ended(c);
		/* fall through */
	case RX_LEFT:
	case RX_FOLLOW:
		return leave_ring_rx(c, fd);
	case RX_ENDED:
		return !load_relaxed(&c->rx.dead) && !load_relaxed(&c->rx.pending_errno) && conn_rx_avail(c) == 0;
	default:
		return false;
	}
}

static bool go_rx(struct conn *c, int fd)
{
	struct lane_ctl *ctl = c->link.rx.ctl;
	bool gone = false;

	if (load_relaxed(&c->rx.state) == RX_ENDED)
		return go_rx_locked(c, fd);
	if (!move_await(ctl, fd))
		return false;
	gone = go_rx_locked(c, fd) && (load_relaxed(&c->rx.state) == RX_PINNED || conn_rx_set(c, RX_PINNED));
	if (gone)
		peer_publish_u32(&ctl->rx_state.asked, ASKED_GONE);
	lane_move_end(ctl);
	return gone;
}

/*
 * ---- Tx ----
 */

/* Nothing more of the ring is sent from here: the receiver has it, or it may not be. */
static bool cut(struct conn *c, int fd)
{
	struct lane_ctl *ctl = c->link.tx.ctl;
	bool gone;

	if (!retreat_move_try(c, fd))
		return false;
	gone = retreat_receiver_is_gone(c);
	if (!gone)
		lane_leave(ctl, LEFT_CUT);
	lane_move_end(ctl);
	return !gone && conn_tx_set(c, TX_PINNED);
}

/* Between hosts nothing can be left to the ring. What the socket does not take at once the peer's kernel may, whatever its program does. */
static int resend_whole(struct conn *c, int fd)
{
	int64_t end = now_ns() + PATIENCE_NS;
	int r;

	while ((r = retreat_resend_kept(c, fd)) == -EAGAIN && now_ns() < end)
		await(fd, POLLOUT, MOMENT_NS);
	return r;
}

static bool go_tx(struct conn *c, int fd)
{
	int r;

	r = load_relaxed(&c->tx.state) == TX_FRAMING ? switch_finish_frame(c, fd) : 0;
	conn_keep_error(c, r);
	if (r < 0)
		return false;
	switch ((enum tx_state)load_relaxed(&c->tx.state)) {
	case TX_TCP:
	case TX_SEEK:
	case TX_ANNOUNCED:
		return switch_stay_tx(c);
	case TX_PINNED:
	case TX_SHUT:
		return true;
	case TX_RING:
		if (!retreat_leave(c, fd))
			return false;
		/* fall through */
	case TX_LEFT:
		if (conn_is_far(c))
			return resend_whole(c, fd) == 0 && conn_tx_set(c, TX_PINNED);
		r = retreat_resend_kept(c, fd);
		return r == 0 || (r == -EAGAIN && cut(c, fd));
	default:
		return false;
	}
}

bool retreat_go(struct conn *c, int fd, enum reason why)
{
	if (load_relaxed(&c->returned))
		return true;
	if (!load_relaxed(&c->linked) || load_relaxed(&c->rx.dead) || load_relaxed(&c->rx.pending_errno))
		return false;
	if (conn_is_far(c) && !retreat_far_away(c, fd, ASKED_GONE, why) && (!conn_far_is_dead(c) || load_relaxed(&c->rx.dead)))
		return false;
	store_relaxed(&c->pinned, 1);
	store_relaxed(&c->passing, 0);
	store_relaxed(&c->reason, (uint8_t)why);
	if (!go_tx(c, fd) || !go_rx(c, fd)) {
		log_info("connection %u: cannot be handed on (%s)", c->index, reason_word(why));
		return false;
	}
	retreat_note_returned(c);
	/* Whichever lane the peer sleeps on. */
	ring_rx_raise_attention(&c->link.rx, WAKE_ATTN_WORDS);
	ring_tx_raise_attention(&c->link.tx, WAKE_ATTN_WORDS);
	log_info("connection %u: back on TCP (%s)", c->index, reason_word(why));
	ready_changed(c);
	return true;
}

void retreat_tell_again(struct conn *c)
{
	(void)bell_ring(c->link.rx.bells.bell_fd, &c->link.rx.bells.peer);
	(void)bell_ring(c->link.tx.bells.bell_fd, &c->link.tx.bells.peer);
	ready_changed(c);
}

bool retreat_go_unlocked(struct conn *c, int fd, enum reason why)
{
	bool gone;

	if (conn_lock_both(c) < 0)
		return false;
	gone = fdtab_get(fd) == c && retreat_go(c, fd, why);
	conn_unlock_both(c);
	return gone;
}

/*
 * What is unread in the ring stays there: a program that waits for it need not wait for a peer that is busy elsewhere, as perhaps itself.
 */
static bool ask_back(struct conn *c, int fd, enum reason why)
{
	store_relaxed(&c->passing, 0);
	store_relaxed(&c->pinned, 1);
	if (conn_is_far(c)) {
		if (retreat_far_away(c, fd, ASKED_GONE, why))
			store_relaxed(&c->reason, (uint8_t)why);
		return load_relaxed(&c->returned);
	}
	peer_publish_u32(&c->link.rx.ctl->rx_state.asked, ASKED_BACK);
	ring_rx_raise_attention(&c->link.rx, WAKE_ATTN_WORDS);
	if (load_relaxed(&c->tx.state) == TX_RING && retreat_leave(c, fd))
		retreat_resend_kept(c, fd);
	return false;
}

/* In the ring, or in front of a switch that is on its way: what only the peer could put back. */
static bool unread_for_long(struct conn *c)
{
	return conn_rx_avail(c) || (load_relaxed(&c->rx.state) == RX_ACKED && peer_read_u32(&c->link.rx.ctl->tx_state.frames) && switch_read_cap(c));
}

bool retreat_back_unlocked(struct conn *c, int fd, enum reason why)
{
	bool back = false, asked = false;

	if (conn_lock_both(c) < 0)
		return false;
	if (fdtab_get(fd) == c) {
		conn_frames_locked(c, fd);
		/* Something may come while this end says that it goes: it is read from the ring. */
		if (load_relaxed(&c->linked) && !load_relaxed(&c->returned) && conn_is_far(c) && !conn_far_is_dead(c)) {
			back = ask_back(c, fd, why) && conn_pin_locked(c, why);
			asked = !conn_far_is_dead(c) || unread_for_long(c);
		}
		if (!back && !asked)
			back = load_relaxed(&c->returned) || !unread_for_long(c) ? retreat_go(c, fd, why) : ask_back(c, fd, why);
	}
	conn_unlock_both(c);
	return back;
}

/*
 * ---- Ends ----
 */

/*
 * To a receiver that has gone: as far as the socket takes it, and with the privilege for that, whatever its size. One that drains its ring would wait for all of that, if
 * its window is small, and the kernel sends what is larger than the window now and then only.
 */
int retreat_resend_last(struct conn *c, int fd)
{
	int all = (int)ring_rx_bytes(&c->link.rx) + (1 << 20), r = retreat_resend_quietly(c, fd);

	if (r == -EAGAIN && sys_setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &all, sizeof(all)) == 0)
		r = retreat_resend_quietly(c, fd);
	return r;
}

bool retreat_sender_goes(struct conn *c, int fd)
{
	int64_t end = now_ns() + PATIENCE_NS;

	if (conn_is_far(c)) {
		/* Its link has died by itself. A peer that closes would answer with a reset what it has read long ago. */
		if (load_relaxed(&c->tx.state) == TX_RING && !load_relaxed(&c->tx.gone_hint))
			retreat_leave(c, fd);
		return load_relaxed(&c->tx.state) != TX_LEFT || resend_whole(c, fd) == 0;
	}
	if (load_relaxed(&c->tx.state) != TX_RING && load_relaxed(&c->tx.state) != TX_LEFT)
		return true;
	store_relaxed(&c->pinned, 1);
	while (!go_tx(c, fd)) {
		/* In the middle of a frame: what is in the ring stays there. */
		if (!retreat_receiver_is_gone(c))
			return true;
		if (now_ns() >= end)
			return false;
		if (load_relaxed(&c->tx.state) == TX_LEFT && retreat_resend_last(c, fd) == -EAGAIN)
			await(fd, POLLOUT, MOMENT_NS);
	}
	return true;
}

/*
 * Not more than a receiver that hands its socket on is likely to have left there: one that drains its ring discards it all. Not to a peer that has ended its own stream: its socket may be closed, and answer with a reset that the ring's bytes would not have drawn. Nor under
 * threads and sets that wait for room: they are about to be told of the end.
 */
static bool worth_resending(struct conn *c, int fd)
{
	ssize_t queued = ring_tx_queued(&c->link.tx);

	return queued > 0 && queued <= RETREAT_RESENT_AT_END && !load_relaxed(&c->tx.gone_hint) && !peer_ended(fd) &&
	       !(peer_read_u32(&c->link.tx.ctl->tx_state.wake) & WAKE_SLEEPERS_MAX);
}

bool retreat_end_begin(struct conn *c, int fd)
{
	int64_t end = now_ns() + PATIENCE_NS;

	if (!load_relaxed(&c->linked))
		return true;
	if (conn_is_far(c))
		return retreat_far_end(c, fd);
	while (now_ns() < end) {
		enum tx_state s;

		retreat_answer(c, fd);
		s = load_relaxed(&c->tx.state);
		if (s != TX_RING && s != TX_LEFT)
			return true;
		if (!retreat_receiver_is_gone(c)) {
			if (s == TX_LEFT || (worth_resending(c, fd) && retreat_leave(c, fd))) {
				if (retreat_resend_quietly(c, fd) != 0)
					cut(c, fd);
				continue;
			}
			if (!retreat_move_try(c, fd))
				continue;
			if (!retreat_receiver_is_gone(c))
				return true;
			lane_move_end(c->link.tx.ctl);
			continue;
		}
		if (s == TX_LEFT && retreat_resend_last(c, fd) == -EAGAIN)
			await(fd, POLLOUT, MOMENT_NS);
	}
	return false;
}

void retreat_end_over(struct conn *c)
{
	if (load_relaxed(&c->linked) && !conn_is_far(c) && peer_read_u32(&c->link.tx.ctl->tx_state.moving) == MOVER_SENDER)
		lane_move_end(c->link.tx.ctl);
}
