/* SPDX-License-Identifier: MIT */
/*
 * See idle.h. One look goes through all connections of the process, whichever wait makes it: a date for each of them would be one more thing that every arming
 * has to keep, and a connection that no wait has in it would never be looked at.
 */
#include "shim/idle.h"

#include "shim/clock.h"
#include "shim/conn_far.h"
#include "shim/fdtab.h"
#include "shim/nego.h"
#include "shim/options.h"
#include "shim/renew.h"
#include "shim/retreat.h"

enum {
	STEPS = 8,		/* looks in RINGWAY_IDLE, as long as there is traffic */
	TAKEN_AT_ONCE = 64,	/* a program with thousands of them goes on in between */
	FAR_IS_AS = 16,	/* of a device all is awaited that it has under way */
	SERVED_MOST = 8,	/* looks for the sake of one that is coming back: then its peer makes no calls */
};

#define SHORTEST_NS INT64_C(1000000)
#define NO_DATE INT64_MAX
#define NEWS UINT64_C(1)

_Atomic uint64_t idle_word;
/* Private to the process, as the word is. */
static struct lane_lock looking;

static int64_t step_ns(void)
{
	int64_t ns = options.idle_ns / STEPS;

	return ns > SHORTEST_NS ? ns : SHORTEST_NS;
}

static uint64_t word_of(int64_t ns)
{
	return (uint64_t)ns & ~NEWS;
}

void idle_watch(void)
{
	uint64_t word = 0;

	if (!options.idle_ns)
		return;
	/* Changed in any case: a look that is under way has passed it, and must not end with the word that it began with. */
	if (load_relaxed(&idle_word) || !compare_exchange(&idle_word, &word, word_of(now_ns() + step_ns())))
		fetch_or(&idle_word, NEWS);
}

int64_t idle_until(int64_t left_ns)
{
	uint64_t word = load_relaxed(&idle_word);
	int64_t wait_ns;

	if (likely(!word))
		return left_ns;
	wait_ns = (int64_t)word - now_ns();
	if (wait_ns < SHORTEST_NS)
		wait_ns = SHORTEST_NS;
	return left_ns < 0 || wait_ns < left_ns ? wait_ns : left_ns;
}

/* Both ends' bytes, by either road. Compared only for having moved. */
static uint64_t moved_so_far(struct conn *c)
{
	return load_unlocked(&c->link.tx.tail_pos) + load_unlocked(&c->link.rx.head_pos) + conn_tx_taken(c) + load_relaxed(&c->tx.tcp_bytes) +
	       load_relaxed(&c->rx.tcp_bytes);
}

void idle_note_moved(struct conn *c)
{
	/* Pairs with leave_alone(). */
	fence_full();
	if (!conn_is_linked(c) || moved_so_far(c) == load_relaxed(&c->idle_pos) || !exchange(&c->idle_aside, 0))
		return;
	idle_watch();
}

void idle_linked(struct conn *c)
{
	store_relaxed(&c->idle_aside, 0);
	store_relaxed(&c->idle_since, 0);
	store_relaxed(&c->idle_served, 0);
	idle_watch();
}

/* ---- a look: the connection is held ---- */

void idle_serve(struct conn *c, int fd)
{
	retreat_serve(c, fd);
	conn_frames_try(c, fd);
	if (load_relaxed(&c->returned))
		nego_poke(c, fd);
	conn_refresh_stats(c);
}

void idle_hear(struct conn *c, int fd)
{
	if (!conn_is_far(c))
		return;
	conn_pump(c, 0);
	conn_frames_try(c, fd);
}

bool idle_is_coming_back(struct conn *c)
{
	return conn_attention(c) || load_relaxed(&c->asked_back) || load_relaxed(&c->returned) || conn_far_is_dead(c);
}

bool idle_waits_for_program(struct conn *c)
{
	/* A far peer tells what it has taken when it has something to say, or much: what it has not told it gets again. */
	return conn_rx_avail(c) || (conn_tx_untaken(c) && !conn_is_far(c)) || !renew_could_part(c);
}

int64_t idle_seen_busy(struct conn *c, int64_t now)
{
	int64_t since = load_relaxed(&c->idle_since);

	return since && load_relaxed(&c->idle_pos) == moved_so_far(c) ? since : now;
}

/* True: idle_waits_for_program(). Said first, so that who changes it just now sees that. */
static bool leave_alone(struct conn *c, uint64_t pos)
{
	store_relaxed(&c->idle_pos, pos);
	store_relaxed(&c->idle_aside, 1);
	fence_full();
	if (idle_waits_for_program(c))
		return true;
	store_relaxed(&c->idle_aside, 0);
	return false;
}

/* When it has to be looked at again. */
static int64_t consider(struct conn *c, int fd, int64_t now, unsigned *taken)
{
	uint64_t pos;
	bool moved;

	idle_hear(c, fd);
	pos = moved_so_far(c);
	moved = pos != load_relaxed(&c->idle_pos) || !load_relaxed(&c->idle_since);

	if (idle_is_coming_back(c)) {
		idle_serve(c, fd);
		if (!conn_is_linked(c) || load_relaxed(&c->idle_served) == SERVED_MOST)
			return NO_DATE;
		fetch_add(&c->idle_served, 1);
		return now + step_ns();
	}
	store_relaxed(&c->idle_served, 0);
	if (moved)
		store_relaxed(&c->idle_since, now);
	if (leave_alone(c, pos))
		return NO_DATE;
	if (moved)
		return now + step_ns();
	if (now - load_relaxed(&c->idle_since) < options.idle_ns)
		return load_relaxed(&c->idle_since) + options.idle_ns;
	if (*taken >= TAKEN_AT_ONCE)
		return now + SHORTEST_NS;
	*taken += conn_is_far(c) ? FAR_IS_AS : 1;
	renew_take_back_for(c, fd, REASON_IDLE);
	idle_serve(c, fd);
	return conn_is_linked(c) ? now + step_ns() : NO_DATE;
}

static int64_t look_at_all(int64_t now)
{
	int64_t next = NO_DATE, at;
	unsigned taken = 0;

	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned)fd + 1)) {
		struct conn *c = fdtab_get(fd);

		if (!c || !conn_is_linked(c) || !conn_hold(c, fd))
			continue;
		at = conn_is_linked(c) ? consider(c, fd, now, &taken) : NO_DATE;
		conn_drop(c);
		if (at < next)
			next = at;
	}
	return next;
}

void idle_look_due(int64_t now)
{
	uint64_t word = load_relaxed(&idle_word), mine = word_of(now + step_ns());
	int64_t next;

	if (!word || now < (int64_t)word)
		return;
	/* Another thread is at it, or this one, before a signal: it is put off, by a word that no look ends with. */
	if (!lane_trylock(&looking, false)) {
		compare_exchange(&idle_word, &word, mine | NEWS);
		return;
	}
	if (compare_exchange(&idle_word, &word, mine)) {
		next = look_at_all(now);
		compare_exchange(&idle_word, &mine, next == NO_DATE ? 0 : word_of(next));
	}
	lane_unlock(&looking);
}

void idle_fork_child(void)
{
	store_relaxed(&looking.owner, 0);
}
