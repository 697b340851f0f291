/* SPDX-License-Identifier: MIT */
/*
 * Waiting inside a data call. Signals: the sleep is a real ppoll(), so a handler runs as it always would, and whether the call
 * goes on afterwards is decided as the kernel does for recv() and send(): it is restarted for handlers with SA_RESTART unless a
 * timeout is set. Which have run, in the sleep or since the call began to wait, is counted (counted.h).
 */
#include "shim/wait.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "ringbuf/sys.h"
#include "shim/asleep.h"
#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_holders.h"
#include "shim/conn_probe.h"
#include "shim/conn_use.h"
#include "shim/idle.h"
#include "shim/nego.h"
#include "shim/retreat.h"
#include "shim/signals.h"
#include "shim/unwound.h"
#include "shim/switch.h"

#define BRIEFLY_NS 1000000
#define HOLD_ASLEEP_NS 1000000
#define HOLD_AWAKE_NS 200000
#define HOLD_GROWS_TO 32
#define KERNEL_SIGSET 8
/* Room in a full ring that is worth going on for, pauses between two looks for it, how many looks, how many of them in vain. */
#define STEP_WORTH_BYTES 4096
#define TAKEN_PAUSES 32
#define TAKEN_LOOKS 128
#define TAKEN_IDLE 16

int64_t wait_deadline(int64_t timeout_ns)
{
	return timeout_ns ? now_ns() + timeout_ns : WAIT_FOREVER;
}

/*
 * Worth another step? A few loads, and some pauses if not: a look costs the receiver the line that it stores its head to. In the ring that is
 * full now: the overflow ring is for when this was in vain.
 */
static bool has_room(void *arg)
{
	struct conn *c = arg;

	conn_pump(c, VERBS_EMPTY);
	if (ring_tx_room_now(&c->link.tx) >= ring_tx_low_water(&c->link.tx, STEP_WORTH_BYTES) || conn_tx_attention(c))
		return true;
	cpu_relax_times(TAKEN_PAUSES);
	return false;
}

/*
 * A receiver that is at work makes room soon, whatever other waits have taught about spinning: it is waited for while it takes. One that has taken
 * nothing for longer than an interrupt lasts is not at work.
 */
static bool is_taken(struct conn *c)
{
	uint64_t now, taken = conn_tx_taken(c);
	int idle = 0;

	if (conn_is_far(c) || !spin_allowed())
		return false;
	for (int looks = 0; looks < TAKEN_LOOKS && idle < TAKEN_IDLE; looks++) {
		if (has_room(c))
			return true;
		now = conn_tx_taken(c);
		idle = now == taken ? idle + 1 : 0;
		taken = now;
	}
	return false;
}

static bool has_bytes(void *arg)
{
	struct conn *c = arg;

	conn_pump(c, VERBS_EMPTY);
	if (conn_rx_avail(c) || conn_rx_attention(c) || load_relaxed(&c->rx.shut) || load_relaxed(&c->rx.state) != RX_RING)
		return true;
	ring_rx_relax(&c->link.rx);
	return false;
}

static bool spin(struct conn *c, enum wait_for what)
{
	if (what == WAIT_TX)
		return load_relaxed(&c->tx.state) == TX_RING && (is_taken(c) || spin_until_relaxing(has_room, c));
	return load_relaxed(&c->rx.state) == RX_RING && spin_until_relaxing(has_bytes, c);
}

/* From another host: frames may come that say that the ring is left, or stand in front of what does not come twice. */
static bool awaits_frames(struct conn *c)
{
	enum rx_state s = load_relaxed(&c->rx.state);

	if (likely(!conn_is_far(c)) || conn_fin_awaited(c) || load_relaxed(&c->rx.shut))
		return false;
	return s == RX_RING || (s == RX_LEFT && retreat_overlaps(c));
}

/* What to sleep on besides the bell, and for how long at most. */
static short kernel_events(struct conn *c, enum wait_for what, int64_t *limit_ns)
{
	short frames;

	*limit_ns = conn_look_again(c, false);
	if (*limit_ns == PROBE_NOT_NEEDED)
		*limit_ns = WAIT_FOREVER;
	if (what == WAIT_RX)
		return (conn_fin_awaited(c) ? 0 : POLLIN) | (retreat_owes(c) ? POLLOUT : 0);
	*limit_ns = conn_far_patience(c);
	frames = awaits_frames(c) ? POLLIN : 0;
	if (!conn_tx_on_ring(c))
		return POLLOUT | frames;
	/* What a dead link means is said by frames, and by the end behind them. */
	if (conn_far_is_dead(c)) {
		if (*limit_ns == WAIT_FOREVER)
			*limit_ns = BRIEFLY_NS;
		return POLLIN | POLLRDHUP;
	}
	/*
	 * The end of the peer's stream is level-true for ever: asked for until it has been seen. From then on only a probe
	 * can tell a peer that reads slowly from one that is gone; a lost one is repeated at growing distance.
	 */
	*limit_ns = conn_probe_wait(c);
	if (*limit_ns == PROBE_NOT_NEEDED)
		*limit_ns = WAIT_FOREVER;
	return (load_relaxed(&c->tx.peer_ended) ? 0 : POLLRDHUP) | frames;
}

/* What this thread has in hand. */
struct sleeper {
	struct conn *c;
	short want;
	bool armed, counted, held;
	bool unlinked;		/* counted by conn_wait_enters() */
	bool far_rung;		/* what carries a far link has something */
	uint64_t *handled;
	struct signals_held held_back;
};

/* Neither the sleep nor the call around it will go on. */
static void sleep_abandoned(void *arg)
{
	struct sleeper *s = arg;

	if (s->counted)
		conn_thread_wakes(s->c, s->want);
	if (s->armed)
		conn_disarm_one(s->c, s->want, true);
	if (s->unlinked)
		conn_wait_leaves(s->c);
	if (s->held)
		conn_drop(s->c);
	*s = (struct sleeper){ .held_back = s->held_back };
}

static bool is_timed(struct conn *c, enum wait_for what)
{
	return load_relaxed(what == WAIT_RX ? &c->rcv_timeout_ns : &c->snd_timeout_ns) != 0;
}

/* Once it is counted out, so that nobody rings the bell for this thread. */
static void hear_far(struct sleeper *s)
{
	if (unlikely(s->far_rung))
		conn_pump(s->c, VERBS_RUNG);
	s->far_rung = false;
}

/*
 * Completions of zero copy lie in the socket's error queue until the program takes them, and a poll of it does not sleep: no news to who waits for bytes of a
 * ring. The end of the stream hangs up, and is told by a bell as well.
 */
static bool holds_completions(const struct conn *conn, int fd)
{
	struct conn *c = (struct conn *)conn;

	return load_relaxed(&c->zero_copies) && load_relaxed(&c->tx.mode) == MODE_PINNED && conn_rx_on_ring(c) && sys_ready_now(fd, 0) == POLLERR;
}

static int sleep_on(struct sleeper *s, int fd, enum wait_for what, int64_t deadline_ns, bool *rung)
{
	enum { OWN, BELL, NEGO, RELATIVES, FAR, NR };
	struct pollfd p[NR];
	struct conn *c = s->c;
	int64_t limit_ns, until = deadline_ns, left_ns = -1;
	int nr;

	p[OWN] = (struct pollfd){ .fd = fd, .events = kernel_events(c, what, &limit_ns) };
	/* With both directions shut it hangs up, asked or not. */
	if (what == WAIT_RX && unlikely(conn_fin_awaited(c)) && load_relaxed(&c->tx.shut))
		p[OWN].fd = -1;
	p[BELL] = (struct pollfd){ .fd = conn_bell_fd(c, what == WAIT_RX ? POLLIN : POLLOUT), .events = POLLIN };
	p[NEGO] = (struct pollfd){ .fd = nego_wait_fd(c), .events = POLLIN };
	p[RELATIVES] = (struct pollfd){ .fd = conn_relatives_fd(c), .events = POLLIN };
	p[FAR] = (struct pollfd){ .fd = s->armed ? conn_far_fd(c) : -1, .events = POLLIN };
	if (unlikely(holds_completions(c, fd)) && what == WAIT_RX) {
		p[OWN].fd = -1;
		limit_ns = limit_ns < BRIEFLY_NS ? limit_ns : BRIEFLY_NS;
	}
	if (limit_ns != WAIT_FOREVER && now_ns() + limit_ns < until)
		until = now_ns() + limit_ns;
	if (until != WAIT_FOREVER || idle_is_watched()) {
		left_ns = until == WAIT_FOREVER ? -1 : until - now_ns();
		left_ns = until != WAIT_FOREVER && left_ns < 0 ? 0 : idle_until(left_ns);
	}
	nr = asleep_in_poll(p, NR, left_ns, signals_asleep(&s->held_back, NULL), *s->handled);
	*rung = nr > 0 && p[BELL].revents;
	s->far_rung = nr > 0 && p[FAR].revents;
	if (nr == -EINTR)
		return counted_interrupted(s->handled, is_timed(c, what));
	if (nr == 0) {
		if (deadline_ns != WAIT_FOREVER && now_ns() >= deadline_ns)
			return -EAGAIN;
		if (what == WAIT_TX || conn_is_stalled(c))
			conn_probe_if_due(c, fd);
		/* What a dead link means is due to be said, and the lane that is waited for may not be the one that it is said on. */
		if (unlikely(conn_far_patience(c) == 0))
			conn_frames_try(c, fd);
		return 0;
	}
	if (nr < 0)
		return 0;
	if (p[OWN].revents && what == WAIT_RX)
		store_relaxed(&c->rx.looks_skipped, UINT32_MAX / 2);
	if (p[OWN].revents & POLLIN && what == WAIT_TX)
		conn_frames_try(c, fd);
	if (p[OWN].revents & ~POLLIN && what == WAIT_TX && conn_tx_on_ring(c)) {
		conn_peer_ended(c);
		c->tx.sends_since_look = 0;
	}
	if (p[NEGO].revents)
		nego_poke(c, fd);
	if (p[RELATIVES].revents)
		conn_relative_ended();
	return 0;
}

int wait_lane(struct conn *c, int fd, enum wait_for what, int64_t deadline_ns, uint64_t *handled, bool passed)
{
	struct sleeper s = { .c = c, .want = what == WAIT_RX ? POLLIN : POLLOUT, .handled = handled };
	bool linked = conn_is_linked(c);
	bool rung = false;
	int64_t slept_from = 0;
	int r = counted_verdict(handled, is_timed(c, what));

	if (unlikely(r))
		return r;
	/* No bell of ours would wake it, and it would keep the link from being taken down. */
	if (unlikely(!passed && !conn_is_linked(c) && conn_use_is_leaving(c)))
		return 0;
	UNWOUND_BEGIN(sleep_abandoned, &s);
	if (linked && spin(c, what))
		goto out;
	if (linked)
		slept_from = spin_sleep_begins();
	signals_hold(&s.held_back);
	if (linked && conn_arm(c, s.want))
		goto release;
	s.armed = linked;
	if (linked)
		conn_thread_sleeps(c, s.want);
	s.counted = linked;
	if (what == WAIT_RX && !conn_is_linked(c) && conn_wait_counts(c)) {
		s.unlinked = conn_wait_enters(c);
		if (!s.unlinked)
			goto release;
	}
	if (what == WAIT_RX && ((load_relaxed(&c->rx.shut) && load_relaxed(&c->rx.state) == RX_RING) || conn_rx_avail(c)))
		r = 0;
	else if (what == WAIT_TX && linked && conn_tx_on_ring(c) &&
		 conn_tx_room(c) >= ring_tx_low_water(&c->link.tx, SIZE_MAX))
		r = 0;
	else
		r = sleep_on(&s, fd, what, deadline_ns, &rung);
	/* False after all: given back when a handler jumped away, and jumped back. */
	if (s.counted)
		conn_thread_wakes(c, s.want);
	s.counted = false;
	if (s.armed)
		conn_disarm_one(c, s.want, rung);
	s.armed = false;
	if (s.unlinked)
		conn_wait_leaves(c);
	s.unlinked = false;
	if (rung || s.far_rung)
		spin_slept_from(slept_from);
	hear_far(&s);
	if (unlikely(idle_is_watched()))
		idle_look(now_ns());
release:
	signals_release(&s.held_back);
out:
	UNWOUND_END();
	return r;
}

int wait_briefly(struct conn *c, int fd, int64_t deadline_ns, uint64_t *handled)
{
	struct pollfd p = { .fd = fd };

	if (asleep_in_poll(&p, 1, BRIEFLY_NS, NULL, *handled) == -EINTR)
		return counted_interrupted(handled, is_timed(c, WAIT_RX));
	return deadline_ns != WAIT_FOREVER && now_ns() >= deadline_ns ? -EAGAIN : 0;
}

/* From another host the answer takes a round trip, however long that is: of the first holds each may take twice as long as the one before. */
static int64_t hold_ns(const struct conn *c, bool may_block)
{
	int64_t ns = may_block ? HOLD_ASLEEP_NS : HOLD_AWAKE_NS;

	return conn_is_far(c) && c->tx.hold_step <= HOLD_GROWS_TO ? ns * c->tx.hold_step : ns;
}

static void hold_for_acknowledgement(struct sleeper *s, int fd, bool may_block)
{
	struct conn *c = s->c;
	int64_t end = now_ns() + hold_ns(c, may_block);

	while (switch_wants_hold(c)) {
		int64_t left = end - now_ns();
		struct timespec t;
		struct pollfd p[2] = { { .fd = conn_bell_fd(c, POLLOUT), .events = POLLIN }, { .fd = conn_far_fd(c), .events = POLLIN } };

		if (left <= 0) {
			switch_held_in_vain(c);
			return;
		}
		if (!may_block) {
			conn_pump(c, VERBS_EMPTY);
			sys_call0(SYS_sched_yield);
			continue;
		}
		conn_take_tx_attention(c, fd);
		if (conn_arm(c, POLLOUT)) {
			sys_call0(SYS_sched_yield);
			continue;
		}
		s->armed = true;
		t = timespec_of(left);
		sys_call5(SYS_ppoll, p, 2, &t, signals_asleep(&s->held_back, NULL), KERNEL_SIGSET);
		s->far_rung = p[1].revents;
		if (s->armed)
			conn_disarm_one(c, POLLOUT, p[0].revents != 0);
		s->armed = false;
		hear_far(s);
	}
}

void wait_for_acknowledgement(struct conn *c, int fd, bool may_block)
{
	struct sleeper s = { .c = c, .want = POLLOUT, .held = true };

	UNWOUND_BEGIN(sleep_abandoned, &s);
	signals_hold(&s.held_back);
	hold_for_acknowledgement(&s, fd, may_block);
	signals_release(&s.held_back);
	UNWOUND_END();
}
