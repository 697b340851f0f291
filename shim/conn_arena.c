/* SPDX-License-Identifier: MIT */
/*
 * Where connection records live: one shared mapping, made before main() and inherited by every fork, of which only the pages
 * of records that were used exist. Free records form a stack whose head carries a tag against the ABA problem; relatives push and
 * pop it together. A relative that was killed leaves its hold behind: records whose holders are all gone are swept up.
 */
#include "shim/conn_arena.h"

#include <errno.h>
#include <sys/mman.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_holders.h"
#include "shim/conn_use.h"
#include "shim/family.h"

#define SWEEP_FROM 1024

struct arena {
	_Atomic uint64_t free_head;	/* tag in the high half, index + 1 in the low one; 0 there: empty */
	_Atomic uint32_t nr_fresh;	/* records below it have been used at least once */
	struct family family;
	struct conn records[] __attribute__((aligned(64)));
};

static struct arena *arena;

int conn_arena_init(void)
{
	size_t bytes = sizeof(struct arena) + (size_t)CONN_MAX * sizeof(struct conn);
	long at = sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (sys_failed(at))
		return (int)at;
	arena = (struct arena *)at;
	family_init(&arena->family);
	return conn_use_init();
}

struct conn *conn_at(uint32_t index)
{
	return &arena->records[index];
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
	uint32_t fresh;

	while ((uint32_t)head) {
		struct conn *c = conn_at((uint32_t)head - 1);

		if (compare_exchange(&arena->free_head, &head, ((head >> 32) + 1) << 32 | load_relaxed(&c->next_free)))
			return c;
	}
	fresh = load_relaxed(&arena->nr_fresh);
	while (fresh < CONN_MAX)
		if (compare_exchange(&arena->nr_fresh, &fresh, fresh + 1)) {
			conn_at(fresh)->index = fresh;
			return conn_at(fresh);
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
		struct conn *c = conn_at(i);

		if (load_relaxed(&c->live) == 1)
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
