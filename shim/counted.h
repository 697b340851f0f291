/* SPDX-License-Identifier: MIT */
/*
 * The program's signal handlers, counted as they run, so that a wait that has been interrupted between two of its sleeps knows of it. READINESS.md, "Handlers
 * between two sleeps", has the whole. The kernel is given a stub, of which each stands for one handler for as long as the process lives: what the
 * kernel says of dispositions stays the one truth.
 */
#ifndef RINGWAY_SHIM_COUNTED_H
#define RINGWAY_SHIM_COUNTED_H

#include "ringbuf/atomic.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#pragma GCC visibility push(hidden)

struct counted_thread {
	_Atomic uint64_t handled;	/* low half: handlers with SA_RESTART that have run here; high half: others */
	struct timespec left;		/* for the kernel to read as a sleep begins; zero at all other times, and once a handler has run */
};
extern __thread struct counted_thread counted_thread __attribute__((tls_model("initial-exec")));

/* What the kernel is to call for the program's handler of that signal: the handler itself where it is not to be counted. From any context. */
uintptr_t counted_stub(int sig, uintptr_t handler);
/* The program's handler that the kernel's stands for; anything else is itself. */
uintptr_t counted_program(uintptr_t handler);
/* Is it one of ours? */
bool counted_is_stub(uintptr_t handler);

#define COUNTED_RESTARTS 1

/*
 * Of handlers that have run since *since, which is noted anew: 0: none; COUNTED_RESTARTS: the kernel would begin the call anew, unless bytes have moved
 * already; -EINTR: one without SA_RESTART, or any while a timeout is set.
 */
int counted_verdict(uint64_t *since, bool timed);
/* The same for who was interrupted just now, if not by one that is counted, then by another. */
int counted_interrupted(uint64_t *since, bool timed);

#pragma GCC visibility pop

static inline uint64_t counted_now(void)
{
	return load_relaxed(&counted_thread.handled);
}

#endif
