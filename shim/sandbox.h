/* SPDX-License-Identifier: MIT */
/*
 * From some point on this process can take no new connection to a ring: it has caged itself, or moves bytes by ways that
 * cannot be seen. What is on a ring already stays there; the rest is on TCP for good, with the reason. A filter without a
 * program is no cage: the kernel is asked whether it has filters (QEMU, libseccomp), and says EFAULT.
 */
#ifndef RINGWAY_SHIM_SANDBOX_H
#define RINGWAY_SHIM_SANDBOX_H

#include <stdbool.h>

#include "ringbuf/stats.h"

#pragma GCC visibility push(hidden)

extern _Atomic int sandbox_reason; /* enum reason; REASON_NONE: no obstacle */

/* The first reason counts. Pins every connection of the process that is on TCP. */
void sandbox_enter(enum reason why);

/* The same, and what is on a ring comes back, if it can. */
void sandbox_leave_rings(enum reason why);

/*
 * A process is about to be made so (flags of clone()). Where memory belongs to two tables of descriptors from then on, or a table to two memories,
 * rings are left. True: it is the second, and the child is to call guard_shut().
 */
bool sandbox_before_clone(uint64_t flags);

#pragma GCC visibility pop

static inline enum reason sandbox_why(void)
{
	return (enum reason)load_relaxed(&sandbox_reason);
}

#endif
