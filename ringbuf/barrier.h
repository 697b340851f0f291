/* SPDX-License-Identifier: MIT */
/*
 * The heavy half of an asymmetric fence: membarrier makes every CPU that runs a registered process fence now, so that a
 * registered sender may leave its own fence out while the receiver says WAKE_POLLING. Each side decides alone:
 *
 *   - a sender skips its fence only if its own process is registered (barrier_registered());
 *   - a receiver enters POLLING only if it can issue the heavy half (barrier_available()).
 *
 * So a peer that is not registered, or was refused, costs a fence and never a wake-up.
 */
#ifndef RINGWAY_RINGBUF_BARRIER_H
#define RINGWAY_RINGBUF_BARRIER_H

#include "ringbuf/atomic.h"

extern _Atomic uint32_t barrier_state; /* of this process; BARRIER_* bits */
#define BARRIER_REGISTERED UINT32_C(1)
#define BARRIER_HEAVY_WORKS UINT32_C(2)

/*
 * Registers the process. Once at start, and again in a forked child (the kernel copies the registration, but a child may
 * run under other rules). 0 or -errno; a refusal only means that fences are paid for.
 */
int barrier_init(void);

/* The process is about to lose the right to call membarrier (seccomp): never enter POLLING again, pay for fences. The
 * caller takes lanes that poll to AWAKE first, see ring_rx_leave_polling(). */
void barrier_disable(void);

/*
 * Every memory access that a registered process made before is ordered against every one it makes after, and the caller's own
 * too. 0, or -errno where the kernel refuses: then nothing is ordered but the caller, see ring_rx_sleep_begin().
 */
int barrier_heavy(void);

static inline bool barrier_registered(void)
{
	return load_relaxed(&barrier_state) & BARRIER_REGISTERED;
}

static inline bool barrier_available(void)
{
	return load_relaxed(&barrier_state) & BARRIER_HEAVY_WORKS;
}

#endif
