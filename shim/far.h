/* SPDX-License-Identifier: MIT */
/*
 * Connections whose rings lie on two hosts, and the engine that moves their bytes (ringbuf/VERBS.md): an object of its own, opened at the first
 * use, so that this one needs libc only.
 */
#ifndef RINGWAY_SHIM_FAR_H
#define RINGWAY_SHIM_FAR_H

#include "ringbuf/verbs.h"
#include "shim/conn.h"

/* NULL until a process, or one that it was forked from, has opened it. A linked far connection has it. */
extern const struct verbs_table *far_engine;

/* Opens it, once. No lane locked: the loader's own lock is taken, and code of the libraries runs. */
void far_load(void);
/* Is it there? 0; -EAGAIN before that, or while another thread is at it; -ENOSYS with the reason in *why. A forked child of who has opened it gets none. */
int far_loaded(enum reason *why);
/* In a forked child: what libraries have open there is the parent's, and closed. */
void far_fork_child(void);

/*
 * The libraries call our wrappers, and their hidden descriptors are not closed ones to them: is it one of these; and is it they who close it? Then it is
 * hidden no more.
 */
bool far_is_libs(int fd);
bool far_lets_close(int fd);

/*
 * Is the link, if there is one, between hosts? Then the peer's part is played by far_pump(), in whatever calls the program makes: what it publishes
 * and wakes is as if the peer had done it.
 */
static inline bool conn_is_far(const struct conn *c)
{
	return unlikely(c->link.tx.bells.far != NULL);
}

/*
 * `why` is a set of enum verbs_why, or 0. 0; -errno of a dead link, what had arrived having been published; -ESRCH in a process that has no link of its own. Any
 * lock or none held; never blocks.
 */
static inline int far_pump(const struct conn *c, unsigned why)
{
	return far_engine->pump((struct ring_link *)&c->link, why);
}

/* To sleep on, beside the bells: readable means far_pump(VERBS_RUNG). -1: none, in a process that has no link of its own. */
static inline int far_wait_fd(const struct conn *c)
{
	return far_engine->wait_fd(&c->link);
}

/* This process lets go of the link, and of what it has of the rings. */
void far_leave(struct conn *c);
/* The same for the engine of a link that is dead and that no record has any more; NULL: it had none. */
void far_leave_engine(void *engine);

#endif
