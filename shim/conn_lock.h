/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_LOCK_H
#define RINGWAY_CONN_LOCK_H

/* One lane's lock, as a connection takes it: what a holder that died has left half done is made good first. */

#include <errno.h>

#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_use.h"
#include "shim/fdtab.h"

/*
 * The connection of which this thread has locked a lane last, and where its stack stood: whether it still holds any is only asked when a
 * signal handler jumps away (jump_calls.c).
 */
extern __thread struct conn *conn_locked_last __attribute__((tls_model("initial-exec")));
extern __thread const void *conn_locked_frame __attribute__((tls_model("initial-exec")));

static inline void conn_locking(struct conn *c)
{
	conn_locked_last = c;
	conn_locked_frame = __builtin_frame_address(0);
	fence_compiler();
}

/* 0 or -EDEADLK: a signal handler inside a call of its own thread. */
static inline __attribute__((always_inline)) int conn_lock_lane(struct conn *c, struct lane_lock *lock, void (*recover)(struct conn *c))
{
	int r;

	conn_locking(c);
	r = lane_lock(lock, load_relaxed(&c->shared));
	if (unlikely(r > 0))
		recover(c);
	return r < 0 ? r : 0;
}

static inline __attribute__((always_inline)) bool conn_trylock_lane(struct conn *c, struct lane_lock *lock,
								    void (*recover)(struct conn *c))
{
	int r;

	conn_locking(c);
	r = lane_trylock(lock, load_relaxed(&c->shared));
	if (unlikely(r == LANE_TAKEN_OVER))
		recover(c);
	return r != 0;
}

/* For who calls nothing until it unlocks: false, and not locked, unless this is the only thread and nobody holds the lane. */
static inline bool conn_lock_alone(struct conn *c, struct lane_lock *lock)
{
	conn_locking(c);
	return lane_lock_alone(lock, load_relaxed(&c->shared));
}

static inline int conn_lock_tx(struct conn *c)
{
	return conn_lock_lane(c, &c->tx.lock, conn_tx_recover);
}

static inline int conn_lock_rx(struct conn *c)
{
	return conn_lock_lane(c, &c->rx.lock, conn_rx_recover);
}

static inline bool conn_trylock_tx(struct conn *c)
{
	return conn_trylock_lane(c, &c->tx.lock, conn_tx_recover);
}

static inline bool conn_trylock_rx(struct conn *c)
{
	return conn_trylock_lane(c, &c->rx.lock, conn_rx_recover);
}

/*
 * What a data call begins with, given what conn_lock_tx() or conn_lock_rx() said: 0, or why the call is over. Another thread may have
 * closed the descriptor, under a call that has slept and goes on, or before this one.
 */
static inline int conn_entered(struct conn *c, int fd, struct lane_lock *lock, int locked)
{
	if (locked < 0)
		return -EAGAIN;
	if (likely(__libc_single_threaded) || likely(fdtab_get(fd) == c) || conn_call_has(c, fd))
		return 0;
	lane_unlock(lock);
	return -EBADF;
}

#endif
