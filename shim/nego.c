/* SPDX-License-Identifier: MIT */
/*
 * When the rendezvous makes a step, and when it gives up. The steps themselves are in nego_offer.c and nego_dial.c.
 *
 * Distances are counted in the program's own calls, so that a quiet connection is not asked and no timer is needed. The clock is only
 * looked at in a step, and only to keep a fast sender from giving up on a peer that has not been scheduled yet.
 */
#include "shim/nego.h"

#include <errno.h>
#include <fcntl.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/ceiling.h"
#include "shim/clock.h"
#include "shim/conn_holders.h"
#include "shim/far.h"
#include "shim/fdtab.h"
#include "shim/handler.h"
#include "shim/log.h"
#include "shim/nego_remote.h"
#include "shim/nego_row.h"
#include "shim/options.h"
#include "shim/ready.h"
#include "shim/renew.h"
#include "shim/sandbox.h"
#include "shim/unseen.h"

enum {
	NEAR_STEPS = 4,		/* so many steps at every call, then the distance doubles */
	MAX_SHIFT = 6,
	REMOTE_STEPS = NEAR_STEPS + 3, /* no farther apart while rdma_cm has something under way: it takes several to go through */
	SPINS_DRY = 4,		/* failed calls in a row that only one who spins makes */
	MOST_UNPROVEN = 64,
	AGAIN_CALLS = 1024,	/* between two offers of a connection that has been on rings */
	REMOTE_AGAIN_CALLS = 64, /* ... between two looks whether it is time for another dial or offer to another host */
	REMOTE_MAX_AGAIN = 3,	/* ... and that is after so many doublings of the patience at most: a path that comes back is waited for by the clock */
	DIALS_OF_PATIENCE = 4,	/* a dial makes queues and pins memory; in the patience of one who offers there are twelve */
	MAX_AGAIN = 6,
	STEPS_OF_PATIENCE = 16, /* steps far apart that use up the patience with a peer on another host */
};

/*
 * An attempt ends after so many steps that span so much time. While one holds a descriptor, the connection's calls look before they
 * sleep, so patience is short; between two dials nothing is held, and a step is one refused connect().
 */
static const struct patience {
	uint32_t steps;
	uint64_t ns;
} patience_holding = { 24, 200000000 }, patience_idle = { 32, 1000000000 };

#define STEP_BYTES UINT64_C(131072)

/* Another connection between hosts takes so long to go back, about; a dial in vain costs more than that. */
#define ROOM_REMOTE_NS UINT64_C(20000000)

void nego_conn_init(struct nego_part *np)
{
	*np = (struct nego_part){
		.due_calls = options.after.calls,
		.due_bytes = options.after.bytes ? options.after.bytes : NEGO_NEVER,
	};
	if (!options.transports) {
		np->phase = NEGO_OVER;
		np->due_calls = NEGO_NEVER;
		np->due_bytes = NEGO_NEVER;
	}
}

static uint64_t calls_of(struct conn *c)
{
	return load_relaxed(&c->tx.calls) + load_relaxed(&c->rx.calls);
}

static uint64_t bytes_of(struct conn *c)
{
	return load_relaxed(&c->tx.tcp_bytes) + load_relaxed(&c->rx.tcp_bytes);
}

static void due_at(struct conn *c, uint64_t calls, uint64_t bytes)
{
	c->nego.due_calls = calls;
	c->nego.due_bytes = bytes;
}

static void due_after(struct conn *c, uint32_t steps)
{
	uint32_t shift = steps <= NEAR_STEPS ? 0 : steps - NEAR_STEPS;

	if (shift > MAX_SHIFT)
		shift = MAX_SHIFT;
	due_at(c, calls_of(c) + (UINT64_C(1) << shift), bytes_of(c) + (STEP_BYTES << shift));
}

/* At the greatest distance. */
static void due_late(struct conn *c)
{
	due_after(c, NEAR_STEPS + MAX_SHIFT);
}

static void never_due(struct conn *c, enum nego_phase phase)
{
	c->nego.phase = phase;
	due_at(c, NEGO_NEVER, NEGO_NEVER);
}

static uint64_t remote_ns(void)
{
	return options.patience_ms * UINT64_C(1000000);
}

/*
 * Between hosts. A peer that opens the libraries for the first time makes no calls meanwhile, which soon stops ours, too: of the time between two
 * steps only a part counts.
 */
static void count_time(struct nego_part *np)
{
	uint64_t now = coarse_ns(), gap = now - np->last_ns, most = remote_ns() / STEPS_OF_PATIENCE;

	if (np->attempts && np->last_ns && gap > most) {
		np->first_ns += gap - most;
		np->dial_ns += gap - most;
	}
	np->last_ns = now;
}

/*
 * Out of steps, and out of time too? Between hosts the time is the user's: opening the libraries for the first time and rdma_cm's round
 * trips take as long as they take there, and fast talkers are through any number of steps before. There a dial that has begun in time has twice
 * as long to come to its end, and the connector offers for three times as long, since it may be the last one that is heard.
 */
static bool spent(const struct nego_part *np)
{
	const struct patience *p = np->phase == NEGO_IDLE || np->remote ? &patience_idle : &patience_holding;
	uint64_t ns = np->remote ? remote_ns() : p->ns, now = coarse_ns();

	if (np->attempts < p->steps || (np->remote && np->phase == NEGO_DIALLED && now - np->dial_ns < 2 * ns))
		return false;
	return now - np->first_ns >= (np->remote && np->phase == NEGO_OFFERED ? 3 * ns : ns);
}

/* An attempt that a forked parent had under way and can no longer finish is begun anew by the one holder that is left. */
static void take_over(struct conn *c)
{
	if (!c->nego.slot || nego_row_of(c))
		return;
	c->nego.slot = 0;
	c->nego.phase = NEGO_IDLE;
	nego_link_blank(c);
}

/* Both locks are held. */
static enum nego_outcome step(struct conn *c, int fd, enum reason *why)
{
	const struct sockaddr *local = &c->local.any, *peer = &c->peer.any;
	bool connector = c->role == CONN_CONNECTED;
	enum nego_outcome out;
	struct nego_tuple t;

	if (!connector && c->role != CONN_ACCEPTED) {
		*why = REASON_ROLE_UNKNOWN;
		return NEGO_FAILED;
	}
	if (renew_is_off(c)) {
		*why = REASON_OFF;
		return NEGO_OFF;
	}
	if (sandbox_why() != REASON_NONE) {
		*why = sandbox_why();
		return NEGO_FAILED;
	}
	take_over(c);
	/* A connect() that is still in progress has no peer yet. */
	if (conn_learn_addresses(c, fd))
		return NEGO_SOON;
	if (nego_tuple_make(&t, connector ? local : peer, connector ? peer : local)) {
		*why = REASON_NO_PEER;
		return NEGO_FAILED;
	}
	if (!(options.transports & TRANSPORT_BIT_SHM))
		c->nego.remote = true;
	if (!c->nego.remote) {
		out = connector ? nego_offer_step(c, fd, &t, why) : nego_dial_step(c, fd, &t, why);
		if (out != NEGO_FAILED || *why != REASON_NO_PEER || nego_row_of(c) || !nego_remote_may_be(&t))
			return out;
		c->nego.remote = true;
	}
	return nego_remote_step(c, fd, &t, why);
}

/* What is under way is over. What was adopted when the program armed it was so for a link that does not come. */
static void drop(struct conn *c)
{
	nego_row_drop(c);
	if (ready_is_adopted(c) && !load_relaxed(&c->linked))
		ready_link_over(c);
}

/* What was under way is over, and the program has its plain calls until the next step. */
static void set_aside(struct conn *c, enum reason why)
{
	drop(c);
	c->nego.phase = NEGO_IDLE;
	store_relaxed(&c->reason, (uint8_t)why);
	conn_unseek(c);
}

static void due_again(struct conn *c)
{
	c->nego.attempts = 0;
	if (!c->nego.remote) {
		due_late(c);
		return;
	}
	due_at(c, calls_of(c) + REMOTE_AGAIN_CALLS, NEGO_NEVER);
}

/*
 * Nobody was found by an end of a connection whose peer runs Ringway, and may only be off, asleep or draining, or there was no room. The acceptor, for whom an attempt
 * is one refused connect(), comes by often; the connector, for whom it is a listener and slow calls, seldom, but then for longer than that. Between hosts
 * both go by the clock.
 */
static void try_again(struct conn *c, enum reason why)
{
	struct nego_part *np = &c->nego;

	log_debug("connection %u: no link for now (%s)", c->index, reason_word(why));
	set_aside(c, why == REASON_PEER_SILENT ? nego_silent_reason(c) : why);
	if (np->remote) {
		np->again_ns = coarse_ns();
		if (c->role == CONN_ACCEPTED)
			np->again_ns += remote_ns() / DIALS_OF_PATIENCE;
		else
			np->again_ns += remote_ns() << (np->again < REMOTE_MAX_AGAIN ? np->again++ : REMOTE_MAX_AGAIN);
		due_again(c);
		return;
	}
	if (c->role == CONN_ACCEPTED) {
		np->attempts = NEAR_STEPS + MAX_SHIFT;
		due_after(c, np->attempts);
		return;
	}
	np->attempts = 0;
	due_at(c, calls_of(c) + ((uint64_t)AGAIN_CALLS << (np->again < MAX_AGAIN ? np->again++ : MAX_AGAIN)), NEGO_NEVER);
}

/* What a step came to; both locks are held. True: to be pinned for *why, once they are not. */
static bool settle(struct conn *c, enum nego_outcome out, enum reason *why)
{
	struct nego_part *np = &c->nego;
	struct nego_row *row = nego_row_of(c);

	switch (out) {
	case NEGO_LINKED:
		store_relaxed(&c->reason, (uint8_t)REASON_NONE);
		never_due(c, NEGO_AGREED);
		return false;
	case NEGO_FAILED:
		break;
	case NEGO_OFF:
		set_aside(c, *why);
		np->attempts = 0;
		due_late(c);
		return false;
	case NEGO_SOON:
	case NEGO_LATER:
		if (!spent(np)) {
			/* What would be said if it ended here. */
			store_relaxed(&c->reason, (uint8_t)*why);
			due_after(c, out == NEGO_SOON ? 0 : row && row->attempt && np->attempts > REMOTE_STEPS ? REMOTE_STEPS : np->attempts);
			if (row)
				nego_row_watch(c, row);
			return false;
		}
		break;
	}
	if ((out != NEGO_FAILED || *why == REASON_PEER_SILENT) && nego_is_known(c)) {
		nego_remote_over(c, *why);
		try_again(c, *why);
		return false;
	}
	nego_remote_over(c, *why);
	drop(c);
	never_due(c, NEGO_OVER);
	return true;
}

/* Not for good: a parent that serves through its child closes its own descriptor soon. */
static void wait_to_be_alone(struct conn *c)
{
	store_relaxed(&c->reason, (uint8_t)REASON_SHARED);
	due_after(c, c->nego.attempts++);
}

/* The whole process stays on TCP; what has an attempt under way finds out at its next step. */
static void give_up_for(enum reason why)
{
	int none = REASON_NONE;

	(void)compare_exchange(&sandbox_reason, &none, (int)why);
}

/*
 * A program that waits for its sockets by system calls of its own would sleep for ever once they are on rings. One that blocks
 * does so in our calls; of the others something must have been seen: a wait through us, or that it does not wait at all but
 * tries again and again. Whoever waits unseen comes back dry once, perhaps twice, and then finds bytes.
 */
static bool waits_unproven(struct conn *c, int fd)
{
	long flags;

	switch (unseen_look()) {
	case UNSEEN_EPOLL:
		give_up_for(REASON_RAW_CALLS);
		return false;
	case UNSEEN_IO_URING:
		give_up_for(REASON_IO_URING);
		return false;
	case UNSEEN_MAYBE:
		/* Over in some milliseconds, however many calls those are. */
		c->nego.unproven = 0;
		return true;
	case UNSEEN_NONE:
		break;
	}
	if (load_relaxed(&c->waits_seen))
		return false;
	flags = sys_fcntl(fd, F_GETFL, 0);
	return flags >= 0 && flags & O_NONBLOCK;
}

void nego_came_back_dry(struct conn *c)
{
	if (errno == EAGAIN && ++c->nego.dry == SPINS_DRY)
		conn_wait_seen(c);
}

/*
 * As a new connection, but not before there is something to say: calls alone would make a link that is given up again for want of traffic. Where link after link has
 * died, farther and farther from it.
 */
static void begin_anew(struct conn *c, bool lost)
{
	if (lost && c->nego.lost <= MAX_AGAIN)
		c->nego.lost++;
	c->nego.phase = NEGO_IDLE;
	c->nego.attempts = c->nego.dials = c->nego.again = 0;
	c->nego.again_ns = 0;
	c->nego.rests = true;
	due_at(c, NEGO_NEVER, bytes_of(c) + 1);
}

static uint64_t calls_lost(const struct nego_part *np)
{
	return np->lost > 1 ? (uint64_t)AGAIN_CALLS << (np->lost - 2) : 0;
}

/* Something has: from here on to the threshold. */
static void rest_is_over(struct conn *c)
{
	c->nego.rests = false;
	due_at(c, calls_of(c) + options.after.calls + calls_lost(&c->nego), options.after.bytes ? bytes_of(c) + options.after.bytes : NEGO_NEVER);
}

/* There was no room for a link. If some comes, the next step may be a near one. */
static void make_room(struct conn *c, enum reason why)
{
	struct nego_part *np = &c->nego;

	if (!ceiling_make_room(c, why, now_ns()))
		return;
	np->again_ns = np->remote && c->role == CONN_ACCEPTED ? coarse_ns() + ROOM_REMOTE_NS : 0;
	if (np->phase == NEGO_IDLE)
		np->attempts = 0;
	due_after(c, 0);
}

/* An attempt has come to its end; if that was a link of which both lanes are back, it has no use any more. */
static void give_up_link(struct conn *c, int fd)
{
	enum renew_part parted = RENEW_NOT_NOW;

	/* Of a dead link frames may be under way that no call of the program comes by. */
	if (unlikely(load_relaxed(&c->link_dead)) && !load_relaxed(&c->returned) && load_relaxed(&c->linked)) {
		conn_frames_try(c, fd);
		renew_serve(c, fd);
		due_late(c);
		return;
	}
	if (!load_relaxed(&c->returned) || !load_relaxed(&c->linked)) {
		never_due(c, c->nego.phase);
		fence_full();
		/* Pairs with retreat_note_returned(): by another thread, just now. */
		if (load_relaxed(&c->returned) && load_relaxed(&c->linked))
			nego_look_soon(&c->nego);
		return;
	}
	due_late(c);
	if (load_relaxed(&c->nr_maps) != 1)
		conn_reap_holders(c);
	if (conn_trylock_both(c)) {
		due_after(c, 0);
		return;
	}
	if (load_relaxed(&c->linked) && fdtab_get(fd) == c)
		parted = renew_part(c);
	if (parted == RENEW_ANEW)
		begin_anew(c, load_relaxed(&c->reason) == REASON_LINK_LOST);
	else if (parted == RENEW_NEVER)
		never_due(c, NEGO_OVER);
	conn_unlock_both(c);
	conn_tell_stats(c, fd);
}

void nego_poke(struct conn *c, int fd)
{
	enum reason why = nego_silent_reason(c), short_of;
	struct nego_part *np = &c->nego;
	bool pin, peer_short, caged = sandbox_why() != REASON_NONE;

	if (np->phase >= NEGO_AGREED) {
		give_up_link(c, fd);
		return;
	}
	if (unlikely(np->rests)) {
		if (bytes_of(c) < np->due_bytes)
			return;
		rest_is_over(c);
		if (options.after.calls || calls_lost(np))
			return;
	}
	if (np->phase == NEGO_IDLE && np->again_ns && coarse_ns() < np->again_ns) {
		due_again(c);
		return;
	}
	if (conn_count_holders(c) != 1) {
		wait_to_be_alone(c);
		return;
	}
	/* A filter may answer any call that the program does not make by itself with death: then there is a step to say why, and no more. */
	if (np->phase == NEGO_IDLE && !caged && waits_unproven(c, fd)) {
		if (np->unproven >= MOST_UNPROVEN) {
			conn_pin(c, REASON_RAW_CALLS);
			return;
		}
		store_relaxed(&c->reason, (uint8_t)REASON_RAW_CALLS);
		due_after(c, np->unproven++);
		return;
	}
	if (!caged && (np->remote || !(options.transports & TRANSPORT_BIT_SHM))) {
		/* Steps between hosts allocate, and a handler may have interrupted an allocation. */
		if (handler_inside()) {
			np->stalled = true;
			np->due_calls = calls_of(c) + 1;
			return;
		}
		far_load();
	}
	if (conn_trylock_both(c)) {
		bool inside = load_relaxed(&c->tx.in_calls) || load_relaxed(&c->rx.in_calls);

		/* A relative that was killed inside a call is counted there for ever. */
		if (inside && load_relaxed(&c->lost_holder)) {
			conn_pin(c, REASON_LANE_LOST);
			return;
		}
		/* A call that began before the connection was sought sits in the kernel: waking up for the peer would not help. */
		np->stalled = inside;
		np->due_calls = calls_of(c) + 1;
		conn_seek(c);
		return;
	}
	np->stalled = false;
	/*
	 * Another thread was first meanwhile: with the last step, which must not be followed by any, or with a fork or a close; who closes
	 * forgets the number before it takes the locks.
	 */
	if (np->phase >= NEGO_AGREED || load_relaxed(&c->nr_holders) != 1 || fdtab_get(fd) != c) {
		conn_unlock_both(c);
		return;
	}
	if (!renew_is_clear(c)) {
		conn_unlock_both(c);
		due_after(c, 1);
		return;
	}
	if (load_relaxed(&c->reason) == REASON_SHARED)
		np->attempts = 0;
	else if (np->attempts)
		why = load_relaxed(&c->reason);
	if (np->remote)
		count_time(np);
	if (!np->attempts++)
		np->first_ns = coarse_ns();
	np->short_of = REASON_NONE;
	np->peer_short = false;
	pin = settle(c, step(c, fd, &why), &why);
	short_of = np->short_of;
	peer_short = np->peer_short;
	/* Between two dials there is nothing to sleep on: a server of plain clients keeps its plain calls. */
	if (np->phase == NEGO_OFFERED || np->phase == NEGO_DIALLED)
		conn_seek(c);
	conn_unlock_both(c);
	if (unlikely(short_of != REASON_NONE))
		make_room(c, short_of);
	if (unlikely(peer_short))
		ceiling_help(now_ns());
	if (pin) {
		log_debug("conn %u: stays on TCP: %s", c->index, reason_word(why));
		conn_pin(c, why);
	}
	conn_tell_stats(c, fd);
}

int nego_wait_fd(const struct conn *c)
{
	const struct nego_row *row;

	/* While others hold it, too, nobody takes from the descriptor: a sleeper on it would be woken for ever. */
	if (c->nego.phase >= NEGO_AGREED || c->nego.stalled || load_relaxed(&((struct conn *)c)->nr_holders) != 1)
		return -1;
	row = nego_row_of(c);
	return row ? nego_row_wait_fd(row) : -1;
}

void nego_abandon(struct conn *c)
{
	drop(c);
	never_due(c, NEGO_OVER);
}

void nego_leave(struct conn *c)
{
	bool under_way = nego_row_of(c);

	drop(c);
	if (under_way)
		c->nego.phase = NEGO_IDLE;
}

void nego_fork_child(void)
{
	unseen_fork_child();
	nego_row_forget_all();
}
