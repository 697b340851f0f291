/* SPDX-License-Identifier: MIT */
/*
 * The lane lock where it is not alone. A futex on a word in memory that relatives share, so never the private form. The
 * owner is a thread of a member of the family: a waiter whose patience ends asks the kernel whether that lives. Thread ids mean
 * something only inside the own process; of another process nothing is asked but whether it is there.
 */
#include "shim/lane_lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <time.h>

#include "ringbuf/sys.h"
#include "shim/family.h"

#define SPINS 100
#define PATIENCE_NS 20000000L
#define FOR_EVER UINT32_MAX
/* Enough for an owner that has only lost its processor. */
#define BRIEF_SLEEPS 4
#define BRIEF_NS 5000000L

static __thread uint32_t own_tid __attribute__((tls_model("initial-exec")));

static uint64_t this_thread(void)
{
	if (unlikely(!own_tid))
		own_tid = (uint32_t)sys_call0(SYS_gettid);
	return (uint64_t)load_relaxed(&family_me) << 32 | own_tid;
}

void lane_lock_fork_child(void)
{
	own_tid = 0;
}

static uint32_t member_of(uint64_t owner)
{
	return (uint32_t)(owner >> 32);
}

/* Member 0 is this process before it took a number: locks that no relative sees. */
static bool is_of_this_process(uint64_t owner)
{
	return member_of(owner) == load_relaxed(&family_me) || member_of(owner) == 0;
}

/* A thread id that was given anew only makes us wait on. */
static bool owner_is_gone(uint64_t owner)
{
	if (owner == LANE_LOCK_ALONE)
		return false;
	if (is_of_this_process(owner))
		return sys_call2(SYS_tkill, (int)(owner & LANE_LOCK_ALONE), 0) == -ESRCH;
	return family_is_gone(member_of(owner));
}

int lane_trylock_concurrent(struct lane_lock *l)
{
	uint64_t found = 0, me = this_thread();

	if (compare_exchange(&l->owner, &found, me))
		return 1;
	if (is_of_this_process(found & ~LANE_LOCK_WAITERS) || !owner_is_gone(found & ~LANE_LOCK_WAITERS))
		return 0;
	return compare_exchange(&l->owner, &found, me | (found & LANE_LOCK_WAITERS)) ? LANE_TAKEN_OVER : 0;
}

/* The half of the word that a waiter sleeps on. */
static uint32_t *futex_of(struct lane_lock *l)
{
	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half comes first");
	return (uint32_t *)&l->owner;
}

static bool is_own(uint64_t owner, uint64_t me)
{
	return ((uint32_t)owner == (uint32_t)me && is_of_this_process(owner)) ||
	       (owner == LANE_LOCK_ALONE && __libc_single_threaded);
}

bool lane_is_mine(const struct lane_lock *l)
{
	uint64_t owner = load_relaxed(&((struct lane_lock *)l)->owner) & ~LANE_LOCK_WAITERS;

	return owner && is_own(owner, this_thread());
}

/*
 * Sleeps at most so often, or for ever. An unlock wakes one and takes the mark away, so whoever has been asleep keeps it for the others: takes the lock
 * with it, and does not give up without.
 */
static int lock_within(struct lane_lock *l, unsigned sleeps)
{
	uint64_t me = this_thread(), mark = 0;
	struct timespec patience = { .tv_nsec = sleeps == FOR_EVER ? PATIENCE_NS : BRIEF_NS };

	for (unsigned spins = 0;; spins++) {
		uint64_t found = 0;
		uint64_t owner;

		if (compare_exchange(&l->owner, &found, me | mark))
			return 0;
		owner = found & ~LANE_LOCK_WAITERS;
		if (is_own(owner, me))
			return -EDEADLK;
		if (spins < SPINS) {
			cpu_relax();
			continue;
		}
		if (!(found & LANE_LOCK_WAITERS) &&
		    !compare_exchange(&l->owner, &found, found | LANE_LOCK_WAITERS))
			continue;
		if (sleeps != FOR_EVER && sleeps-- == 0)
			return -EBUSY;
		mark = LANE_LOCK_WAITERS;
		found |= LANE_LOCK_WAITERS;
		if (sys_call4(SYS_futex, futex_of(l), FUTEX_WAIT, (uint32_t)found, &patience) != -ETIMEDOUT)
			continue;
		/* Others may be waiting too: the mark is kept, at worst for one wake-up too many. */
		if (owner_is_gone(owner) && compare_exchange(&l->owner, &found, me | LANE_LOCK_WAITERS))
			return 1;
	}
}

int lane_lock_concurrent(struct lane_lock *l)
{
	return lock_within(l, FOR_EVER);
}

int lane_lock_briefly(struct lane_lock *l)
{
	return lock_within(l, BRIEF_SLEEPS);
}

void lane_unlock_concurrent(struct lane_lock *l)
{
	if (exchange(&l->owner, 0) & LANE_LOCK_WAITERS)
		sys_call3(SYS_futex, futex_of(l), FUTEX_WAKE, 1);
}
