/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_STEPPED_H
#define RINGWAY_STEPPED_H

/*
 * Tables by index that are mapped in steps, as their indices come into use: what is mapped in advance counts against a limit of the program's address space,
 * used or not. A row stays where it is, and no step is ever taken back. To reach a row costs one load more than in a flat table.
 *
 * Private to the process; a forked child starts with a copy, of what is mapped by then.
 */

#include <stddef.h>
#include <stdint.h>

#include "ringbuf/atomic.h"

#define STEPPED_MAX 256	/* steps */

struct stepped {
	uint32_t row_bytes;
	uint32_t shift;	/* 2^shift rows a step */
	_Atomic uintptr_t steps[STEPPED_MAX];
};

/* Makes row `index` reachable, by any thread: 0 or -errno. */
int stepped_reach(struct stepped *table, uint32_t index);

static inline size_t stepped_step_bytes(const struct stepped *table)
{
	return (size_t)table->row_bytes << table->shift;
}

/* Is it reachable? */
static inline int stepped_has(struct stepped *table, uint32_t index)
{
	return load_acquire(&table->steps[index >> table->shift]) != 0;
}

/* Row `index`, which is reachable, of a table whose rows are of `type` and 2^shift a step. */
#define STEPPED_ROW(table, type, shift, index) \
	((type *)load_acquire(&(table)->steps[(index) >> (shift)]) + ((index) & ((UINT32_C(1) << (shift)) - 1)))

#endif
