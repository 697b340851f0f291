/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_IDLE_H
#define RINGWAY_IDLE_H

/*
 * Connections over which nothing goes give their links back: RETREAT.md, "Idle". There is no timer, and no thread: the waits that the program makes look
 * at the connections of the process when the watch says so, and sleep no longer than until then.
 */

#include <stdbool.h>
#include <stdint.h>

#include "shim/conn.h"

/* The watch: when the next look is due; 0: none is. Odd: and there is news since the last one began. Not for use outside idle.[hc]. */
extern _Atomic uint64_t idle_word;

static inline bool idle_is_watched(void)
{
	return load_relaxed(&idle_word) != 0;
}

/* A connection has come to be watched: one that is linked, or has moved after it was left alone. */
void idle_watch(void);

/* If one is due by `now` (now_ns()), and no other thread is at it, the look. No lock of a connection or a set held; never blocks. */
void idle_look_due(int64_t now);
static inline bool idle_is_due(int64_t now)
{
	uint64_t word = load_relaxed(&idle_word);

	return word && now >= (int64_t)word;
}
static inline void idle_look(int64_t now)
{
	if (unlikely(idle_is_due(now)))
		idle_look_due(now);
}

/* How long a sleep of left_ns (negative: for ever) may last. One that ends early by that is followed by idle_look(), and by the rest of it. */
int64_t idle_until(int64_t left_ns);

/* Before a sleep on c, once it is armed, and now and then: it may have been left alone, and have moved since. */
void idle_note_moved(struct conn *c);
static inline void idle_note(struct conn *c)
{
	if (unlikely(load_relaxed(&c->idle_aside)))
		idle_note_moved(c);
}

/* ---- For looks that are made for other reasons, the connection held. ---- */

/* Between hosts nothing is heard that nobody looks for: what has come, and what the peer has said by TCP. */
void idle_hear(struct conn *c, int fd);
/* It has been asked back, or is on its way; then what a wait that has it in it would do. */
bool idle_is_coming_back(struct conn *c);
void idle_serve(struct conn *c, int fd);
/* There is something in it that nobody but its program, or its peer's, can change. */
bool idle_waits_for_program(struct conn *c);
/* It has moved since some look: when it has been seen busy for the last time, as far as it is known. */
int64_t idle_seen_busy(struct conn *c, int64_t now);

/* A link was made; both lanes locked. */
void idle_linked(struct conn *c);

void idle_fork_child(void);

#endif
