/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_SHIM_READY_CALL_H
#define RINGWAY_SHIM_READY_CALL_H

/* Inside a poll() of ours: what the call has in hand. ready_poll.c says what is ready, ready_sleep.c arms and sleeps. */

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "shim/conn.h"
#include "shim/fdtab.h"

/* One connection in the set. A connection may stand there several times. */
struct item {
	struct conn *conn;
	uint32_t generation;	/* of the record: the number may be closed and name a new connection in the same record */
	uint32_t at;		/* its place in fds */
	uint32_t asked_on;	/* poll_roads() when the kernel was asked, or was known to have nothing to say */
	uint32_t sleeps_on;	/* ... when it was said what to ask in the next sleep */
	short asserted;		/* what the kernel says all the time and nobody wants: not worth waking for */
	short armed;
	bool counted;		/* by conn_wait_enters() */
	bool closing;		/* its number has left the table, and is still to leave the kernel's */
	uint32_t born;		/* of the connection that it was counted on */
	uint64_t far_at;	/* 1 + its place among what is extra: the fd of its far link, while armed */
	uint64_t rx_seen, tx_seen;
};

struct signals_held;

struct poll_call {
	struct pollfd *fds;	/* the program's */
	struct pollfd *kernel;	/* the same with what the kernel is asked, then bells and negotiations */
	struct item *items;
	uint64_t nr_fds, nr_items, nr_extra;
	uint64_t name;		/* of what is asked, for the next call to know it by */
	int bell_set;		/* an epoll set of all that is extra, while we sleep on too many fds; -1: none */
	bool gathered;		/* it stood for them in the last sleep */
	bool again;		/* it has looked before, and found nothing */
	bool relatives;		/* among what is extra is the watch on those who share a connection with us */
	bool has_sets;		/* of ours, to be looked through before the kernel is asked about them */
	uint64_t handled;	/* counted_now() as the call began */
	struct signals_held *held;
	bool select;		/* asks for no more than its sets mean, and refuses numbers that are closed when it begins */
	void *map;
	size_t map_bytes;
};

static inline bool item_hold(const struct poll_call *p, const struct item *it)
{
	if (!conn_hold(it->conn, p->fds[it->at].fd))
		return false;
	if (likely(it->generation == it->conn->generation))
		return true;
	conn_drop(it->conn);
	return false;
}

/* Another thread may have closed the number since the call last compared them all. */
static inline bool item_is_named(const struct poll_call *p, const struct item *it)
{
	return likely(fdtab_get(p->fds[it->at].fd) == it->conn);
}

/*
 * On which roads the lanes stand, 0 without a link: what the kernel is asked of, and what its word means, hangs on them. A look at the same connection at another place in
 * the set may have brought them back, or given up the link.
 */
static inline uint32_t poll_roads(const struct conn *conn)
{
	struct conn *c = (struct conn *)conn;

	return conn_is_linked(c) ? 1u | (uint32_t)load_relaxed(&c->tx.state) << 8 | (uint32_t)load_relaxed(&c->rx.state) << 16 : 0;
}

/* Arms every item and gathers what else to sleep on. True: something came meanwhile, nothing is armed. */
bool poll_arm(struct poll_call *p);
void poll_disarm(struct poll_call *p);
/* How many are ready, 0 when the time is over, -errno; -EAGAIN: to be looked at again. */
int poll_sleep(struct poll_call *p, int64_t left_ns, const sigset_t *mask);
/* Numbers that were taken out of the sleep come back, and the rendezvous makes its step. */
void poll_after_sleep(struct poll_call *p);
/* What a poll that does not come back has in hand. */
void poll_abandoned(void *arg);
/* No sleep goes past the time at which something has to be looked at. */
int64_t poll_until_look(struct poll_call *p, int64_t left_ns);

#endif
