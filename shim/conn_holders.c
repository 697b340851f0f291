/* SPDX-License-Identifier: MIT */
/*
 * Who holds a connection: the processes that have a descriptor of it. A holder that ends in order counts itself out; one that is
 * killed cannot, so where the count matters the dead are taken off it first. Holders are members of the family (family.h); the
 * first CONN_MAX_HOLDERS are known by number, and of one that is not nobody learns that it was killed.
 */
#include "shim/conn_holders.h"

#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_lock.h"
#include "shim/conn_use.h"
#include "shim/family.h"
#include "shim/fdtab.h"

#define ENDING UINT32_C(0x80000000)	/* its end was announced: it is not counted any more, but may still look at the record */

static bool enter(struct conn *c, uint32_t member)
{
	for (unsigned h = 0; h < CONN_MAX_HOLDERS; h++) {
		uint32_t none = 0;

		if (!compare_exchange(&c->holders[h], &none, member))
			continue;
		store_relaxed(&c->asleep[h].rx, 0);
		store_relaxed(&c->asleep[h].tx, 0);
		return true;
	}
	return false;
}

void conn_holder_first(struct conn *c, uint32_t member)
{
	store_relaxed(&c->nr_holders, 1);
	store_relaxed(&c->nr_maps, 1);
	store_relaxed(&c->holders[0], member);
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
	for (unsigned h = 0; member && h < CONN_MAX_HOLDERS; h++)
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
		uint16_t rx = load_relaxed(&c->asleep[h].rx), tx = load_relaxed(&c->asleep[h].tx);

		/* Of several that find it gone one buries it. Its number names nobody else as long as it stands here. */
		if (!word || !family_is_gone(word & ~ENDING) || !compare_exchange(&c->holders[h], &word, 0))
			continue;
		if (!(word & ENDING)) {
			store_relaxed(&c->lost_holder, 1);
			fetch_sub(&c->nr_holders, 1);
		}
		fetch_sub(&c->link.rx.bells.nr_threads, rx);
		fetch_sub(&c->link.tx.bells.nr_threads, tx);
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
 * ---- Sleepers ----
 */

/*
 * Who is killed between the two counts leaves at worst a sleeper too many: others then leave rings in the bell for it. One too few
 * would take rings from the living. A holder without a place of its own is not known to have died, either.
 */
void conn_thread_sleeps(struct conn *c, short want)
{
	_Atomic uint32_t *word = word_of(c, load_relaxed(&family_me));
	struct conn_asleep *mine = word ? &c->asleep[word - c->holders] : NULL;

	if (want & (POLLIN | POLLRDNORM)) {
		fetch_add(&c->link.rx.bells.nr_threads, 1);
		if (mine)
			fetch_add(&mine->rx, 1);
	}
	if (want & (POLLOUT | POLLWRNORM)) {
		fetch_add(&c->link.tx.bells.nr_threads, 1);
		if (mine)
			fetch_add(&mine->tx, 1);
	}
}

void conn_thread_wakes(struct conn *c, short want)
{
	_Atomic uint32_t *word = word_of(c, load_relaxed(&family_me));
	struct conn_asleep *mine = word ? &c->asleep[word - c->holders] : NULL;

	if (want & (POLLIN | POLLRDNORM)) {
		if (mine)
			fetch_sub(&mine->rx, 1);
		fetch_sub(&c->link.rx.bells.nr_threads, 1);
	}
	if (want & (POLLOUT | POLLWRNORM)) {
		if (mine)
			fetch_sub(&mine->tx, 1);
		fetch_sub(&c->link.tx.bells.nr_threads, 1);
	}
}

/*
 * ---- Deaths ----
 */

int conn_relatives_fd(const struct conn *c)
{
	struct conn *m = (struct conn *)c;

	return unlikely(load_relaxed(&m->shared)) && load_relaxed(&m->nr_holders) > 1 ? family_watch() : -1;
}

/*
 * The lock alone makes good what its last owner has left. That one is gone shows a moment after the news of its end; any other
 * makes good itself what it finds.
 */
static void take_once(struct conn *c, struct lane_lock *lock, void (*recover)(struct conn *c))
{
	int err = 0;

	if (!conn_trylock_lane(c, lock, recover))
		err = lane_lock_briefly(lock);
	if (err > 0)
		recover(c);
	if (err >= 0)
		lane_unlock(lock);
}

void conn_relative_ended(void)
{
	family_watch_clear();
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned)fd + 1)) {
		struct conn *c = fdtab_get(fd);

		if (!c || !load_relaxed(&c->shared) || !conn_hold(c, fd))
			continue;
		conn_count_holders(c);
		if (conn_is_linked(c)) {
			take_once(c, &c->tx.lock, conn_tx_recover);
			take_once(c, &c->rx.lock, conn_rx_recover);
			ring_tx_stir(&c->link.tx);
			ring_rx_stir(&c->link.rx);
		}
		conn_drop(c);
	}
}

/*
 * ---- Forks ----
 */

/* Threads that fell asleep while it was this process's alone do not watch the family yet. */
static void wake_threads(struct conn *c)
{
	if (!conn_is_linked(c))
		return;
	if (load_acquire(&c->link.tx.bells.nr_threads))
		bell_ring(c->link.tx.bells.bell_fd, &c->link.tx.bells.own);
	if (load_acquire(&c->link.rx.bells.nr_threads))
		bell_ring(c->link.rx.bells.bell_fd, &c->link.rx.bells.own);
}

void conn_fork_prepare(struct conn *const *held, unsigned nr, uint32_t child)
{
	for (unsigned i = 0; i < nr; i++) {
		/* Another thread may be in the middle of linking it, for one process only. In vain in a handler that forks. */
		bool locked = conn_lock_both(held[i]) == 0;

		store_release(&held[i]->shared, 1);
		/* Or the child would tell, in a line of its own, what the parent has moved. */
		conn_tell_summary(held[i], false);
		conn_holder_add(held[i], child);
		wake_threads(held[i]);
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
