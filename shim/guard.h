/* SPDX-License-Identifier: MIT */
/*
 * May this call look at our tables? One load answers in every case but the rare one. guard_state is 0 until the
 * constructor has finished in a process that asked for us (RINGWAY=1), and 0 for ever in one that did not; bit 0 says
 * ready; each vfork() in progress adds 2; bit 30 says that the program has cancelled a thread. Only while one is does a wrapper have to ask whether it runs in the child: that
 * shares our memory, thread-local storage included, but has its own fd table, so it must not touch any table of ours.
 */
#ifndef RINGWAY_SHIM_GUARD_H
#define RINGWAY_SHIM_GUARD_H

#include "ringbuf/atomic.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

enum { GUARD_READY = 1, GUARD_VFORK = 2, GUARD_CANCEL = 1 << 30 };

extern _Atomic int guard_state;
/* How many vfork() calls deep this thread is. */
extern __thread int guard_vfork_depth __attribute__((tls_model("initial-exec")));

/* Of a thread that is inside a vfork(): is the code now running the child's? Asks the kernel, because a signal handler
 * may run in the parent just before or after. */
bool guard_in_child(void);

/* Every start-up step has been done. Also called in a forked child: it has one thread, and no vfork of the parent's. */
void guard_open(void);

#pragma GCC visibility pop

static inline bool in_vfork_child(void)
{
	return unlikely(guard_vfork_depth != 0) && guard_in_child();
}

static inline bool guard_ready(void)
{
	int state = load_relaxed(&guard_state);

	if (likely(state == GUARD_READY))
		return true;
	return state & GUARD_READY && !in_vfork_child();
}

/* At a cancellation point of libc's that may be over without a sleep. */
static inline void guard_test_cancel(void)
{
	if (unlikely(load_relaxed(&guard_state) & GUARD_CANCEL))
		pthread_testcancel();
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
