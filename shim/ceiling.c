/* SPDX-License-Identifier: MIT */
/*
 * See ceiling.h. How busy a connection is says its level: what it did in the last spell, and half of what it did before. Spells are cut by who asks for room, are
 * SPELL_NS long at least, and those of all connections at once, so that two levels are of the same time. No data call pays for it.
 */
#include "shim/ceiling.h"

#include "shim/clock.h"
#include "shim/conn_far.h"
#include "shim/fdtab.h"
#include "shim/idle.h"
#include "shim/log.h"
#include "shim/renew.h"

#define SPELL_NS INT64_C(50000000)
/* Who has just come stays for a while, however quiet: a move there and back costs as much as some thousand calls. */
#define STAYS_NS INT64_C(200000000)
/* Between two looks for the sake of peers. */
#define HELP_NS INT64_C(5000000)
/* A stream makes few calls. */
#define BYTES_OF_CALL UINT64_C(65536)

enum {
	LOOK_SHARE = 32,	/* of the time, at most, goes into looks at all connections */
	TIMES_BUSIER = 8,	/* less would be moved there and back */
	MOST_BUSIER = 8,	/* ... and by so many calls, of one that is silent */
	WAITED_MOST = 16,	/* looks for the sake of one that goes: then its peer makes no calls */
};

/* All of it is private to the process, and belongs to who has the lock. */
static struct lane_lock looking;
static uint32_t spell;	/* its number; 0: none was begun */
static int64_t spell_began, spell_most;
static int64_t helped_at, help_most;
static struct goes {
	struct conn *c;
	int fd;
	uint32_t looks;
} goes;

/* By either road, over all of its links. */
static uint64_t bytes_of(struct conn *c)
{
	uint64_t bytes = load_relaxed(&c->tx.tcp_bytes) + load_relaxed(&c->rx.tcp_bytes) + load_relaxed(&c->ring_before[0]) +
			 load_relaxed(&c->ring_before[1]);

	return load_relaxed(&c->linked) ? bytes + load_unlocked(&c->link.tx.tail_pos) + load_unlocked(&c->link.rx.head_pos) : bytes;
}

static uint64_t calls_of(struct conn *c)
{
	return load_relaxed(&c->tx.calls) + load_relaxed(&c->rx.calls);
}

/* From now on the next spell counts for it. */
static void begin(struct conn *c, uint64_t level, uint32_t number)
{
	c->busy.calls = calls_of(c);
	c->busy.bytes = bytes_of(c);
	c->busy.level = level;
	c->busy.spell = number;
}

/* At the end of a spell that was so many times SPELL_NS long. False: it was not seen in it. */
static bool level_of(struct conn *c, int64_t times, uint64_t *level)
{
	uint64_t calls = calls_of(c) - c->busy.calls, bytes = bytes_of(c) - c->busy.bytes;

	if (c->busy.spell != spell)
		return false;
	/* A link was given up between two of the loads. */
	if (bytes > INT64_MAX)
		bytes = 0;
	/* Who looks in vain moves nothing. */
	if (calls > bytes)
		calls = bytes;
	*level = (times < 63 ? c->busy.level >> times : 0) + (calls + bytes / BYTES_OF_CALL) / (uint64_t)times;
	return true;
}

/* Looks that are made for other reasons may have seen it later. */
static void note_busy(struct conn *c, int64_t now)
{
	if (!c->busy.since || bytes_of(c) != c->busy.bytes)
		c->busy.since = idle_seen_busy(c, now);
}

static bool may_go(struct conn *c, int64_t now)
{
	return now - load_relaxed(&c->linked_at) >= STAYS_NS && !idle_is_coming_back(c) && !idle_waits_for_program(c);
}

/* The spell is over: of those that are quiet enough, who has been busy longest ago? */
static struct goes look_at_all(uint64_t busy_level, int64_t now, int64_t times)
{
	struct goes found = { 0 };
	uint64_t level, found_level = 0;

	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned)fd + 1)) {
		struct conn *c = fdtab_get(fd);
		bool seen;

		if (!c || !conn_is_linked(c) || !conn_hold(c, fd))
			continue;
		conn_pump(c, 0);
		note_busy(c, now);
		seen = level_of(c, times, &level);
		begin(c, seen ? level : 0, spell + 1);
		if (seen && busy_level >= TIMES_BUSIER * level + MOST_BUSIER && conn_is_linked(c) && may_go(c, now) &&
		    (!found.c || c->busy.since < found.c->busy.since || (c->busy.since == found.c->busy.since && level < found_level))) {
			found = (struct goes){ .c = c, .fd = fd };
			found_level = level;
		}
		conn_drop(c);
	}
	return found;
}

/* Is one on its way back, and may be waited for? What a wait that has it in it would do is done. */
static bool room_comes(void)
{
	bool comes = false;

	if (!goes.c || !conn_hold(goes.c, goes.fd)) {
		goes.c = NULL;
		return false;
	}
	if (conn_is_linked(goes.c) && idle_is_coming_back(goes.c) && ++goes.looks <= WAITED_MOST) {
		idle_serve(goes.c, goes.fd);
		comes = true;
	}
	conn_drop(goes.c);
	if (!comes)
		goes.c = NULL;
	return comes;
}

static void take_back(struct goes quiet, enum reason why)
{
	if (!conn_hold(quiet.c, quiet.fd))
		return;
	renew_take_back_for(quiet.c, quiet.fd, why);
	if (load_relaxed(&quiet.c->asked_back)) {
		log_info("connection %u: goes back for a busier one", quiet.c->index);
		goes = quiet;
	}
	conn_drop(quiet.c);
}

static void spell_is_over(struct conn *c, enum reason why, int64_t now)
{
	int64_t times = (now - spell_began) / SPELL_NS, began = now_ns();
	struct goes quiet;
	uint64_t level = 0;
	bool seen = level_of(c, times, &level);

	quiet = look_at_all(seen ? level : 0, now, times);
	begin(c, level, ++spell);
	spell_began = now;
	spell_most = (now_ns() - began) * LOOK_SHARE;
	if (quiet.c)
		take_back(quiet, why);
}

bool ceiling_make_room(struct conn *c, enum reason why, int64_t now)
{
	bool comes;

	if (!lane_trylock(&looking, false))
		return false;
	if (!spell) {
		spell = 1;
		spell_began = now - SPELL_NS;
	}
	comes = room_comes();
	if (!comes && now - spell_began >= SPELL_NS && now - spell_began >= spell_most) {
		spell_is_over(c, why, now);
		comes = room_comes();
	} else if (c->busy.spell != spell) {
		begin(c, 0, spell);
	}
	lane_unlock(&looking);
	return comes;
}

void ceiling_help(int64_t now)
{
	int64_t began = now_ns();

	if (!lane_trylock(&looking, false))
		return;
	if (now - helped_at >= HELP_NS && now - helped_at >= help_most) {
		for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned)fd + 1)) {
			struct conn *c = fdtab_get(fd);

			if (!c || !conn_is_linked(c) || !conn_hold(c, fd))
				continue;
			idle_hear(c, fd);
			if (conn_is_linked(c) && idle_is_coming_back(c))
				idle_serve(c, fd);
			conn_drop(c);
		}
		helped_at = now;
		help_most = (now_ns() - began) * LOOK_SHARE;
	}
	lane_unlock(&looking);
}

void ceiling_fork_child(void)
{
	store_relaxed(&looking.owner, 0);
	goes.c = NULL;
}
