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
#include "shim/circle.h"
#include "shim/family.h"
#include "shim/handler.h"

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

/*
 * Whose copy this process's first thread is. A handler that has interrupted a call on a lane and forks has that call in the child, too, where
 * nobody will ever unlock for it: the one that has locked may wait for the child's end.
 */
#define ANCESTORS 4
static uint64_t ancestors[ANCESTORS], forker;

void lane_lock_fork_prepare(void)
{
	forker = this_thread();
}

void lane_lock_fork_child(void)
{
	for (unsigned i = ANCESTORS - 1; i; i--)
		ancestors[i] = ancestors[i - 1];
	ancestors[0] = forker;
	own_tid = 0;
}

static bool is_ancestor(uint64_t owner)
{
	for (unsigned i = 0; i < ANCESTORS; i++)
		if (ancestors[i] == owner)
			return true;
	return false;
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
bool lane_owner_is_gone(uint64_t owner)
{
	if (owner == LANE_LOCK_ALONE)
		return false;
	if (is_of_this_process(owner))
		return sys_call2(SYS_tkill, (int)(owner & LANE_LOCK_ALONE), 0) == -ESRCH;
	return family_is_gone(member_of(owner));
}

uint64_t lane_owner_named(uint64_t owner)
{
	return member_of(owner) ? owner : (uint64_t)load_relaxed(&family_me) << 32 | owner;
}

int lane_trylock_concurrent(struct lane_lock *l)
{
	uint64_t found = 0, me = this_thread();

	if (compare_exchange(&l->owner, &found, me))
		return 1;
	if (is_of_this_process(found & ~LANE_LOCK_WAITERS) || !lane_owner_is_gone(found & ~LANE_LOCK_WAITERS))
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

/* In vain: for ever, as far as is known. */
static bool waits_in_vain(struct circle_wait *w, uint64_t me, uint64_t owner, bool surely)
{
	if (surely)
		return circle_look(w, me, owner, CIRCLE_NEVER, NULL);
	return circle_look(w, me, owner, CIRCLE_LATE, handler_inside) || (is_ancestor(owner) && handler_inside());
}

bool lane_waits_in_circle(struct circle_wait *w, const struct lane_lock *l)
{
	uint64_t owner = load_relaxed(&((struct lane_lock *)l)->owner) & ~LANE_LOCK_WAITERS;

	return owner && circle_look(w, this_thread(), owner, CIRCLE_LATE, NULL);
}

/*
 * Sleeps at most so often, or for ever. An unlock wakes one and takes the mark away, so whoever has been asleep keeps it for the others: takes the lock
 * with it, and does not give up without. A timer's signals may come more often than patience ends.
 */
static int lock_within(struct lane_lock *l, unsigned sleeps, bool surely)
{
	uint64_t me = this_thread(), mark = 0;
	struct timespec patience = { .tv_nsec = sleeps == FOR_EVER ? PATIENCE_NS : BRIEF_NS };
	struct circle_wait circle;
	bool gives_up = false;
	int r;

	circle_begin(&circle);
	for (unsigned spins = 0;; spins++) {
		uint64_t found = 0;
		uint64_t owner;

		r = 0;
		if (compare_exchange(&l->owner, &found, me | mark))
			break;
		owner = found & ~LANE_LOCK_WAITERS;
		r = -EDEADLK;
		if (is_own(owner, me))
			break;
		if (spins < SPINS) {
			cpu_relax();
			continue;
		}
		if (!(found & LANE_LOCK_WAITERS) &&
		    !compare_exchange(&l->owner, &found, found | LANE_LOCK_WAITERS))
			continue;
		if (gives_up)
			break;
		r = -EBUSY;
		if (sleeps != FOR_EVER && sleeps-- == 0)
			break;
		mark = LANE_LOCK_WAITERS;
		found |= LANE_LOCK_WAITERS;
		r = (int)sys_call4(SYS_futex, futex_of(l), FUTEX_WAIT, (uint32_t)found, &patience);
		if (r != -ETIMEDOUT && r != -EINTR)
			continue;
		/* Others may be waiting too: the mark is kept, at worst for one wake-up too many. */
		r = 1;
		if (lane_owner_is_gone(owner) && compare_exchange(&l->owner, &found, me | LANE_LOCK_WAITERS))
			break;
		gives_up = sleeps == FOR_EVER && waits_in_vain(&circle, me, owner, surely);
	}
	circle_leave(&circle);
	return r;
}

int lane_lock_concurrent(struct lane_lock *l)
{
	uint64_t nobody = 0;

	if (likely(compare_exchange(&l->owner, &nobody, this_thread())))
		return 0;
	return lock_within(l, FOR_EVER, false);
}

int lane_lock_briefly(struct lane_lock *l)
{
	return lock_within(l, BRIEF_SLEEPS, false);
}

void lane_lock_surely(struct lane_lock *l)
{
	(void)lock_within(l, FOR_EVER, true);
}

void lane_unlock_concurrent(struct lane_lock *l)
{
	if (exchange(&l->owner, 0) & LANE_LOCK_WAITERS)
		sys_call3(SYS_futex, futex_of(l), FUTEX_WAKE, 1);
}
