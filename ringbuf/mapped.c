/* SPDX-License-Identifier: MIT */
/* See mapped.h. */
#include "ringbuf/mapped.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"

/* Below this a limit is for a program that needs little, and of a larger one so much may be ours. */
#define LIMIT_MIN (UINT64_C(512) << 20)
#define SHARE 4

static _Atomic uint64_t all_bytes;
static uint64_t most_bytes = UINT64_MAX;

int mapped_init(void)
{
	struct rlimit limit = { .rlim_cur = RLIM_INFINITY };

	(void)sys_prlimit(0, RLIMIT_AS, NULL, &limit);
	if (limit.rlim_cur == RLIM_INFINITY)
		return 0;
	most_bytes = limit.rlim_cur / SHARE;
	return limit.rlim_cur < LIMIT_MIN ? -ENOMEM : 0;
}

bool mapped_may(size_t bytes)
{
	return bytes <= most_bytes && load_relaxed(&all_bytes) <= most_bytes - bytes;
}

void mapped_add(size_t bytes)
{
	fetch_add(&all_bytes, bytes);
}

void mapped_sub(size_t bytes)
{
	fetch_sub(&all_bytes, bytes);
}

uint64_t mapped_bytes(void)
{
	return load_relaxed(&all_bytes);
}

/* What has no length is not moved but mapped once more, and as far as is asked. */
long mapped_more(void *mapped, size_t from, size_t bytes)
{
	long at = sys_mremap(mapped, 0, from + bytes, MREMAP_MAYMOVE);

	if (sys_failed(at) || !from)
		return at;
	(void)sys_munmap((void *)at, from);
	return at + (long)from;
}
