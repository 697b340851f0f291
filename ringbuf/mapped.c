/* SPDX-License-Identifier: MIT */
/* See mapped.h. */
#include "ringbuf/mapped.h"

#include <sys/mman.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"

static _Atomic uint64_t all_bytes;

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
