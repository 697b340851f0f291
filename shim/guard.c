/* SPDX-License-Identifier: MIT */
/* See guard.h. */
#include "shim/guard.h"

#include "ringbuf/sys.h"
#include "shim/inherit.h"
#include "shim/vfork_child.h"

_Atomic int64_t guard_state;
__thread int guard_vfork_depth __attribute__((tls_model("initial-exec")));

void guard_open(void)
{
	guard_vfork_depth = 0;
	store_release(&guard_state, GUARD_READY);
}

void guard_note_cancel(void)
{
	int64_t state = load_relaxed(&guard_state);

	while (!guard_has_cancelled(state) && !compare_exchange(&guard_state, &state, state + GUARD_CANCEL))
		;
}

void guard_shut(void)
{
	store_release(&guard_state, 0);
}

bool guard_in_child(void)
{
	return sys_getpid() != inherit_pid;
}

/* Called by vfork.S only. */
void guard_vfork_enter(void);
long guard_vfork_leave(long result);

__attribute__((visibility("hidden"))) void guard_vfork_enter(void)
{
	if (guard_ready())
		inherit_before_vfork();
	if (load_relaxed(&guard_state) & GUARD_READY && guard_vfork_depth++ == 0) {
		vfork_child_begins();
		fetch_add(&guard_state, GUARD_VFORK);
	}
}

__attribute__((visibility("hidden"))) long guard_vfork_leave(long result)
{
	/* A child that was killed inside a vfork of its own has left the depth too high: back in the process that the
	 * memory belongs to, it is none. */
	if (guard_vfork_depth > 0) {
		guard_vfork_depth = guard_in_child() ? guard_vfork_depth - 1 : 0;
		if (guard_vfork_depth == 0) {
			fetch_sub(&guard_state, GUARD_VFORK);
			vfork_child_over();
		}
	}
	if (sys_failed(result)) {
		errno = (int)-result;
		return -1;
	}
	return result;
}
