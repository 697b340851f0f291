/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_WAIT_H
#define RINGWAY_WAIT_H

/*
 * The one place where a data call waits: spin briefly, arm, look again, sleep in ppoll() on the program's own fd, the bell of
 * the lane, and the fd of a rendezvous under way. No lane is locked meanwhile.
 */

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "shim/clock.h"
#include "shim/counted.h"

struct conn;

static inline bool timespec_valid(const struct timespec *t)
{
	return t->tv_sec >= 0 && t->tv_nsec >= 0 && t->tv_nsec < NS_PER_S;
}

/* More than fits is very long. */
static inline int64_t ns_of_timespec(const struct timespec *t)
{
	return t->tv_sec > INT64_MAX / NS_PER_S - 1 ? INT64_MAX / 2 : t->tv_sec * NS_PER_S + t->tv_nsec;
}

static inline struct timespec timespec_of(int64_t ns)
{
	return (struct timespec){ .tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S };
}

enum wait_for {
	WAIT_RX,	/* bytes, an end, an error */
	WAIT_TX,	/* room, an acknowledgement, an error */
};

#define WAIT_FOREVER INT64_MAX

/* When a wait that starts now for timeout_ns ends, on CLOCK_MONOTONIC; 0 is for ever, as SO_RCVTIMEO has it. */
int64_t wait_deadline(int64_t timeout_ns);

#define WAIT_HANDLED COUNTED_RESTARTS

/*
 * Returns 0 when it is worth trying again (which is not a promise), WAIT_HANDLED when a signal handler ran that restarts the call,
 * which ends it nevertheless if bytes have moved already; -EAGAIN past the deadline, -EINTR when a signal handler
 * ran that interrupts this call: one without SA_RESTART, or any while a timeout is set. `handled` is what counted_now() said when the call began to wait, then
 * what has been returned already. The caller has looked in vain since the last time, holds a use of the connection,
 * and drops it if it does not come back from here (unwound.h).
 * `passed`: it has no use of a link that is given up (conn_use.h); else it is to pass before it sleeps without one.
 */
int wait_lane(struct conn *c, int fd, enum wait_for what, int64_t deadline_ns, uint64_t *handled, bool passed);

/* For waits that no event ends: a millisecond, or until the deadline. Returns as wait_lane() does. */
int wait_briefly(struct conn *c, int fd, int64_t deadline_ns, uint64_t *handled);

/*
 * A one-way stream voids its own announcements: waits a moment for the acknowledgement of the one that stands, asleep for up to
 * a millisecond if the call may block, else a fifth of that without sleeping. The caller holds a use, no lock; one that does not come back has dropped it.
 */
void wait_for_acknowledgement(struct conn *c, int fd, bool may_block);

/*
 * How long to spin before sleeping, in nanoseconds, for a wait that could be over soon; 0: do not. Follows RINGWAY_SPIN; in
 * `auto` it learns from the results that spin_result() reports. Shared by waits on one connection and on many.
 */
uint32_t spin_budget_ns(void);
/* The same for who knows what now_ns() says. */
uint32_t spin_budget_at(int64_t now);
/* Of a spin of that budget that ended now: did it find what it waited for, and how long did it take? */
void spin_result(bool hit, uint32_t budget_ns, uint32_t spent_ns, int64_t now);
/* The time when a wait that has not spun, or in vain, begins to sleep; 0: nobody will learn from how long it takes. */
int64_t spin_sleep_begins(void);
/* Of a wait that ended asleep, with news: how long it lasted since then. */
void spin_slept(int64_t ns);
/* The same for one that is over now, and began at `from`. */
static inline void spin_slept_from(int64_t from)
{
	if (from)
		spin_slept(now_ns() - from);
}

/* Have waits been ending by spinning, so that a few looks more are worth their time? */
bool spin_pays(void);

/* Does the program want it at all, and is there another CPU for whom it waits for, as far as is known? */
bool spin_allowed(void);

/* Runs the spin by the budget: true as soon as `ready(arg)` is, false when the budget is spent or a signal handler has run. */
bool spin_until(bool (*ready)(void *arg), void *arg);
/* The same for a `ready` that pauses by itself when there is nothing. */
bool spin_until_relaxing(bool (*ready)(void *arg), void *arg);

#endif
