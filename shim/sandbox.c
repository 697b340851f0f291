/* SPDX-License-Identifier: MIT */
/* See sandbox.h. */
#include "shim/sandbox.h"

#include "ringbuf/barrier.h"
#include "shim/conn.h"
#include "shim/fdtab.h"
#include "shim/text.h"
#include "shim/wait.h"

_Atomic int sandbox_reason;

void sandbox_enter(enum reason why)
{
	int none = REASON_NONE;

	(void)compare_exchange(&sandbox_reason, &none, (int)why);
	if (why == REASON_SECCOMP) {
		barrier_disable();
		text_in_cage();
		/* What waits on rings ask the kernel once is asked while it may be. */
		(void)spin_budget_ns();
	}
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned int)fd + 1)) {
		struct conn *c = fdtab_get(fd);

		if (!c || !conn_hold(c, fd))
			continue;
		(void)conn_pin(c, why);
		/* The filter may answer a membarrier with death: the last one that is promised is made now. */
		if (why == REASON_SECCOMP && conn_is_linked(c))
			ring_rx_leave_polling(&c->link.rx);
		conn_drop(c);
	}
}
