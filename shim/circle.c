/* SPDX-License-Identifier: MIT */
/* See circle.h. */
#include "shim/circle.h"

#include "shim/lane_lock.h"

#define BEING_TAKEN UINT64_MAX
#define LOOKS_TO_BELIEVE 2	/* the first may have been under way */
#define LATE_LOOKS 16

struct member {
	uint64_t who, wait, owner;
	uint32_t looks, will;
};

static struct circle *circle;

void circle_init(struct circle *shared)
{
	circle = shared;
}

/* A seat whose thread was killed, or jumped away and ended, is free, too; asked only where all are taken. */
static struct circle_seat *free_seat(bool of_the_dead)
{
	for (unsigned i = 0; i < CIRCLE_SEATS; i++) {
		struct circle_seat *s = &circle->seats[i];
		uint64_t who = load_relaxed(&s->who);

		if ((!who || (of_the_dead && who != BEING_TAKEN && lane_owner_is_gone(who))) &&
		    compare_exchange(&s->who, &who, BEING_TAKEN))
			return s;
	}
	return NULL;
}

static struct circle_seat *take_seat(uint64_t me, uint64_t owner, enum circle_will will)
{
	struct circle_seat *s = free_seat(false);

	if (!s)
		s = free_seat(true);
	if (!s)
		return NULL;
	store_relaxed(&s->owner, owner);
	store_relaxed(&s->looks, 1);
	store_relaxed(&s->will, will);
	store_relaxed(&s->wait, fetch_add(&circle->last_wait, 1) + 1);
	/* Pairs with read_seat(). */
	store_release(&s->who, me);
	return s;
}

static void leave_seat(struct circle_seat *s)
{
	store_release(&s->wait, 0);
	store_release(&s->who, 0);
}

/* False: it is over, or another one. The owner is that of the look that is counted, or of a later one. */
static bool read_seat(struct circle_seat *s, uint64_t who, struct member *m)
{
	if (load_acquire(&s->who) != who)
		return false;
	*m = (struct member){ .who = who, .wait = load_acquire(&s->wait) };
	m->looks = load_acquire(&s->looks);
	m->owner = load_acquire(&s->owner);
	m->will = load_acquire(&s->will);
	return m->wait && load_relaxed(&s->who) == who && load_relaxed(&s->wait) == m->wait;
}

static bool find(uint64_t who, struct member *newest)
{
	struct member m;

	newest->wait = 0;
	for (unsigned i = 0; i < CIRCLE_SEATS; i++)
		if (read_seat(&circle->seats[i], who, &m) && m.wait > newest->wait)
			*newest = m;
	return newest->wait;
}

/* Of this thread's, those of handlers that have jumped away. */
static void forget_newer(uint64_t me, uint64_t wait)
{
	for (unsigned i = 0; i < CIRCLE_SEATS; i++)
		if (load_relaxed(&circle->seats[i].who) == me && load_relaxed(&circle->seats[i].wait) > wait)
			leave_seat(&circle->seats[i]);
}

/* How many wait for each other, from the one that `me` waits for on to `me`; 0: no circle, or not with this one in it. */
static unsigned follow(uint64_t me, uint64_t owner, struct member *all)
{
	for (unsigned nr = 0; nr < CIRCLE_LONGEST; owner = lane_owner_named(all[nr].owner), nr++) {
		if (!find(owner, &all[nr]))
			return 0;
		if (owner == me)
			return nr + 1;
	}
	return 0;
}

static bool is_same(const struct circle_wait *w, const struct member *now, unsigned nr)
{
	for (unsigned i = 0; i < nr; i++)
		if (now[i].wait != w->waits[i])
			return false;
	return nr == w->nr;
}

static void see(struct circle_wait *w, const struct member *now, unsigned nr)
{
	w->nr = nr;
	w->late = 0;
	w->counting = false;
	for (unsigned i = 0; i < nr; i++)
		w->waits[i] = now[i].wait;
}

/* All of these waits were under way when the first sight was over. */
static void count_from(struct circle_wait *w, const struct member *now)
{
	w->counting = true;
	for (unsigned i = 0; i < w->nr; i++)
		w->looks[i] = now[i].looks;
}

static bool all_looked_again(const struct circle_wait *w, const struct member *now)
{
	for (unsigned i = 0; i < w->nr; i++)
		if (now[i].looks - w->looks[i] < LOOKS_TO_BELIEVE)
			return false;
	return true;
}

static const struct member *chosen(const struct member *all, unsigned nr)
{
	const struct member *m = &all[0];

	for (unsigned i = 1; i < nr; i++)
		if (all[i].will > m->will || (all[i].will == m->will && all[i].wait > m->wait))
			m = &all[i];
	return m;
}

bool circle_look(struct circle_wait *w, uint64_t me, uint64_t owner, enum circle_will will, bool (*is_handler)(void))
{
	struct member now[CIRCLE_LONGEST];
	const struct member *m;
	unsigned nr;

	if (!circle)
		return false;
	owner = lane_owner_named(owner);
	if (w->seat) {
		store_release(&w->seat->owner, owner);
		fetch_add(&w->seat->looks, 1);
		forget_newer(me, load_relaxed(&w->seat->wait));
	} else {
		w->seat = take_seat(me, owner, will);
	}
	nr = follow(me, owner, now);
	if (!nr || !is_same(w, now, nr)) {
		see(w, now, nr);
		if (nr && is_handler && w->seat)
			store_relaxed(&w->seat->will, is_handler() ? CIRCLE_SOON : will);
		return false;
	}
	if (!w->counting)
		count_from(w, now);
	if (!all_looked_again(w, now))
		return false;
	m = chosen(now, nr);
	return m->who == me && (m->will == CIRCLE_SOON || (m->will == CIRCLE_LATE && ++w->late > LATE_LOOKS));
}

void circle_leave(struct circle_wait *w)
{
	if (w->seat)
		leave_seat(w->seat);
	w->seat = NULL;
}
