/* SPDX-License-Identifier: MIT */
#include "shim/conn_probe.h"

#include <errno.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/clock.h"
#include "shim/conn.h"
#include "shim/conn_far.h"
#include "shim/conn_lock.h"
#include "shim/conn_use.h"
#include "shim/conn_end.h"
#include "shim/fdtab.h"
#include "shim/retreat.h"
#include "shim/wait.h"

#define FIRST_NS INT64_C(200000000)
#define DOUBLINGS_MAX 8
/* Who waits for room of a far peer asks its device for a sign of life so often: where nothing is under way a dead path shows to who asks only. */
#define ASKS_NS INT64_C(500000000)
/* Who finds no room again and again looks at the clock no more often than each so many ticks of the processor's counter: some ten milliseconds. */
#define ASK_TICKS ((uint64_t)CLOCK_COUNTER_BRIEF << 10)
/* A probe that is due was kept from going out by who has the lane. */
#define AGAIN_NS INT64_C(1000000)

/*
 * Between hosts a link that lives says that the peer's socket is there, unless the peer has said that it goes, or wants nothing any more. One that has gone, and of which
 * this end has not heard, must find no frame.
 */
static bool is_idle_question(struct conn *c)
{
	return conn_is_far(c) && load_relaxed(&c->tx.state) == TX_RING && !c->tx.probe_done &&
	       (retreat_receiver_is_gone(c) || (!conn_far_is_dead(c) && !load_relaxed(&c->tx.gone_hint)));
}

ssize_t conn_write_probe(struct conn *c, int fd)
{
	uint8_t frame[FRAME_SIZE];
	ssize_t n;

	if (unlikely(is_idle_question(c)))
		return -EAGAIN;
	if (load_relaxed(&c->tx.state) != TX_RING && load_relaxed(&c->tx.state) != TX_ORPHAN &&
	    !(load_relaxed(&c->tx.state) == TX_LEFT && c->tx.probe_done))
		return 0;
	if (!retreat_frame_begin(c, fd, PIECE_PROBE))
		return -EAGAIN;
	frame_make(frame, FRAME_PROBE, c->nonce, c->peer_nonce, 0);
	n = sys_sendto(fd, frame + c->tx.probe_done, FRAME_SIZE - c->tx.probe_done, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
	retreat_frame_end(c, PIECE_PROBE, n);
	if (n < 0)
		return n;
	if (c->tx.probe_done < FRAME_SIZE)
		return -EAGAIN;
	c->tx.probe_done = 0;
	return 0;
}

void conn_probe_ahead(struct conn *c, int fd)
{
	ssize_t n;

	if (likely(!load_relaxed(&c->tx.probe_due)))
		return;
	n = conn_write_probe(c, fd);
	if (n == 0)
		store_relaxed(&c->tx.probe_due, 0);
	conn_keep_error(c, n);
}

static bool is_full(struct conn *c)
{
	return conn_is_linked(c) && load_relaxed(&c->tx.state) == TX_RING && !load_relaxed(&c->rx.dead) &&
	       conn_tx_room(c) < ring_tx_low_water(&c->link.tx, SIZE_MAX);
}

static bool needs_probes(struct conn *c)
{
	return load_relaxed(&c->tx.peer_ended) && is_full(c);
}

/* How long the peer may still take nothing; TCP counts from the first question that it answers with "no room". */
static int64_t patience(struct conn *c, int64_t now)
{
	uint64_t taken = conn_tx_taken(c);

	if (!load_relaxed(&c->tx.stalled_at) || load_relaxed(&c->tx.stalled_pos) != taken) {
		store_relaxed(&c->tx.stalled_pos, taken);
		store_relaxed(&c->tx.stalled_at, now);
	}
	return load_relaxed(&c->tx.stalled_at) + load_relaxed(&c->user_timeout_ns) - now;
}

/* Tx lock held. */
static void give_up_if_due(struct conn *c, int fd, int64_t now)
{
	if (!load_relaxed(&c->user_timeout_ns) || !is_full(c) || patience(c, now) > 0 || !conn_trylock_rx(c))
		return;
	conn_timed_out(c, fd);
	lane_unlock(&c->rx.lock);
}

void conn_note_stall(struct conn *c)
{
	if (unlikely(load_relaxed(&c->user_timeout_ns)) && is_full(c))
		patience(c, now_ns());
}

void conn_judge_stall_locked(struct conn *c, int fd)
{
	give_up_if_due(c, fd, now_ns());
}

static void set_next(struct conn *c, int64_t now)
{
	store_relaxed(&c->tx.probe_at, now + (FIRST_NS << load_relaxed(&c->tx.probes)));
}

/* Of a link that lives, and is this process's. */
static bool may_ask(const struct conn *c)
{
	return !conn_far_is_dead(c) && conn_far_fd(c) >= 0;
}

/* How long until the peer's device is to be asked. */
static int64_t until_asked(struct conn *c, int64_t now)
{
	if (!load_relaxed(&c->tx.ask_at))
		store_relaxed(&c->tx.ask_at, now + ASKS_NS);
	return load_relaxed(&c->tx.ask_at) - now;
}

static void ask_if_due(struct conn *c, int64_t now)
{
	if (!may_ask(c) || until_asked(c, now) > 0)
		return;
	store_relaxed(&c->tx.ask_at, now + ASKS_NS);
	conn_pump(c, VERBS_PROBE);
}

void conn_ask_far(struct conn *c)
{
	uint64_t tick;

	if (!conn_is_far(c))
		return;
	tick = clock_counter();
	if (likely(tick && (!c->tx.ask_tick || tick - c->tx.ask_tick < ASK_TICKS))) {
		c->tx.ask_tick = c->tx.ask_tick ? c->tx.ask_tick : tick;
		return;
	}
	c->tx.ask_tick = tick;
	ask_if_due(c, now_ns());
}

/* Room means that the peer lives: the next wait begins with the shortest distance. */
int64_t conn_probe_wait(struct conn *c)
{
	bool probes = load_relaxed(&c->tx.peer_ended), limited = load_relaxed(&c->user_timeout_ns), asks = conn_is_far(c);
	int64_t now, wait_ns = INT64_MAX, left_ns;

	if ((!probes && !limited && !asks) || !is_full(c) || (!probes && !limited && !may_ask(c))) {
		if (unlikely(load_relaxed(&c->tx.probe_at))) {
			store_relaxed(&c->tx.probe_at, 0);
			store_relaxed(&c->tx.probes, 0);
		}
		if (unlikely(load_relaxed(&c->tx.ask_at)))
			store_relaxed(&c->tx.ask_at, 0);
		if (unlikely(load_relaxed(&c->tx.stalled_at)))
			store_relaxed(&c->tx.stalled_at, 0);
		return PROBE_NOT_NEEDED;
	}
	now = now_ns();
	if (probes && !load_relaxed(&c->tx.probe_at))
		set_next(c, now);
	if (probes)
		wait_ns = load_relaxed(&c->tx.probe_at) - now;
	if (limited && (left_ns = patience(c, now)) < wait_ns)
		wait_ns = left_ns;
	if (asks && may_ask(c) && (left_ns = until_asked(c, now)) < wait_ns)
		wait_ns = left_ns;
	return wait_ns > AGAIN_NS ? wait_ns : AGAIN_NS;
}

bool conn_has_date(const struct conn *c)
{
	return conn_far_is_dead(c) || load_relaxed(&((struct conn *)c)->link.rx.overflowed) || conn_is_stalled(c);
}

/* What was tried in vain is not tried again: the sender has a claim there, and may keep it. */
static int64_t until_trim(struct conn *c)
{
	int64_t left;

	if (likely(!conn_is_linked(c) || !ring_rx_may_trim(&c->link.rx)))
		return INT64_MAX;
	left = load_unlocked(&c->link.rx.trim_after_ns) - now_ns();
	return left > -AGAIN_NS ? left : INT64_MAX;
}

int64_t conn_look_again(struct conn *c, bool room)
{
	int64_t wait_ns = room || conn_is_stalled(c) ? conn_probe_wait(c) : PROBE_NOT_NEEDED, other_ns, trim_ns;

	if (likely(!conn_has_date(c)))
		return wait_ns;
	other_ns = conn_far_patience(c);
	trim_ns = until_trim(c);
	if (trim_ns < other_ns)
		other_ns = trim_ns;
	if (other_ns == INT64_MAX || (wait_ns != PROBE_NOT_NEEDED && wait_ns < other_ns))
		return wait_ns;
	return other_ns > AGAIN_NS ? other_ns : AGAIN_NS;
}

void conn_probe_if_due(struct conn *c, int fd)
{
	int64_t now;
	ssize_t n = 0;

	if (conn_probe_wait(c) != AGAIN_NS)
		return;
	now = now_ns();
	if (conn_is_far(c))
		ask_if_due(c, now);
	if (!conn_trylock_tx(c))
		return;
	/* Not another's socket: who closes takes the lock after the number was forgotten. */
	if (!conn_call_has(c, fd)) {
		lane_unlock(&c->tx.lock);
		return;
	}
	give_up_if_due(c, fd, now);
	if (needs_probes(c) && now >= load_relaxed(&c->tx.probe_at)) {
		n = conn_write_probe(c, fd);
		if (load_relaxed(&c->tx.probes) < DOUBLINGS_MAX)
			store_relaxed(&c->tx.probes, load_relaxed(&c->tx.probes) + 1);
		set_next(c, now);
	}
	lane_unlock(&c->tx.lock);
	conn_keep_error(c, n);
}
