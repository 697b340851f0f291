/* SPDX-License-Identifier: MIT */
/*
 * A set's queue of registrations to look at: what fills it (bells, the kernel's events, the hot ones), what a wait takes
 * from it, and how it is left behind. Caller holds the set's lock.
 */
#include <string.h>

#include "shim/conn.h"
#include "shim/conn_probe.h"
#include "shim/conn_far.h"
#include "shim/conn_holders.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "shim/nego.h"
#include "ringbuf/sys.h"

#define QUIET_LOOKS 128
#define RECENT_LOOKS 4

void set_take_stirred(struct epoll_set *s)
{
	struct epoll_reg *r = load_relaxed(&s->stirred) ? exchange(&s->stirred, NULL) : NULL, *next;

	for (; r; r = next) {
		next = r->next_stirred;
		store_release(&r->stirred, 0);
		if (r->state == REG_DEAD)
			pool_reg_put(r);
		else if (r->state == REG_ADOPTED)
			reg_queue(r);
	}
}

/* One that has been quiet for long beside busy ones is armed: a loop that never sleeps must not drag all along. */
static void poll_hot(struct epoll_set *s)
{
	for (struct epoll_reg *r = s->hot.first, *next; r; r = next) {
		next = r->in_hot.next;
		if (r->queued)
			continue;
		if (reg_has_news(r)) {
			r->quiet_looks = 0;
			reg_queue(r);
		} else if (++r->quiet_looks >= QUIET_LOOKS) {
			reg_arm(r);
			reg_cool(r);
		}
	}
}

int set_collect(struct epoll_set *s, struct epoll_event *events, int max)
{
	struct epoll_reg *r, *last;
	int n = 0;

	set_take_stirred(s);
	if (unlikely(ready_everything_changed(&s->everything_seen)))
		for (r = s->regs.first; r; r = r->in_set.next)
			if (r->state == REG_ADOPTED)
				reg_queue(r);
	poll_hot(s);
	last = s->queue.last;
	while (n < max && (r = s->queue.first) != NULL) {
		uint32_t mask;

		reg_unqueue(r);
		mask = reg_evaluate(r);
		if ((mask || !reg_go_home(r)) && !r->hot && !r->armed && !r->fired)
			reg_heat(r);
		if (mask) {
			events[n].events = mask;
			events[n++].data.u64 = r->data;
			/* Level: looked at again by the next wait, not by this. */
			if (!(r->events & EPOLLET) && !r->fired)
				reg_put_aside(r);
		}
		if (r == last)
			break;
	}
	return n;
}

/*
 * Arms all that is hot, so that the kernel can wake us. True: something came meanwhile. Those that something came for just before
 * doze: a peer that answers on many connections rings for the first, and finds us awake for the others.
 */
bool set_arm_all(struct epoll_set *s)
{
	bool something = false;

	while (s->hot.first) {
		struct epoll_reg *r = s->hot.first;
		bool recent = r->quiet_looks < RECENT_LOOKS;

		something |= reg_arm(r);
		reg_cool(r);
		if (recent && r->armed)
			reg_doze(r);
	}
	return something || load_relaxed(&s->stirred);
}

void set_queue_probes(struct epoll_set *s, int64_t now)
{
	int64_t at = load_relaxed(&s->probe_at);

	if (likely(!at) || now < at)
		return;
	store_relaxed(&s->probe_at, 0);
	for (struct epoll_reg *r = s->regs.first; r; r = r->in_set.next)
		if (r->state == REG_ADOPTED && (r->events & (EPOLLOUT | EPOLLWRNORM) || conn_has_date(r->conn)))
			reg_queue(r);
}

void set_rouse_all(struct epoll_set *s)
{
	while (s->dozing.first)
		reg_rouse(s->dozing.first);
}

static void take_token(struct epoll_set *s, const struct epoll_event *ev)
{
	struct epoll_reg *r = pool_reg_of_token(s, ev->data.u64);

	if (unlikely(ev->data.u64 == TOKEN_FAMILY))
		s->relative_ended = true;
	if (unlikely(ev->data.u64 == TOKEN_ROOM_SET))
		set_drain_room(s);
	if (!r)
		return; /* the kick, which has done its work by waking us; or what was removed meanwhile */
	switch (token_kind(ev->data.u64)) {
	case TOKEN_SOCKET:
		r->kernel_events |= ev->events;
		if (r->state != REG_PARKED)
			reg_queue(r);
		break;
	case TOKEN_BELL:
		if (r->state != REG_PARKED)
			reg_rung(r);
		break;
	case TOKEN_LINK:
		if (r->state != REG_PARKED)
			reg_link_rung(r);
		break;
	case TOKEN_WATCH:
		s->pokes[s->nr_pokes++] = r->conn;
		break;
	case TOKEN_KICK:
		break;
	}
}

/*
 * What a relative's end asks for, and steps of rendezvous whose fds became readable. These may adopt, so they are made when the wait has told what it had to, else what
 * the kernel has just told would be told again; and without the lock.
 */
bool set_run_pokes(struct epoll_set *s)
{
	struct conn *poke[EPOLL_POKES];
	int nr = s->nr_pokes;
	bool ended = s->relative_ended;

	if (!nr && !ended)
		return false;
	s->nr_pokes = 0;
	s->relative_ended = false;
	memcpy(poke, s->pokes, (size_t)nr * sizeof(*poke));
	set_unlock(s);
	if (ended)
		conn_relative_ended();
	for (int i = 0; i < nr; i++) {
		int fd = fdtab_next_of(poke[i], 0);

		if (fd >= 0 && conn_hold(poke[i], fd)) {
			nego_poke(poke[i], fd);
			conn_drop(poke[i]);
		}
	}
	set_lock(s);
	return true;
}

/* Reads the inner set. Caller holds the lock. */
bool set_drain_inner(struct epoll_set *s)
{
	struct epoll_event batch[EPOLL_POKES];
	long n;

	do {
		int room = EPOLL_POKES - s->nr_pokes;

		if (room == 0)
			return false;
		n = sys_call6(SYS_epoll_pwait, s->inner, (long)batch, room, 0, 0, 0);
		for (long i = 0; i < n; i++)
			take_token(s, &batch[i]);
		if (n < room)
			return true;
	} while (true);
}

void set_drain(struct epoll_set *s)
{
	while (!set_drain_inner(s))
		set_run_pokes(s);
}

/*
 * Level-triggered ones that were told go to the end. Where the events did not all fit, that is behind those, too, of which only
 * the inner set knows yet.
 */
void set_requeue_told(struct epoll_set *s, bool full)
{
	struct epoll_reg *r;

	if (!s->told.first)
		return;
	if (full) {
		set_drain(s);
		set_take_stirred(s);
		poll_hot(s);
	}
	while ((r = s->told.first) != NULL) {
		reg_unqueue(r);
		reg_queue(r);
	}
}

/* Leaves on the queue what the next wait will tell, and tells nothing yet. True if that is anything. */
static bool sift_queue(struct epoll_set *s)
{
	struct epoll_reg *r, *last;

	set_take_stirred(s);
	last = s->queue.last;
	while ((r = s->queue.first) != NULL) {
		bool done = r == last;

		reg_unqueue(r);
		if (reg_evaluate(r)) {
			r->edge = true;
			r->fired = false;
			reg_queue(r);
		}
		if (!r->hot && !r->armed)
			reg_heat(r);
		if (done)
			break;
	}
	return s->queue.first;
}

/* Whoever sleeps on the set now, or on a set around it, must not depend on this thread's coming back. */
void set_settle(struct epoll_set *s)
{
	bool left, more;

	if (!set_has_waiter(s) && !load_relaxed(&s->nested))
		return;
	set_rouse_all(s);
	set_watch_family(s);
	/* What comes while arming is sifted once; if it does not stop coming, a wake-up too many does no harm. */
	left = sift_queue(s);
	more = set_arm_all(s);
	if (more) {
		left = sift_queue(s);
		more = set_arm_all(s);
	}
	if (left || more)
		set_kick(s);
}
