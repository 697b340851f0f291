/* SPDX-License-Identifier: MIT */
/*
 * Where connection records live: in memory that is made before main() and shared with every forked child. It is as large as it may ever be, but costs
 * nothing until it is used; of its addresses, too, only as many steps are taken as records are in use, each process its own when it meets an index that
 * it has no address for. A record that two processes use was there before the fork, and has one address in both.
 * Free records form a stack whose head carries a tag against the ABA problem; relatives push and
 * pop it together. A relative that was killed leaves its hold behind: records whose holders are all gone are swept up.
 */
#include "shim/conn_arena.h"

#include <errno.h>
#include <sys/mman.h>

#include "ringbuf/mapped.h"
#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_holders.h"
#include "shim/conn_use.h"
#include "shim/family.h"
#include "shim/sandbox.h"

#define SWEEP_FROM 1024
#define PAGE 65536 /* none is larger */
#define HEAD_BYTES PAGE
#define STEP_BYTES (sizeof(struct conn) << CONN_STEP_SHIFT)
#define NR_STEPS (CONN_MAX >> CONN_STEP_SHIFT)

struct arena {
	_Atomic uint64_t free_head;	/* tag in the high half, index + 1 in the low one; 0 there: empty */
	_Atomic uint32_t nr_fresh;	/* records below it have been used at least once */
	struct family family;
	/* HEAD_BYTES from the beginning of it: the records. */
};

_Static_assert(STEP_BYTES % PAGE == 0 && sizeof(struct arena) <= HEAD_BYTES, "a step begins with a page");

static struct arena *arena;
static _Atomic uintptr_t steps[NR_STEPS];

/* All of it is mapped for a moment, since that makes it so large. */
int conn_arena_init(void)
{
	size_t all = HEAD_BYTES + NR_STEPS * STEP_BYTES, first = HEAD_BYTES + STEP_BYTES;
	long at = sys_mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (sys_failed(at))
		return (int)at;
	(void)sys_munmap((void *)(at + (long)first), all - first);
	mapped_add(first);
	arena = (struct arena *)at;
	store_release(&steps[0], (uintptr_t)at + HEAD_BYTES);
	family_init(&arena->family);
	return conn_use_reach(0);
}

struct conn *conn_at(uint32_t index)
{
	uintptr_t step = load_acquire(&steps[index >> CONN_STEP_SHIFT]);

	return step ? (struct conn *)step + (index & ((UINT32_C(1) << CONN_STEP_SHIFT) - 1)) : NULL;
}

/* From the nearest step below it, of which the first always is. */
static bool map_step(uint32_t step)
{
	uint32_t from = step;
	uintptr_t none = 0;
	long at;

	while (!load_acquire(&steps[from]))
		from--;
	at = mapped_more((void *)load_acquire(&steps[from]), (step - from) * STEP_BYTES, STEP_BYTES);
	if (sys_failed(at))
		return false;
	if (compare_exchange(&steps[step], &none, (uintptr_t)at))
		mapped_add(STEP_BYTES);
	else
		(void)sys_munmap((void *)at, STEP_BYTES);
	return true;
}

/* In a cage the system call that it takes may be the end of the process. NULL: it has no address here. */
static struct conn *reach(uint32_t index)
{
	struct conn *c = conn_at(index);

	if (likely(c))
		return c;
	if (sandbox_why() == REASON_SECCOMP || conn_use_reach(index) < 0 || !map_step(index >> CONN_STEP_SHIFT))
		return NULL;
	return conn_at(index);
}

void arena_give_back(struct conn *c)
{
	uint64_t head = load_relaxed(&arena->free_head);

	do {
		store_relaxed(&c->next_free, (uint32_t)head);
	} while (!compare_exchange(&arena->free_head, &head, ((head >> 32) + 1) << 32 | (c->index + 1)));
}

static struct conn *pop(void)
{
	uint64_t head = load_acquire(&arena->free_head);
	struct conn *c;
	uint32_t fresh;

	while ((uint32_t)head) {
		c = reach((uint32_t)head - 1);
		if (!c)
			return NULL;
		if (compare_exchange(&arena->free_head, &head, ((head >> 32) + 1) << 32 | load_relaxed(&c->next_free)))
			return c;
	}
	fresh = load_relaxed(&arena->nr_fresh);
	while (fresh < CONN_MAX && (c = reach(fresh)))
		if (compare_exchange(&arena->nr_fresh, &fresh, fresh + 1)) {
			c->index = fresh;
			return c;
		}
	return NULL;
}

/*
 * Takes back what relatives held that are gone. Each time that the arena has doubled, and when it is used up. Records that were
 * never taken are left alone: a look at one would make the kernel find a page for it.
 */
static void sweep(void)
{
	uint32_t nr_fresh = load_relaxed(&arena->nr_fresh);

	for (uint32_t i = 0; i < nr_fresh; i++) {
		struct conn *c = reach(i);

		if (c && load_relaxed(&c->live) == 1)
			conn_reap_holders(c);
	}
}

struct conn *arena_take(void)
{
	struct conn *c;

	if (!arena)
		return NULL;
	c = pop();
	if (!c || (c->generation == 0 && c->index >= SWEEP_FROM && (c->index & (c->index - 1)) == 0)) {
		sweep();
		if (!c)
			c = pop();
	}
	return c;
}
