/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_LANE_LOCK_H
#define RINGWAY_LANE_LOCK_H

/*
 * The lock of one lane. It lies in a record that forked processes share, it is held for a copy and never across a sleep.
 *
 * Alone (one thread, a record that no fork has ever shared) taking it is a plain store. Otherwise it is a compare and
 * exchange, and a futex where two meet. A holder that died is noticed by the waiter's timeout and taken over from; so is
 * a relative by whoever only tries. A signal handler that finds its own thread holding the lane is told -EDEADLK and lets its call fall back; nothing waits
 * for itself, and nobody in a circle (circle.h): one of those who would is told the same, a handler where there is one.
 */

#include <stdbool.h>
#include <stdint.h>

#include "ringbuf/atomic.h"
#include "shim/glibc.h"

/* 0: free. Else who holds it: the process (family.h) in the upper half, in the lower its thread's id and whether somebody waits. */
struct lane_lock {
	_Atomic uint64_t owner;
};

#define LANE_LOCK_WAITERS UINT64_C(0x80000000)
#define LANE_LOCK_ALONE UINT64_C(0x7fffffff)	/* held by the only thread there is */

/* 0; 1 if the lane was taken over from a holder that died; -EDEADLK if this thread holds it already, or waits in a circle. */
int lane_lock_concurrent(struct lane_lock *l);
/* For who cannot do without: others of the circle give up. */
void lane_lock_surely(struct lane_lock *l);
/* As lane_lock_concurrent(), or -EBUSY where it is locked for long: for who has something that the owner may want. Some 20 ms at most. */
int lane_lock_briefly(struct lane_lock *l);
void lane_unlock_concurrent(struct lane_lock *l);
int lane_trylock_concurrent(struct lane_lock *l);

/* Does this thread hold it? */
bool lane_is_mine(const struct lane_lock *l);

/* Of a thread, as it stands in `owner`. A process that has taken a number (family.h) is found in its locks without one, too. */
bool lane_owner_is_gone(uint64_t owner);
uint64_t lane_owner_named(uint64_t owner);

struct circle_wait;
/* For who tries again and again to get what others hold: true where it waits in a circle by that, and is to do without. circle_leave() ends it. */
bool lane_waits_in_circle(struct circle_wait *w, const struct lane_lock *l);

/* By the thread that forks; and in the child, before anything else: the thread has another id. */
void lane_lock_fork_prepare(void);
void lane_lock_fork_child(void);

static inline bool lane_is_alone(bool shared)
{
	return __libc_single_threaded && !shared;
}

/* A hint, for statistics and tests. */
static inline bool lane_is_locked(const struct lane_lock *l)
{
	return load_relaxed(&((struct lane_lock *)l)->owner) != 0;
}

static inline bool lane_lock_alone(struct lane_lock *l, bool shared)
{
	if (unlikely(!lane_is_alone(shared)) || unlikely(load_relaxed(&l->owner) != 0))
		return false;
	store_relaxed(&l->owner, LANE_LOCK_ALONE);
	fence_compiler();
	return true;
}

/* For who took it alone: false, and still held, if somebody waits for it by now. */
static inline bool lane_unlock_alone(struct lane_lock *l)
{
	if (unlikely(load_relaxed(&l->owner) != LANE_LOCK_ALONE))
		return false;
	fence_compiler();
	store_release(&l->owner, 0);
	return true;
}

static inline int lane_lock(struct lane_lock *l, bool shared)
{
	return likely(lane_lock_alone(l, shared)) ? 0 : lane_lock_concurrent(l);
}

#define LANE_TAKEN_OVER 2

/* 0 if it is locked, by whomever; 1; LANE_TAKEN_OVER from a relative that died. */
static inline int lane_trylock(struct lane_lock *l, bool shared)
{
	if (lane_is_alone(shared)) {
		if (load_relaxed(&l->owner) != 0)
			return 0;
		store_relaxed(&l->owner, LANE_LOCK_ALONE);
		fence_compiler();
		return 1;
	}
	return lane_trylock_concurrent(l);
}

static inline void lane_unlock(struct lane_lock *l)
{
	if (unlikely(!lane_unlock_alone(l)))
		lane_unlock_concurrent(l);
}

#endif
