/* SPDX-License-Identifier: MIT */
/* See stepped.h. */
#include "shim/stepped.h"

#include <sys/mman.h>

#include "ringbuf/mapped.h"
#include "ringbuf/sys.h"

int stepped_reach(struct stepped *table, uint32_t index)
{
	_Atomic uintptr_t *step = &table->steps[index >> table->shift];
	size_t bytes = stepped_step_bytes(table);
	uintptr_t none = 0;
	long at;

	if (likely(load_acquire(step)))
		return 0;
	at = sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (sys_failed(at))
		return (int)at;
	/* Another thread was quicker. */
	if (!compare_exchange(step, &none, (uintptr_t)at))
		(void)sys_munmap((void *)at, bytes);
	else
		mapped_add(bytes);
	return 0;
}
