/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_RENEW_H
#define RINGWAY_RENEW_H

/*
 * Back to TCP for a while, and what comes after it (RETREAT.md section 6): a connection that is to be off, or that nothing goes over (idle.h), asks
 * its lanes back; a link of which both lanes are back is given up, and another may follow.
 */

#include <stdbool.h>

#include "shim/conn.h"
#include "shim/stats_slots.h"

/* Was it said to be off? */
bool renew_is_off(const struct conn *c);

/* Why it should come back, where it can; REASON_NONE. */
enum reason renew_weigh(struct conn *c);
static inline enum reason renew_wanted(struct conn *c)
{
	return likely(!stats_any_off()) ? REASON_NONE : renew_weigh(c);
}

/* If that is so still: the tx lane leaves, and the peer is asked for the other. Under conn_hold(), no lane locked; never blocks. */
void renew_take_back(struct conn *c, int fd);
/* The same, if it can, for a reason of the caller's. */
void renew_take_back_for(struct conn *c, int fd, enum reason why);

/* Would there be anything to give up? A link that another process maps, or through which an end is told, stays. A hint. */
bool renew_could_part(const struct conn *c);

/* Both this and retreat_serve(), where a call has found nothing to do; no lane locked. */
void renew_serve(struct conn *c, int fd);

/* The tx lane is on a ring and is not to stay there: what is to be done with the next chance. */
static inline bool renew_leaves(const struct conn *c)
{
	struct conn *m = (struct conn *)c;

	return unlikely(load_relaxed(&m->asked_back)) && load_relaxed(&m->tx.state) == TX_RING;
}

/*
 * Both lanes are back, or its link is dead and they soon will be, and nobody has tried to give it up for a while: a step of the rendezvous (nego_poke()) does.
 */
static inline bool renew_is_due(const struct conn *c)
{
	struct conn *m = (struct conn *)c;

	return unlikely(load_relaxed(&m->returned) || load_relaxed(&m->link_dead)) && load_relaxed(&m->linked) &&
	       load_relaxed(&m->tx.calls) + load_relaxed(&m->rx.calls) >= m->nego.due_calls;
}

enum renew_part {
	RENEW_NOT_NOW,
	RENEW_ANEW,	/* the peer may be looked for again */
	RENEW_NEVER,	/* what brought it back stays */
};

/* Gives the link up, both lanes locked. */
enum renew_part renew_part(struct conn *c);

/* Both lanes locked, before a new link is made: false where the old one is not down yet. */
bool renew_is_clear(struct conn *c);

#endif
