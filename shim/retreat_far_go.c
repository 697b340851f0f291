/* SPDX-License-Identifier: MIT */
/*
 * See retreat_far_go.h. No lock spans two hosts. What a move lock does on one, two messages do here, of which each is known to have arrived before its sender looks for the
 * other: who writes a frame says so first, who goes says so first, and so at least one of them knows of the other. tests/model/retreat_gone.pml is this.
 *
 * The other road, waiting for the frames with which a peer leaves a dead link, waits for the peer's program, and that may be in no call for long.
 */
#include "shim/retreat_far_go.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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
#include "shim/options.h"
#include "shim/ready.h"
#include "shim/retreat.h"
#include "shim/switch.h"
#include "shim/wait.h"

#define SOON_NS INT64_C(1000000000)
#define HEARD_NS 200000000
#define SOCKET_KEEPS 8192
#define FEW 8	/* need no memory but the stack */

/* The peer's device has all that was said. */
static bool is_heard(struct conn *c)
{
	return far_engine->flush(&c->link, (int)options.patience_ms) == 0;
}

bool retreat_far_frame_soon(struct conn *c)
{
	uint32_t frames = c->tx.frames + 1;

	/* A peer that has let go is heard before anything more is said to it. */
	if (peer_read_u32(&c->link.tx.ctl->tx_state.frames) == frames || conn_pump_far(c, VERBS_RUNG) < 0)
		return false;
	peer_publish_u32(&c->link.tx.ctl->tx_state.frames, frames);
	return true;
}

bool retreat_far_frame_may(struct conn *c)
{
	retreat_far_frame_soon(c);
	/* Looked for after that is known to have arrived. */
	return is_heard(c) && conn_pump_far(c, 0) == 0 && !retreat_receiver_is_gone(c);
}

void retreat_far_frame_void(struct conn *c)
{
	if (conn_is_far(c))
		peer_publish_u32(&c->link.tx.ctl->tx_state.frames, c->tx.frames);
}

bool retreat_far_heard(struct conn *c)
{
	int64_t until = 0;

	while (!retreat_left(c)) {
		if (!conn_is_far(c) || conn_far_is_dead(c))
			return retreat_left(c);
		conn_pump_far(c, 0);
		if (!until)
			until = now_ns() + HEARD_NS;
		else if (now_ns() >= until)
			return false;
		sys_call0(SYS_sched_yield);
	}
	return true;
}

/*
 * While an end is being told, or in the middle of a frame, nothing else is said. Nor where a process that goes on has told its end, in front of an exec that failed: the peer
 * asks by frames of which nobody is told whether its socket is there.
 */
static bool may_say(struct conn *c)
{
	enum tx_state tx = load_relaxed(&c->tx.state);
	uint8_t fin = load_relaxed(&c->tx.fin);

	if ((fin && (fin != TX_FIN_SENT || !load_relaxed(&c->tx.shut))) || (load_relaxed(&c->tx.shut) && load_relaxed(&c->rx.shut)))
		return false;
	return !conn_far_is_dead(c) && conn_far_fd(c) >= 0 && !load_relaxed(&c->rx.dead) && !load_relaxed(&c->rx.pending_errno) &&
	       !load_relaxed(&c->tx.gone_hint) && !c->tx.probe_done && tx != TX_FRAMING && tx != TX_LEFT && tx != TX_ORPHAN;
}

static void want(struct conn *c, enum lane_asked asked)
{
	peer_publish_u32(&c->link.rx.ctl->rx_state.asked, (uint32_t)asked);
}

/* Is the peer about to say that it goes? That it has gone, or its link, is noted by a pump, which is below 0. */
static int peer_is_about_to(struct conn *c)
{
	int r = conn_pump_far(c, 0);

	return r < 0 ? r : lane_asked(c->link.tx.ctl) == ASKED_SOON;
}

static int say_soon(struct conn *c)
{
	bool heard;
	int r;

	want(c, ASKED_SOON);
	heard = is_heard(c);
	r = peer_is_about_to(c);
	return heard || r < 0 ? r : -ETIMEDOUT;
}

/* It is in the middle of that call: it goes, or says within a moment that it does not. */
static int await_peer(struct conn *c)
{
	int64_t until = now_ns() + SOON_NS;
	int r;

	while ((r = peer_is_about_to(c)) > 0 && now_ns() < until)
		sys_call0(SYS_sched_yield);
	return r;
}

static void take_soon_back(struct conn *c)
{
	want(c, ASKED_NOTHING);
	far_pump(c, VERBS_LEAVE);
}

/*
 * Of two that are about to, each of which has told the other so before it looks, at least one sees it. Who connected takes it back then, and waits for the other one; who
 * accepted waits until that has happened, or the other, which may have seen nothing, has gone. So only one ever says it. Waits for the peer's device first, which may take long:
 * then it is known that the link lives. False: not now.
 */
static bool is_my_turn(struct conn *c)
{
	int r = say_soon(c);

	while (r > 0 && c->role != CONN_ACCEPTED) {
		take_soon_back(c);
		if (await_peer(c))
			return false;
		r = say_soon(c);
	}
	if (r > 0)
		r = await_peer(c);
	if (r)
		take_soon_back(c);
	return !r;
}

/* 1: the peer has it; 0: it has not, and this end stays; -1: nobody knows. */
static int say(struct conn *c, enum lane_asked how)
{
	int64_t until;
	bool heard;

	switch_withdraw_tx(c);
	if (!is_my_turn(c))
		return 0;
	retreat_far_frame_void(c);
	peer_publish_u64(&c->link.tx.ctl->tx_state.left_at, c->tx.left_pos);
	want(c, how);
	heard = is_heard(c);
	/* Nothing lands any more, and what has is known: the peer's going, too. */
	until = now_ns() + SOON_NS;
	while (!conn_far_stop(c) && now_ns() < until)
		sys_call0(SYS_sched_yield);
	if (!conn_far_is_dead(c))
		return -1;
	if (!retreat_receiver_is_gone(c))
		return heard ? 1 : -1;
	want(c, ASKED_NOTHING);
	return 0;
}

/*
 * A frame was told of that was not written yet: the sender's end. It is written by a sender that does not know that this end goes; one that does
 * sends again, as it has the ring's last bytes. Which of them shows in what comes, and comes soon: it is in that very call.
 */
static void await_end(struct conn *c, int fd)
{
	int64_t until = now_ns() + SOON_NS;

	while (!c->rx.fin_known && now_ns() < until) {
		struct frame_due due = { FRAME_PROBE, 0, .or_far = true };
		struct pollfd p = { .fd = fd, .events = POLLIN };
		struct timespec moment = { .tv_nsec = 1000000 };

		switch (frame_receive(c, fd, &due, NULL)) {
		case FRAME_TAKEN:
			c->rx.frames++;
			if (due.type == FRAME_FIN && !conn_fin_came(c, due.pos))
				return;
			continue;
		case FRAME_NOT_YET:
			sys_call5(SYS_ppoll, &p, 1, &moment, NULL, 8);
			continue;
		default:
			return;
		}
	}
}

/* As if the peer had said it on one host: from where it sends again, and how many frames come before that. */
static void note_left(struct conn *c, int fd)
{
	struct ring_rx *rx = &c->link.rx;
	uint64_t spilled = load_unlocked(&rx->spill_pos), from = rx->head_pos;
	uint32_t frames = peer_read_u32(&rx->ctl->tx_state.frames);
	enum rx_state s = load_relaxed(&c->rx.state);

	if (s == RX_ACKED && (lane_voided(rx->ctl, c->rx.acked_seq) || frames == c->rx.frames)) {
		conn_rx_set(c, RX_SEEK);
		return;
	}
	if (s == RX_RING && frames != c->rx.frames)
		await_end(c, fd);
	/* A sender that has ended says where, and that all of it is here. */
	if ((s != RX_RING && s != RX_ACKED) || c->rx.fin_known)
		return;
	if ((int64_t)(spilled - from) > 0)
		from = spilled;
	peer_publish_u64(&rx->ctl->tx_state.left_at, from);
	peer_publish_u64(&rx->ctl->tx_state.resent_to, ring_rx_published(rx));
	/* In front of a switch lies what the program has not read: what comes behind it shows later. */
	c->rx.end_told = s == RX_ACKED && frames - c->rx.frames > 1;
	peer_publish_u32(&rx->ctl->tx_state.frames, c->rx.frames + (s == RX_ACKED));
	peer_publish_u32(&rx->ctl->tx_state.left, LEFT_RESENDS);
	retreat_left(c);
}

void retreat_far_switched(struct conn *c, int fd)
{
	if (likely(!c->rx.end_told))
		return;
	c->rx.end_told = 0;
	await_end(c, fd);
	/* Nothing comes again. */
	if (c->rx.fin_known)
		peer_publish_u32(&c->link.rx.ctl->tx_state.left, LEFT_NOT);
}

/* Does the socket take so much, and at once? Of its buffer the kernel needs a part for itself. */
static bool takes_at_once(int fd, uint64_t bytes)
{
	int queued = 0, room = 0;
	unsigned len = sizeof(room);

	if (sys_call3(SYS_ioctl, fd, SIOCOUTQ, &queued) < 0 || sys_getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, &len) < 0)
		return false;
	return bytes <= RETREAT_RESENT_AT_END && 2 * ((uint64_t)queued + bytes) + SOCKET_KEEPS <= (uint64_t)room;
}

/*
 * The peer has all of it in its ring. What it may not have read is sent again all the same, in case that it goes, too: whatever it is by a family, which is there to go
 * on with it, else what is sure to be out before this end is another program.
 */
static void find_place(struct conn *c, int fd, bool family)
{
	struct ring_tx *tx = &c->link.tx;
	bool known = ring_tx_refresh(tx) >= 0;

	/* Behind an end nothing is. */
	if (load_relaxed(&c->tx.state) != TX_RING || load_relaxed(&c->tx.fin))
		known = false;
	c->tx.left_pos = known && (family || takes_at_once(fd, tx->tail_pos - tx->head_seen)) ? tx->head_seen : tx->tail_pos;
	c->tx.resent_pos = c->tx.left_pos;
}

/* It closes, or has shut both directions: it said so before it let go of the link, and reads nothing more. */
static bool peer_closes(struct conn *c)
{
	return load_relaxed(&c->tx.gone_hint) || ring_tx_attention(&c->link.tx) & WAKE_ATTN_KERNEL;
}

static void leave_tx(struct conn *c, int fd)
{
	if (load_relaxed(&c->tx.state) != TX_RING || load_relaxed(&c->tx.fin))
		return;
	/* Its kernel would answer what comes twice with a reset. */
	if (peer_closes(c))
		c->tx.resent_pos = c->link.tx.tail_pos;
	conn_tx_set(c, TX_LEFT);
	retreat_resend_kept(c, fd);
}

/* Both streams have ended, and all of the peer's is here: nothing has to be known of it any more, and it lets go of the link when it likes. */
static bool is_over(struct conn *c, int fd)
{
	if (!load_relaxed(&c->tx.shut) && load_relaxed(&c->tx.fin) != TX_FIN_SENT)
		return false;
	switch ((enum rx_state)load_relaxed(&c->rx.state)) {
	case RX_ENDED:
		return true;
	case RX_RING:
		return conn_fin_sight(c) == FIN_REACHED;
	case RX_SEEK:
	case RX_PINNED:
		return sys_ready_now(fd, POLLRDHUP) & POLLRDHUP;
	default:
		return false;
	}
}

bool retreat_far_away(struct conn *c, int fd, enum lane_asked how, enum reason why)
{
	int said;

	if (load_relaxed(&c->returned) || !may_say(c))
		return false;
	conn_frames_locked(c, fd);
	if (!may_say(c) || is_over(c, fd))
		return false;
	find_place(c, fd, why == REASON_SHARED);
	said = say(c, how);
	if (said < 0) {
		conn_frames_locked(c, fd);
		peer_publish_u32(&c->link.rx.ctl->rx_state.asked, ASKED_NOTHING);
		if (!is_over(c, fd) && !peer_closes(c))
			conn_cut(c, fd, REASON_LINK_LOST);
	}
	if (said <= 0)
		return false;
	if (!load_relaxed(&c->pinned)) {
		store_relaxed(&c->reason, (uint8_t)why);
		store_relaxed(&c->passing, how == ASKED_AWAY);
		store_relaxed(&c->pinned, 1);
	}
	store_relaxed(&c->link_judged, 1);
	note_left(c, fd);
	leave_tx(c, fd);
	log_info("connection %u: leaves the rings of two hosts (%s)", c->index, reason_word(why));
	retreat_follow(c, fd);
	retreat_settle(c);
	ready_changed(c);
	return true;
}

static void away_unlocked(struct conn *c, int fd, enum reason why)
{
	if (conn_lock_both(c) < 0)
		return;
	if (load_relaxed(&c->linked) && fdtab_get(fd) == c)
		retreat_far_away(c, fd, ASKED_AWAY, why);
	conn_unlock_both(c);
}

static bool is_since(const struct conn *c, int64_t since)
{
	return unlikely(conn_is_linked(c) && conn_is_far(c)) && load_relaxed(&((struct conn *)c)->linked_at) >= since;
}

bool retreat_far_any(struct conn *const *conns, unsigned nr, int64_t since)
{
	for (unsigned i = 0; far_engine && i < nr; i++)
		if (is_since(conns[i], since))
			return true;
	return false;
}

/* All devices are waited for together: those that do not answer cost their patience once, and stay. */
static void some_away(struct conn *const *conns, const int *fds, struct fin_wait *waits, struct pollfd *polls, unsigned nr, int64_t since, enum reason why)
{
	unsigned far = 0;

	for (unsigned i = 0; i < nr; i++) {
		bool is_far = is_since(conns[i], since) && conn_hold(conns[i], fds[i]);

		waits[i] = (struct fin_wait){ .c = is_far ? conns[i] : NULL, .unacked = UINT64_MAX };
		far += is_far;
	}
	if (likely(!far))
		return;
	conn_fin_await_all(waits, polls, nr);
	for (unsigned i = 0; i < nr; i++) {
		if (!waits[i].c)
			continue;
		if (polls[i].fd < 0)
			away_unlocked(conns[i], fds[i], why);
		conn_drop(conns[i]);
	}
}

void retreat_far_all_away(struct conn *const *conns, const int *fds, unsigned nr, int64_t since, enum reason why)
{
	struct fin_wait few_waits[FEW], *waits = few_waits;
	struct pollfd few_polls[FEW], *polls = few_polls;
	size_t bytes = nr * (sizeof(*waits) + sizeof(*polls));
	unsigned most = FEW;
	long at = -1;

	if (!far_engine)
		return;
	if (nr > FEW)
		at = sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (nr > FEW && !sys_failed(at)) {
		most = nr;
		waits = (void *)at;
		polls = (void *)(waits + nr);
	}
	for (unsigned i = 0; i < nr; i += most)
		some_away(conns + i, fds + i, waits, polls, nr - i < most ? nr - i : most, since, why);
	if (waits != few_waits)
		sys_munmap((void *)at, bytes);
}
