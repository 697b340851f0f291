/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_SHIM_CIRCLE_H
#define RINGWAY_SHIM_CIRCLE_H

/*
 * Who waits for whom, so that nobody waits in a circle.
 *
 * The locks (lane_lock.h) have an order, so the calls of a program never wait in one. Its signal handlers do: each has interrupted a call that may
 * hold anything. Two can want what the other's thread holds; one can want what a call holds that waits for what this handler has interrupted.
 *
 * So who has waited for long takes a seat: it says in memory that relatives share for whom it waits, and follows what those say, to one
 * who waits for nobody, or back to itself. A lock that is free, or held for a copy, never comes here.
 *
 * What a seat says may be over. It is believed when the same waits have been seen to make a circle, and each of them has looked twice since the next sight who
 * holds what it wants: then it found that with a thread that was waiting already, and who waits gives nothing back. (But a handler on top of a wait may have
 * had it for a moment; at worst one is told no that would have been told yes.) Then one of the circle gives up: a handler, which is told
 * what it would be told where its own thread holds the lock; only where none is known to be one, after a while, another.
 * tests/model/circle.pml searches it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringbuf/atomic.h"

#define CIRCLE_SEATS 64
#define CIRCLE_LONGEST 16

enum circle_will {
	CIRCLE_NEVER,	/* it cannot do without */
	CIRCLE_LATE,	/* it might have to */
	CIRCLE_SOON,	/* a signal handler */
};

/* Threads are named by what they write into a lock. */
struct circle_seat {
	_Atomic uint64_t who;	/* 0: free */
	_Atomic uint64_t wait;	/* which of all waits; a thread's newest, a handler's, is what it waits in now */
	_Atomic uint64_t owner;	/* who had it at the last look */
	_Atomic uint32_t looks;
	_Atomic uint32_t will;
};

/* Shared by the family. */
struct circle {
	_Atomic uint64_t last_wait;
	struct circle_seat seats[CIRCLE_SEATS];
};

/* One wait. */
struct circle_wait {
	struct circle_seat *seat;
	uint32_t nr, late;
	bool counting;
	uint64_t waits[CIRCLE_LONGEST];	/* at the first sight of the circle */
	uint32_t looks[CIRCLE_LONGEST];	/* at the second */
};

#pragma GCC visibility push(hidden)

/* Before main. */
void circle_init(struct circle *shared);

static inline void circle_begin(struct circle_wait *w)
{
	w->seat = NULL;
	w->nr = w->late = 0;
	w->counting = false;
}

/*
 * `me` waits, and has just seen who has it. True: it waits in a circle, and is to give up. Whether it is a handler is asked at the first sight of one: that takes
 * system calls. NULL: it does not matter.
 */
bool circle_look(struct circle_wait *w, uint64_t me, uint64_t owner, enum circle_will will, bool (*is_handler)(void));
/* The wait is over. One that a handler jumped out of is forgotten when its thread waits again. */
void circle_leave(struct circle_wait *w);

#pragma GCC visibility pop

#endif
