/* SPDX-License-Identifier: MIT */
/*
 * Who holds a connection: the processes that have a descriptor of it. A holder that ends in order counts itself out; one that is
 * killed cannot, so where the count matters the dead are taken off it first. Holders are members of the family (family.h); the
 * first CONN_MAX_HOLDERS are known by number, and of one that is not nobody learns that it was killed.
 */
#include "shim/conn_holders.h"

#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_use.h"
#include "shim/family.h"

#define ENDING UINT32_C(0x80000000)	/* its end was announced: it is not counted any more, but may still look at the record */

static bool enter(struct conn *c, uint32_t member)
{
	for (unsigned h = 0; h < CONN_MAX_HOLDERS; h++) {
		uint32_t none = 0;

		if (compare_exchange(&c->holders[h], &none, member))
			return true;
	}
	return false;
}

void conn_holder_add(struct conn *c, uint32_t member)
{
	fetch_add(&c->nr_holders, 1);
	fetch_add(&c->nr_maps, 1);
	if (!enter(c, member)) {
		conn_reap_holders(c);
		enter(c, member);
	}
}

/* Its word in the record, which only it and who buries it change; NULL if it has none. */
static _Atomic uint32_t *word_of(struct conn *c, uint32_t member)
{
	for (unsigned h = 0; h < CONN_MAX_HOLDERS; h++)
		if ((load_relaxed(&c->holders[h]) & ~ENDING) == member)
			return &c->holders[h];
	return NULL;
}

void conn_holder_remove(struct conn *c, uint32_t member, bool counted)
{
	_Atomic uint32_t *word = word_of(c, member);

	if (word)
		store_release(word, 0);
	if (counted)
		fetch_sub(&c->nr_holders, 1);
}

bool conn_holder_ends(struct conn *c)
{
	_Atomic uint32_t *word = word_of(c, family_me);

	if (!conn_use_flush(c))
		return false;
	if (word)
		store_release(word, family_me | ENDING);
	conn_count_holders(c);
	return fetch_sub(&c->nr_holders, 1) == 1;
}

bool conn_holder_goes_on(struct conn *c)
{
	_Atomic uint32_t *word = word_of(c, family_me);

	if (!conn_use_unflush(c))
		return false;
	if (word)
		store_release(word, family_me);
	return fetch_add(&c->nr_holders, 1) == 0;
}

void conn_reap_holders(struct conn *c)
{
	for (unsigned h = 0; h < CONN_MAX_HOLDERS; h++) {
		uint32_t word = load_acquire(&c->holders[h]);

		/* Of several that find it gone one buries it. Its number names nobody else as long as it stands here. */
		if (!word || !family_is_gone(word & ~ENDING) || !compare_exchange(&c->holders[h], &word, 0))
			continue;
		if (!(word & ENDING)) {
			store_relaxed(&c->lost_holder, 1);
			fetch_sub(&c->nr_holders, 1);
		}
		conn_unmap(c);
	}
}

int conn_count_holders(struct conn *c)
{
	if (unlikely(load_relaxed(&c->nr_holders) > 1))
		conn_reap_holders(c);
	return load_relaxed(&c->nr_holders);
}

/*
 * ---- Forks ----
 */

void conn_fork_prepare(struct conn *const *held, unsigned nr, uint32_t child)
{
	for (unsigned i = 0; i < nr; i++) {
		/* Another thread may be in the middle of linking it, for one process only. In vain in a handler that forks. */
		bool locked = conn_lock_both(held[i]) == 0;

		store_release(&held[i]->shared, 1);
		/* Or the child would tell, in a line of its own, what the parent has moved. */
		conn_tell_summary(held[i], false);
		conn_holder_add(held[i], child);
		if (locked)
			conn_unlock_both(held[i]);
	}
}

void conn_fork_child(void)
{
	lane_lock_fork_child();
	conn_use_fork_child();
}

void conn_fork_cancel(struct conn *const *held, unsigned nr, uint32_t child)
{
	for (unsigned i = 0; i < nr; i++) {
		conn_holder_remove(held[i], child, true);
		conn_unmap(held[i]);
	}
}
