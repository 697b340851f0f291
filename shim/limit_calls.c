/* SPDX-License-Identifier: MIT */
/*
 * RLIMIT_AS. A program that limits its own address space means what it maps itself: what we have mapped is added to
 * what it asks for, and taken off again from what it is told. It has nothing to spare for rings, either. RLIMIT_NOFILE is only noted.
 */
#include "shim/real.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ringbuf/mapped.h"
#include "ringbuf/sys.h"
#include "shim/conn_iov.h"
#include "shim/fdtab.h"
#include "shim/guard.h"
#include "shim/own_fd.h"
#include "shim/pinned.h"
#include "shim/sandbox.h"

/* What there is by then, rings included, which go in time; and the first step of each table that is mapped at its first use. */
#define YET_TO_COME (UINT64_C(4) << 20)

static uint64_t ours(void)
{
	return mapped_bytes() + YET_TO_COME;
}

/* What has been added to each; 0 as long as the program has not set it. */
static _Atomic uint64_t added_cur, added_max;

static rlim64_t widen(rlim64_t want, rlim64_t most)
{
	if (want >= most)
		return want;
	return most - want > ours() ? want + ours() : most;
}

/* Without privilege the hard limit cannot be raised: what is there is all that is to be had. */
static int set_limit(const struct rlimit64 *want, struct rlimit64 *old)
{
	struct rlimit64 now, made;
	int r = real_prlimit64(0, RLIMIT_AS, NULL, &now);

	if (r < 0)
		return r;
	made.rlim_max = want->rlim_max == RLIM64_INFINITY ? RLIM64_INFINITY : widen(want->rlim_max, now.rlim_max);
	made.rlim_cur = want->rlim_cur == RLIM64_INFINITY ? RLIM64_INFINITY : widen(want->rlim_cur, made.rlim_max);
	r = real_prlimit64(0, RLIMIT_AS, &made, NULL);
	if (r < 0)
		return r;
	if (old)
		*old = (struct rlimit64){ now.rlim_cur - load_relaxed(&added_cur), now.rlim_max - load_relaxed(&added_max) };
	store_relaxed(&added_cur, made.rlim_cur - want->rlim_cur);
	store_relaxed(&added_max, made.rlim_max - want->rlim_max);
	if (want->rlim_cur != RLIM64_INFINITY)
		sandbox_leave_rings(REASON_NO_MEMORY);
	return 0;
}

/* Of this process: what another one is told is its own matter. */
static NOINLINE int limit_space(pid_t pid, const struct rlimit64 *new_limit, struct rlimit64 *old_limit)
{
	int r;

	if (!guard_ready() || (pid && pid != getpid()) || user_range_bad(new_limit, new_limit ? sizeof(*new_limit) : 0) ||
	    user_range_bad(old_limit, old_limit ? sizeof(*old_limit) : 0) || (new_limit && new_limit->rlim_cur > new_limit->rlim_max))
		return real_prlimit64(pid, RLIMIT_AS, new_limit, old_limit);
	if (new_limit)
		return set_limit(&(struct rlimit64){ new_limit->rlim_cur, new_limit->rlim_max }, old_limit);
	r = real_prlimit64(pid, RLIMIT_AS, NULL, old_limit);
	if (r == 0 && old_limit) {
		old_limit->rlim_cur -= load_relaxed(&added_cur);
		old_limit->rlim_max -= load_relaxed(&added_max);
	}
	return r;
}

/* A sanitizer's runtime asks for limits before it has set up what it checks memory by: nothing but the system call is for it. */
#define UNCHECKED __attribute__((no_sanitize("address", "undefined")))

EXPORT UNCHECKED int prlimit64(pid_t pid, __rlimit_resource_t resource, const struct rlimit64 *new_limit, struct rlimit64 *old_limit)
{
	int r;

	if (unlikely(resource == RLIMIT_AS) && load_relaxed(&guard_state))
		return limit_space(pid, new_limit, old_limit);
	r = sys_prlimit(pid, resource, new_limit, old_limit);
	if (unlikely(resource == RLIMIT_NOFILE) && new_limit && r == 0 && guard_ready())
		own_fd_limit_set();
	if (r < 0)
		errno = -r;
	return r < 0 ? -1 : 0;
}

/* A long has 64 bits, so the two structures are one. */
_Static_assert(sizeof(struct rlimit) == sizeof(struct rlimit64), "one layout");

EXPORT UNCHECKED int prlimit(pid_t pid, __rlimit_resource_t resource, const struct rlimit *new_limit, struct rlimit *old_limit)
{
	return prlimit64(pid, resource, (const struct rlimit64 *)new_limit, (struct rlimit64 *)old_limit);
}

EXPORT UNCHECKED int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *limit)
{
	return prlimit64(0, resource, limit, NULL);
}

EXPORT UNCHECKED int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
	return prlimit64(0, resource, (const struct rlimit64 *)limit, NULL);
}

EXPORT UNCHECKED int getrlimit64(__rlimit_resource_t resource, struct rlimit64 *limit)
{
	return prlimit64(0, resource, NULL, limit);
}

EXPORT UNCHECKED int getrlimit(__rlimit_resource_t resource, struct rlimit *limit)
{
	return prlimit64(0, resource, NULL, (struct rlimit64 *)limit);
}
