/* SPDX-License-Identifier: MIT */
/* See sandbox.h. */
#include "shim/sandbox.h"

#include "ringbuf/barrier.h"
#include "shim/conn.h"
#include "shim/fdtab.h"

_Atomic int sandbox_reason;

void sandbox_enter(enum reason why)
{
	int none = REASON_NONE;

	(void)compare_exchange(&sandbox_reason, &none, (int)why);
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned int)fd + 1)) {
		struct conn *c = fdtab_get(fd);

		if (c)
			(void)conn_pin(c, why);
	}
	if (why == REASON_SECCOMP)
		barrier_disable();
}
