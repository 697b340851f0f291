/* SPDX-License-Identifier: MIT */
/*
 * Which signals the program catches, and how an interrupted call is to go on: known from the calls that install handlers
 * (signal_calls.c), because asking the kernel 64 times before every sleep would cost too much. Bit N-1 is signal N.
 * A handler installed behind the shim's back is in neither mask; a wait that it interrupts ends with EINTR.
 */
#ifndef RINGWAY_SHIM_SIGNALS_H
#define RINGWAY_SHIM_SIGNALS_H

#include "ringbuf/atomic.h"

#include <stdint.h>

#pragma GCC visibility push(hidden)

extern _Atomic uint64_t signals_restart, signals_norestart;

/* Handlers already installed when we start. */
int signals_init(void);
/* Asks the kernel what sig's disposition is now. */
void signals_refresh(int sig);

#pragma GCC visibility pop

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

#endif
