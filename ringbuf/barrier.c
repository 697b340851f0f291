/* SPDX-License-Identifier: MIT */
/*
 * membarrier, global expedited: it interrupts only CPUs that run a registered process right now, and needs no right over the
 * peer's process. The private commands reach only our own threads, and the plain global one waits milliseconds.
 */
#include <errno.h>
#include <linux/membarrier.h>

#include "ringbuf/barrier.h"
#include "ringbuf/sys.h"

_Atomic uint32_t barrier_state;

int barrier_init(void)
{
	int ret = sys_membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0);
	uint32_t state = 0;

	if (ret == 0) {
		state = BARRIER_REGISTERED;
		ret = sys_membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0);
		if (ret == 0)
			state |= BARRIER_HEAVY_WORKS;
	}
	store_relaxed(&barrier_state, state);
	return ret;
}

void barrier_disable(void)
{
	/* The registration stays with the process: its senders may go on to skip fences. */
	fetch_and(&barrier_state, ~BARRIER_HEAVY_WORKS);
}

int barrier_heavy(void)
{
	fence_full();
	return sys_membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0);
}
