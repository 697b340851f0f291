/* SPDX-License-Identifier: MIT */
/*
 * What the rest of the shim tells about a connection, for all sets that hold it: ready.h.
 */
#include "shim/conn.h"
#include "shim/conn_use.h"
#include "shim/epoll_set.h"
#include "shim/ready.h"

/*
 * Each registration of the connection, its set locked, until one says an error or another word, or cannot be had now: -EAGAIN. One that goes meanwhile moves
 * those behind it up, and the next is passed over: then they are gone through once more, so nothing must come of a second time.
 */
static int each(struct conn *c, int (*act)(struct epoll_reg *r, int fd), int fd)
{
	const struct conn *former = pool_lanes_of(c);
	struct epoll_reg *r;
	uint32_t gone;
	int err;

	do {
		gone = pool_regs_gone();
		for (unsigned n = 0; (err = pool_nth_locked(c, n, &r)) > 0; n++) {
			struct epoll_set *s = r->set;

			err = act(r, fd);
			set_unlock(s);
			if (err)
				break;
		}
	} while (!err && pool_regs_gone() != gone);
	pool_lanes_of(former);
	return err;
}

static int adopt(struct epoll_reg *r, int fd)
{
	int err;

	if (r->state == REG_PARKED) {
		reg_remove(r, true);
		return 0;
	}
	err = reg_adopt(r);
	if (!err)
		reg_stir(r);
	return err;
}

static int disown(struct epoll_reg *r, int fd)
{
	if (r->state == REG_PARKED) {
		reg_remove(r, true);
		return 0;
	}
	reg_disown(r);
	/* One that stays has no link to be armed on, or polled for. */
	if (r->state == REG_ADOPTED) {
		reg_disarm(r);
		reg_cool(r);
	}
	return 0;
}

static int want(struct epoll_reg *r, int fd)
{
	if (r->state != REG_PLAIN || !(r->events & EPOLLONESHOT) || reg_has_fired(r))
		return 0;
	r->wanted = true;
	return 1;
}

static int watch(struct epoll_reg *r, int fd)
{
	reg_watch(r, fd);
	return 0;
}

static int unwatch(struct epoll_reg *r, int fd)
{
	reg_unwatch(r, fd);
	return 0;
}

int ready_adopt(struct conn *c)
{
	const struct conn *former = pool_lanes_of(c);
	int err = pool_incomplete(c) ? -ENOMEM : pool_set_adopted(c, true);

	pool_lanes_of(former);
	if (err)
		return err;
	err = each(c, adopt, -1);
	if (err)
		ready_disown(c);
	return err;
}

bool ready_waits_to_be_armed(struct conn *c)
{
	return each(c, want, -1) > 0;
}

bool ready_is_adopted(const struct conn *c)
{
	return pool_is_adopted(c);
}

/* Whom it cannot reach now goes home at the next look of its set. */
int ready_disown(struct conn *c)
{
	int err;

	pool_set_adopted(c, false);
	err = each(c, disown, -1);
	if (err)
		ready_changed(c);
	return err;
}

static void is_edge(struct epoll_reg *r, void *arg)
{
	if (r->state == REG_ADOPTED && r->events & EPOLLET)
		*(bool *)arg = true;
}

static int part(struct epoll_reg *r, int fd)
{
	if (r->state == REG_PARKED)
		reg_remove(r, true);
	else
		reg_part(r);
	return 0;
}

int ready_part(struct conn *c)
{
	const struct conn *former = pool_lanes_of(c);
	bool edges = false, known = pool_for_each(c, is_edge, &edges);

	pool_lanes_of(former);
	if (!known)
		return -EAGAIN;
	return edges ? each(c, part, -1) : ready_disown(c);
}

static _Atomic uint32_t everything_changed;

static void stir(struct epoll_reg *r, void *arg)
{
	if (r->state == REG_ADOPTED)
		reg_stir(r);
}

/* Where the pool cannot be had every set looks at everything once. */
static void stir_set(struct epoll_set *s)
{
	set_kick(s);
}

int ready_link_over(struct conn *c)
{
	return conn_had_link(c) ? ready_part(c) : ready_disown(c);
}

void ready_changed(struct conn *c)
{
	const struct conn *former = pool_lanes_of(c);

	if (!pool_for_each(c, stir, NULL)) {
		fetch_add(&everything_changed, 1);
		pool_for_each_set(stir_set);
	}
	pool_lanes_of(former);
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
	while (pool_nth_locked(c, 0, &r) > 0) {
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

void ready_dissolved(struct conn *c)
{
	struct epoll_reg *r;

	while (pool_has_regs(c) && pool_nth_locked(c, 0, &r) > 0) {
		struct epoll_set *s = r->set;

		reg_outlive(r);
		set_unlock(s);
	}
}

void ready_opened(struct conn *c)
{
	pool_conn_reset(c);
}

bool ready_watch(struct conn *c, int fd)
{
	return each(c, watch, fd) == 0;
}

/* A set that cannot be had now goes on looking at it until it is closed, and makes a step too many. */
void ready_unwatch(struct conn *c, int fd)
{
	each(c, unwatch, fd);
}
