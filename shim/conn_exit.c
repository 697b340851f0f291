/* SPDX-License-Identifier: MIT */
/*
 * The connections of a process that ends, or becomes another program. Many may be waiting for the devices of far peers: they do so together, so that
 * the end takes as long as the slowest of them, whatever their number.
 */
#include <sys/mman.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_holders.h"
#include "shim/conn_lock.h"
#include "shim/conn_use.h"
#include "shim/options.h"
#include "shim/retreat.h"
#include "shim/retreat_far.h"
#include "shim/retreat_far_go.h"
#include "shim/wait.h"

#define FEW 8	/* need no memory but the stack */

struct going {
	struct fin_wait *waits;
	struct pollfd *polls;
	unsigned nr;
	bool kept;	/* the number names it no more, its descriptor is kept for calls that sleep */
	bool exec;	/* which may fail */
};

static void end(struct conn *c, int fd)
{
	bool last;

	if (conn_lock_both(c) < 0)
		return;
	last = conn_holder_ends(c);
	if (last) {
		conn_end_lanes(c, fd);
		/* A thread that sends on until the process is gone does so where the lane stands. */
		store_relaxed(&c->pinned, 1);
	}
	conn_tell_summary(c, last);
	conn_unlock_both(c);
}

/*
 * The peer finds out of an exec as it does of a kill. Nothing of that is told in advance, since the exec may fail, with other threads in the middle of
 * their calls: only steps are made that are right if it goes on. Who is left holds what a relative gives up. False: a far one has to be told.
 */
static bool exec(struct conn *c, int fd)
{
	bool alone, last, done;

	if (conn_lock_both(c) < 0)
		return true;
	alone = conn_count_holders(c) == 1;
	last = alone || conn_holder_ends(c);
	done = !last || conn_exec_lanes(c, fd) || !alone;
	if (done)
		conn_tell_summary(c, last);
	conn_unlock_both(c);
	return done;
}

static void exit_some(const struct going *g, struct conn *const *conns, const int *fds, unsigned nr)
{
	int64_t until;

	for (unsigned i = 0; i < nr; i++) {
		struct conn *c = conns[i];
		bool held = conn_hold(c, fds[i]), waits = held && conn_end_waits(c, fds[i]) && load_relaxed(&c->nr_holders) == 1;
		bool stays = g->exec && held && exec(c, fds[i]);

		g->waits[i] = (struct fin_wait){ .c = held ? c : NULL, .stays = stays, .ends = waits && !stays, .unacked = UINT64_MAX };
		/* What the peer may be sending twice just now; not by who may go on, and holds up its threads. */
		g->waits[i].awaited = waits && conn_is_far(c) && !(stays && load_relaxed(&c->tx.state) == TX_LEFT);
	}
	conn_fin_await_all(g->waits, g->polls, nr);
	/* Other threads may still be closing. */
	until = now_ns() + (int64_t)options.patience_ms * 1000000;
	for (unsigned i = 0; i < nr; i++) {
		if (!g->waits[i].c && !g->kept)
			continue;
		if (g->waits[i].awaited)
			retreat_far_await(conns[i], fds[i], until);
		if (!g->waits[i].stays)
			end(conns[i], fds[i]);
	}
	conn_fin_settle_all(g->waits, g->polls, nr);
	for (unsigned i = 0; i < nr; i++)
		if (g->waits[i].c)
			conn_drop(g->waits[i].c);
}

static void all(struct conn *const *conns, const int *fds, unsigned nr, bool exec)
{
	struct fin_wait few_waits[FEW];
	struct pollfd few_polls[FEW];
	struct going g = { few_waits, few_polls, FEW, false, exec };
	size_t bytes = nr * (sizeof(*g.waits) + sizeof(*g.polls));
	long at = nr > FEW ? sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : 0;
	bool many = nr > FEW && !sys_failed(at);

	if (many) {
		g.waits = (void *)at;
		g.polls = (void *)(g.waits + nr);
		g.nr = nr;
	}
	for (unsigned i = 0; i < nr; i += g.nr)
		exit_some(&g, conns + i, fds + i, nr - i < g.nr ? nr - i : g.nr);
	if (many)
		sys_munmap((void *)at, bytes);
}

void conn_exit_all(struct conn *const *conns, const int *fds, unsigned nr)
{
	all(conns, fds, nr, false);
}

void conn_exit_flush(struct conn *c, int fd)
{
	struct fin_wait wait;
	struct pollfd poll;

	exit_some(&(struct going){ &wait, &poll, 1, true, false }, &c, &fd, 1);
}

/* A link to another host that were made now, or a lane that moved out, would be found by a peer that has been told nothing. */
static void stay(struct conn *c, int fd)
{
	if (!conn_hold(c, fd))
		return;
	if (conn_lock_both(c) == 0) {
		if (load_relaxed(&c->nr_holders) == 1)
			conn_exec_soon(c, fd);
		conn_unlock_both(c);
	}
	conn_drop(c);
}

/* Those between hosts leave their links first, so that their ends are the kernel's. */
void conn_exec_all(struct conn *const *conns, const int *fds, unsigned nr)
{
	for (unsigned i = 0; i < nr; i++)
		stay(conns[i], fds[i]);
	retreat_far_all_away(conns, fds, nr, 0, REASON_EXEC);
	all(conns, fds, nr, true);
}

void conn_exec_failed(struct conn *c, int fd)
{
	if (conn_lock_both(c) < 0)
		return;
	conn_holder_goes_on(c);
	conn_unend_lanes(c, fd);
	conn_unlock_both(c);
}
