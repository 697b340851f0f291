/* SPDX-License-Identifier: MIT */
/*
 * The lane lock where it is not alone. A futex on a word in memory that relatives share, so never the private form. The
 * owner is a thread id: a waiter whose patience ends asks the kernel whether that thread still lives.
 */
#include "shim/lane_lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <time.h>

#include "ringbuf/sys.h"

#define SPINS 100
#define PATIENCE_NS 20000000L

static __thread uint32_t own_tid __attribute__((tls_model("initial-exec")));

static uint32_t tid_of_this_thread(void)
{
	if (unlikely(!own_tid))
		own_tid = (uint32_t)sys_call0(SYS_gettid);
	return own_tid;
}

void lane_lock_fork_child(void)
{
	own_tid = 0;
}

/* True if nobody has this thread id any more. A number that was given anew only makes us wait on. */
static bool thread_is_gone(uint32_t tid)
{
	return tid != LANE_LOCK_ALONE && sys_call2(SYS_tkill, (int)tid, 0) == -ESRCH;
}

bool lane_trylock_concurrent(struct lane_lock *l)
{
	uint32_t found = 0;

	return compare_exchange(&l->owner, &found, tid_of_this_thread());
}

int lane_lock_concurrent(struct lane_lock *l)
{
	uint32_t me = tid_of_this_thread();
	struct timespec patience = { .tv_nsec = PATIENCE_NS };

	for (unsigned spins = 0;; spins++) {
		uint32_t found = 0;
		uint32_t owner;

		if (compare_exchange(&l->owner, &found, me))
			return 0;
		owner = found & ~LANE_LOCK_WAITERS;
		if (owner == me || (owner == LANE_LOCK_ALONE && __libc_single_threaded))
			return -EDEADLK;
		if (spins < SPINS) {
			cpu_relax();
			continue;
		}
		if (!(found & LANE_LOCK_WAITERS) &&
		    !compare_exchange(&l->owner, &found, found | LANE_LOCK_WAITERS))
			continue;
		found |= LANE_LOCK_WAITERS;
		if (sys_call4(SYS_futex, &l->owner, FUTEX_WAIT, found, &patience) != -ETIMEDOUT)
			continue;
		/* Others may be waiting too: the mark is kept, at worst for one wake-up too many. */
		if (thread_is_gone(owner) && compare_exchange(&l->owner, &found, me | LANE_LOCK_WAITERS))
			return 1;
	}
}

void lane_unlock_concurrent(struct lane_lock *l)
{
	if (exchange(&l->owner, 0) & LANE_LOCK_WAITERS)
		sys_call3(SYS_futex, &l->owner, FUTEX_WAKE, 1);
}
