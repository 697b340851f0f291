/* SPDX-License-Identifier: MIT */
/*
 * May this call look at our tables? One load answers in every case but the rare one. guard_state is 0 until the
 * constructor has finished in a process that asked for us (RINGWAY=1), and 0 for ever in one that did not. Then it is the size of the fd table, so
 * that one comparison tells a data call that it may look, and that the number is one of the table's. What has to be asked about makes it
 * negative: each vfork() in progress, and, from then on, that the program has cancelled a thread. Only while there is a vfork() does a
 * wrapper have to ask whether it runs in the child: that shares our memory, thread-local storage included, but has its own fd table, so it must
 * not touch any table of ours.
 */
#ifndef RINGWAY_SHIM_GUARD_H
#define RINGWAY_SHIM_GUARD_H

#include "ringbuf/atomic.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

/* READY is a bit that the others leave alone. */
#define GUARD_READY (INT64_C(1) << 20)
#define GUARD_VFORK (-(INT64_C(1) << 32))
#define GUARD_CANCEL (-(INT64_C(1) << 60))

extern _Atomic int64_t guard_state;
/* How many vfork() calls deep this thread is. */
extern __thread int guard_vfork_depth __attribute__((tls_model("initial-exec")));

/* Of a thread that is inside a vfork(): is the code now running the child's? Asks the kernel, because a signal handler
 * may run in the parent just before or after. */
bool guard_in_child(void);

/* Every start-up step has been done. Also called in a forked child: it has one thread, and no vfork of the parent's. */
void guard_open(void);
/* The program cancels a thread. */
void guard_note_cancel(void);

/* In a child that has the parent's descriptors, and a copy of its memory: what it closes is the parent's, so nothing here is its business any more. */
void guard_shut(void);

#pragma GCC visibility pop

static inline bool in_vfork_child(void)
{
	return unlikely(guard_vfork_depth != 0) && guard_in_child();
}

static inline bool guard_ready(void)
{
	int64_t state = load_relaxed(&guard_state);

	if (likely(state == GUARD_READY))
		return true;
	return state & GUARD_READY && !in_vfork_child();
}

/* More vfork() calls at one time than there can be threads would look like it. */
static inline bool guard_has_cancelled(int64_t state)
{
	return state < GUARD_CANCEL / 2;
}

/* At a cancellation point of libc's that may be over without a sleep. */
static inline void guard_test_cancel(void)
{
	if (unlikely(guard_has_cancelled(load_relaxed(&guard_state))))
		pthread_testcancel();
}

/* Ready, no child to be told from its parent, and no thread to be cancelled here: most often so, and told by one load. */
static inline bool guard_is_clear(void)
{
	return likely(load_relaxed(&guard_state) == GUARD_READY);
}

/* The one place where the inside's convention (count, 0 or -errno) becomes libc's. */
static inline ssize_t as_errno(ssize_t result)
{
	if (unlikely(result < 0)) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

#endif
