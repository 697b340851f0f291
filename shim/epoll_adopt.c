/* SPDX-License-Identifier: MIT */
/*
 * What the rest of the shim tells about a connection, for all sets that hold it: ready.h.
 */
#include "shim/conn.h"
#include "shim/conn_use.h"
#include "shim/epoll_set.h"
#include "shim/ready.h"

int ready_adopt(struct conn *c)
{
	struct epoll_reg *r;
	int err = 0;

	if (pool_incomplete(c))
		return -ENOMEM;
	pool_set_adopted(c, true);
	for (unsigned n = 0; !err && (r = pool_nth_locked(c, n)) != NULL; n++) {
		struct epoll_set *s = r->set;

		if (r->state == REG_PARKED) {
			reg_remove(r, true);
			n--;
		} else {
			err = reg_adopt(r);
			if (!err)
				reg_stir(r);
		}
		set_unlock(s);
	}
	if (err)
		ready_disown(c);
	return err;
}

void ready_disown(struct conn *c)
{
	struct epoll_reg *r;

	pool_set_adopted(c, false);
	for (unsigned n = 0; (r = pool_nth_locked(c, n)) != NULL; n++) {
		reg_disown(r);
		set_unlock(r->set);
	}
}

static _Atomic uint32_t everything_changed;

static void stir(struct epoll_reg *r, void *arg)
{
	if (r->state == REG_ADOPTED)
		reg_stir(r);
}

/* A signal handler may have interrupted the pool: then every set looks at everything once. */
static void stir_set(struct epoll_set *s)
{
	set_kick(s);
}

void ready_changed(struct conn *c)
{
	if (!pool_for_each(c, stir, NULL)) {
		fetch_add(&everything_changed, 1);
		pool_for_each_set(stir_set);
	}
}

bool ready_everything_changed(uint32_t *seen)
{
	uint32_t now = load_relaxed(&everything_changed);
	bool changed = now != *seen;

	*seen = now;
	return changed;
}

/*
 * With the last number of this process the registrations go, as they do in the kernel when the file is closed. If the file
 * lives on in another process the kernel keeps them; then they are taken out by hand, unless the set is shared with that process,
 * too, where it would be the other's registration that goes.
 */
void ready_forget(struct conn *c, int fd, bool last)
{
	struct epoll_reg *r;

	if (!last || !pool_has_regs(c))
		return;
	while ((r = pool_nth_locked(c, 0)) != NULL) {
		struct epoll_set *s = r->set;

		reg_disarm_held(c, r->armed, r->rung);
		r->armed = 0;
		reg_remove(r, load_relaxed(&c->shared) && !s->inherited && r->fd == fd);
		set_unlock(s);
	}
	/* A handler that has interrupted the owner of a set cannot take them out of it: they keep the record from being used again. */
	if (unlikely(pool_has_left(c)))
		conn_hold_locked(c);
	pool_conn_reset(c);
}

void ready_opened(struct conn *c)
{
	pool_conn_reset(c);
}

void ready_watch(struct conn *c, int fd)
{
	struct epoll_reg *r;

	for (unsigned n = 0; (r = pool_nth_locked(c, n)) != NULL; n++) {
		reg_watch(r, fd);
		set_unlock(r->set);
	}
}

void ready_unwatch(struct conn *c, int fd)
{
	struct epoll_reg *r;

	for (unsigned n = 0; (r = pool_nth_locked(c, n)) != NULL; n++) {
		reg_unwatch(r, fd);
		set_unlock(r->set);
	}
}
