/* SPDX-License-Identifier: MIT */
/*
 * Which signals the program catches, and how an interrupted call is to go on: known from the calls that install handlers
 * (signal_calls.c), because asking the kernel 64 times before every sleep would cost too much. Bit N-1 is signal N.
 * A handler installed behind the shim's back is in no mask; a wait that it interrupts ends with EINTR.
 */
#ifndef RINGWAY_SHIM_SIGNALS_H
#define RINGWAY_SHIM_SIGNALS_H

#include "ringbuf/atomic.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define SIGNAL_BIT(sig) (UINT64_C(1) << ((sig) - 1))
/*
 * What the kernel drops where nobody catches it, but not while the thread that it is for blocks it: then it hands it to another one, whose epoll_wait() ends with EINTR though no
 * handler has run.
 */
#define SIGNALS_DROPPED (SIGNAL_BIT(SIGCHLD) | SIGNAL_BIT(SIGURG) | SIGNAL_BIT(SIGWINCH) | SIGNAL_BIT(SIGCONT))
/* They cannot wait, and who catches them may look at its own stack. */
#define SIGNALS_OF_INSTRUCTIONS (SIGNAL_BIT(SIGSEGV) | SIGNAL_BIT(SIGBUS) | SIGNAL_BIT(SIGFPE) | SIGNAL_BIT(SIGILL) | SIGNAL_BIT(SIGTRAP) | SIGNAL_BIT(SIGSYS))

extern _Atomic uint64_t signals_restart, signals_norestart;
/* Caught, but not counted (counted.h). */
extern _Atomic uint64_t signals_uncounted;

/* Handlers already installed when we start. */
int signals_init(void);
/* Asks the kernel what sig's disposition is now. */
void signals_refresh(int sig);

/*
 * What a call takes (a count, an armed bell, a descriptor) and notes for unwound.h is two steps, between which a handler must not jump away.
 * To keep signals out costs two system calls, so it is done in programs that catch signals and have been seen to jump;
 * not where threads are cancelled: one that is as it falls asleep would clean up with the mask of ours.
 */
enum { SIGNALS_JUMP = 1, SIGNALS_CANCEL = 2 };
extern _Atomic uint32_t signals_leave;

struct signals_held {
	sigset_t program;	/* the mask, while `held` */
	bool held;
};

/* All of which a handler may come: to be blocked, beside what is, where none must. */
static inline uint64_t signals_all(void)
{
	return ~(SIGNALS_DROPPED & ~(load_relaxed(&signals_restart) | load_relaxed(&signals_norestart)));
}

void signals_hold_now(struct signals_held *h);
void signals_hold_these(struct signals_held *h, uint64_t these);
void signals_release_now(const struct signals_held *h);

#pragma GCC visibility pop

static inline void signals_hold(struct signals_held *h)
{
	h->held = false;
	if (unlikely(load_relaxed(&signals_leave) == SIGNALS_JUMP))
		signals_hold_now(h);
}

/* A wait is about to sleep with the program's mask: what that keeps out is kept out between its sleeps, too. */
static inline void signals_hold_masked(struct signals_held *h, const sigset_t *mask)
{
	uint64_t these = 0;

	if (likely(!mask) || h->held)
		return;
	__builtin_memcpy(&these, mask, sizeof(these));
	if (these)
		signals_hold_these(h, these);
}

static inline void signals_release(const struct signals_held *h)
{
	if (unlikely(h->held))
		signals_release_now(h);
}

/* What a sleep in between lets in. */
static inline const sigset_t *signals_asleep(const struct signals_held *h, const sigset_t *wanted)
{
	return unlikely(h->held) && !wanted ? &h->program : wanted;
}

/* Caught with SA_RESTART. */
static inline uint64_t signals_restart_mask(void)
{
	return load_relaxed(&signals_restart);
}

/* Caught without. */
static inline uint64_t signals_norestart_mask(void)
{
	return load_relaxed(&signals_norestart);
}

/* A sleep was interrupted, and no handler was counted: would the kernel begin the call anew? */
static inline bool signals_uncounted_restart(void)
{
	uint64_t uncounted = load_relaxed(&signals_uncounted);

	return uncounted & signals_restart_mask() && !(uncounted & signals_norestart_mask());
}

/* The program is about to jump. */
static inline void signals_jump(void)
{
	if (unlikely(!load_relaxed(&signals_leave)) && signals_restart_mask() | signals_norestart_mask())
		fetch_or(&signals_leave, SIGNALS_JUMP);
}

#endif
