/* SPDX-License-Identifier: MIT */
/* See sandbox.h. */
#include "shim/sandbox.h"

#include <sched.h>

#include "ringbuf/barrier.h"
#include "shim/conn.h"
#include "shim/fd_conn.h"
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

void sandbox_leave_rings(enum reason why)
{
	sandbox_enter(why);
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned int)fd + 1))
		/* And nothing of it is left that would look at the socket first. */
		if (fd_hand_on(fd, why) || fd_come_back(fd, why))
			(void)fd_pin(fd, why);
}

bool sandbox_before_clone(uint64_t flags)
{
	bool memory = flags & CLONE_VM, files = flags & CLONE_FILES;

	if (memory != files && !(memory && flags & CLONE_VFORK))
		sandbox_leave_rings(REASON_FD_TABLE);
	return files && !memory;
}
