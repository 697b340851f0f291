/* SPDX-License-Identifier: MIT */
/*
 * Waiting on a set. What the kernel carries is the kernel's to report; what rings carry is looked for first in the few
 * registrations that were busy a moment ago (the hot ones), and by bells, through the inner set, in all others. So no
 * step here grows with the number of connections in the set.
 *
 * A turn of the loop: collect what is ready; ask the kernel without sleeping, now and then, even if something is; spin by
 * policy; arm what is hot; sleep in the kernel, with the program's signal mask, as the program would have.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "shim/asleep.h"
#include "shim/conn.h"
#include "shim/counted.h"
#include "shim/epoll.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "shim/idle.h"
#include "shim/sandbox.h"
#include "shim/signals.h"
#include "shim/unwound.h"
#include "ringbuf/sys.h"
#include "shim/wait.h"

/* While the rings give enough to do, other fds of the set wait this long at most. */
#define LOOK_EVERY_NS 30000

/* Takes the inner set's word out of what the kernel gave. */
static bool strip_inner(struct epoll_event *events, int *n)
{
	for (int i = 0; i < *n; i++)
		if (events[i].data.u64 == epoll_inner_word) {
			memmove(&events[i], &events[i + 1], (size_t)(*n - i - 1) * sizeof(*events));
			(*n)--;
			return true;
		}
	return false;
}

static void note_told(struct epoll_set *s, int n, int max)
{
	if (n >= 0 && n < max)
		count_add(&s->tick, 1);
}

/* One look at the kernel's set, with the lock held. What it has, or -errno; the inner set's part is in the queue afterwards. */
static int look(struct epoll_set *s, int epfd, struct epoll_event *events, int max)
{
	int n = (int)sys_call6(SYS_epoll_pwait, epfd, (long)events, max, 0, 0, 0);

	note_told(s, n, max);
	if (n > 0 && strip_inner(events, &n))
		set_drain(s);
	return n;
}

/* ---- sleeping ------------------------------------------------------------------------------------------------------ */

static void leave_cancelled(void *arg)
{
	struct epoll_set *s = arg;

	fetch_sub(&s->nr_waiters, 1);
	if (set_lock(s))
		epoll_set_leave(s);
}

/* What goes with a call through all its sleeps. */
struct sleeping {
	const sigset_t *mask;
	struct signals_held *held;
	uint64_t handled;	/* counted_now() as it began */
};

static int sleep_in_kernel(int epfd, struct epoll_event *events, int max, int64_t left_ns, const struct sleeping *w)
{
	signals_hold_masked(w->held, w->mask);
	return asleep_in_epoll(epfd, events, max, left_ns, w->mask, w->handled, sandbox_why() == REASON_SECCOMP);
}

/* Comes back with the lock held. */
static int sleep_on_set(struct epoll_set *s, int epfd, struct epoll_event *events, int max, int64_t left_ns,
			const struct sleeping *w)
{
	int n;

	UNWOUND_BEGIN(leave_cancelled, s);
	n = sleep_in_kernel(epfd, events, max, left_ns, w);
	UNWOUND_END();
	fetch_sub(&s->nr_waiters, 1);
	set_lock(s);
	set_rouse_all(s);
	note_told(s, n, max);
	if (n > 0 && strip_inner(events, &n)) {
		set_drain(s);
		if (n == 0)
			return -EAGAIN; /* something happened, which set_collect() will weigh */
	}
	return n;
}

/* ---- spinning ------------------------------------------------------------------------------------------------------ */

static bool set_has_news(void *arg)
{
	struct epoll_set *s = arg;
	bool news = load_relaxed(&s->stirred);

	if (news || !set_lock(s))
		return true;
	for (struct epoll_reg *r = s->hot.first; r && !news; r = r->in_hot.next)
		news = reg_has_news(r);
	set_unlock(s);
	return news;
}

/* ---- the loop ------------------------------------------------------------------------------------------------------ */

/*
 * Something came while arming, and the next look may find nothing to tell: what asks for attention stays until its lane can be
 * taken, and whoever holds that may be waiting for this very set, to adopt. So the lock is given away between two rounds, and
 * soon for long enough that others get it.
 */
static void let_others_in(struct epoll_set *s, unsigned rounds)
{
	struct timespec briefly = { .tv_nsec = rounds < 20 ? 5000 * rounds : 100000 };

	set_unlock(s);
	if (rounds > 1)
		sys_nanosleep(&briefly);
	set_lock(s);
}

int64_t epoll_set_until_probe(const struct epoll_set *set, int64_t left_ns)
{
	struct epoll_set *s = (struct epoll_set *)set;
	int64_t at = load_relaxed(&s->probe_at), inside = 0, wait_ns;

	if (unlikely(load_relaxed(&s->nests)))
		inside = pool_nested_probe_at();
	if (inside && (!at || inside < at))
		at = inside;
	wait_ns = idle_until(-1);
	if (unlikely(at)) {
		at -= now_ns();
		if (wait_ns < 0 || at < wait_ns)
			wait_ns = at > 0 ? at : 0;
	}
	if (likely(wait_ns < 0))
		return left_ns;
	wait_ns = (wait_ns / 1000000 + 1) * 1000000;
	return left_ns < 0 || wait_ns < left_ns ? wait_ns : left_ns;
}

/* Sets have no order among each other, and connections come before sets: none is locked. */
static void look_around(struct epoll_set *s, int64_t now)
{
	set_unlock(s);
	idle_look(now);
	epoll_set_refresh(s);
	set_lock(s);
}

/* Nothing is polled or waits to be looked at: the kernel knows all there is, and a look in front of the sleep would find no more than that does. */
static bool set_is_calm(const struct epoll_set *s)
{
	return !s->hot.first && !s->queue.first && !load_relaxed(&((struct epoll_set *)s)->stirred) && !s->nr_pokes;
}

static int wait_entered(struct epoll_set *s, int epfd, struct epoll_event *events, int max, int64_t timeout_ns,
			const struct sleeping *w)
{
	int64_t deadline = timeout_ns > 0 ? now_ns() + timeout_ns : 0, left = timeout_ns, slice, slept_from = 0;
	unsigned rounds = 0;
	bool spun = false;

	for (;;) {
		int n = 0, k, told;
		int64_t now = now_ns();
		bool due, calm;

		if (deadline) {
			left = deadline - now;
			if (left < 0)
				left = 0;
		}
		due = now - s->looked_ns >= LOOK_EVERY_NS;
		if (due && unlikely(idle_is_due(now)))
			look_around(s, now);
		set_queue_probes(s, now);
		calm = left != 0 && set_is_calm(s);
		/*
		 * The kernel first, so that what it has to say of a connection is told in one event with the rest; but not if
		 * it took all the room the last time.
		 */
		if (!due || s->turn || calm) {
			n = set_collect(s, events, max);
			if (n && !due)
				return n;
			calm = calm && !n && set_is_calm(s);
		}
		if (calm)
			goto sleep;
		s->looked_ns = now;
		s->turn = 0;
		told = n;
		if (n < max) {
			k = look(s, epfd, events + n, max - n);
			if (k < 0)
				return n ? n : k;
			n += k;
			s->turn = n == max;
		}
		if (n < max && !told)
			n += set_collect(s, events + n, max - n);
		if (n || left == 0)
			return n;
		if (set_run_pokes(s))
			continue;

		if (s->nr_hot && !spun) {
			spun = true;
			set_unlock(s);
			n = spin_until(set_has_news, s);
			set_lock(s);
			if (n)
				continue;
			slept_from = spin_sleep_begins();
		}
		if (set_arm_all(s)) {
			let_others_in(s, ++rounds);
			continue;
		}
		if (deadline) {
			left = deadline - now_ns();
			if (left <= 0)
				left = 0;
		}
sleep:
		set_watch_family(s);
		/* Pairs with reg_stir(). */
		fetch_add(&s->nr_waiters, 1);
		fence_full();
		if (load_relaxed(&s->stirred)) {
			fetch_sub(&s->nr_waiters, 1);
			continue;
		}
		slice = epoll_set_until_probe(s, left);
		set_unlock(s);
		n = sleep_on_set(s, epfd, events, max, slice, w);
		s->looked_ns = now_ns();
		if (n > 0 || n == -EAGAIN)
			spin_slept_from(slept_from);
		slept_from = 0;
		s->turn = n == max;
		if (n == 0 && slice != left) {
			look_around(s, s->looked_ns);
			continue;
		}
		if (n <= 0 && n != -EAGAIN)
			return n;
		if (n < 0)
			n = 0;
		if (n < max)
			n += set_collect(s, events + n, max - n);
		if (n)
			return n;
		set_run_pokes(s);
	}
}

/* The inner set has said something beside what there is to tell. */
static void take_inner(int epfd)
{
	struct epoll_set *s = epoll_set_enter(epfd);

	if (!s)
		return;
	set_drain(s);
	set_run_pokes(s);
	set_settle(s);
	epoll_set_leave(s);
}

int epoll_set_told(int epfd, struct epoll_set *s, struct epoll_event *events, int n, int max)
{
	note_told(s, n, max);
	if (likely(n <= 0) || likely(!strip_inner(events, &n)))
		return n;
	if (n == 0)
		return -EAGAIN;
	take_inner(epfd);
	return n;
}

static void uncount_cancelled(void *arg)
{
	struct epoll_set *s = arg;

	fetch_sub(&s->nr_waiters, 1);
}

/*
 * Nothing of ours is in the set. A connection may be adopted while we sleep: its inner set joins, or the kick that is in it, and wakes those who
 * are counted. -EAGAIN: that has happened, or a rendezvous has a step to make.
 */
static int wait_plain(struct epoll_set *s, int epfd, struct epoll_event *events, int max, int64_t timeout_ns,
		      const struct sleeping *w)
{
	int n = -EAGAIN;

	fetch_add(&s->nr_waiters, 1);
	fence_full();
	if (set_is_kernels(s)) {
		UNWOUND_BEGIN(uncount_cancelled, s);
		n = sleep_in_kernel(epfd, events, max, timeout_ns, w);
		UNWOUND_END();
	}
	fetch_sub(&s->nr_waiters, 1);
	return epoll_set_told(epfd, s, events, n, max);
}

static int wait_on(int epfd, struct epoll_event *events, int max, int64_t timeout_ns, const struct sleeping *w)
{
	int64_t deadline = timeout_ns > 0 ? now_ns() + timeout_ns : 0, slice;
	struct epoll_set *s;
	bool rung = false;
	int n;

	while ((s = fdtab_epoll(epfd)) != NULL) {
		epoll_set_refresh(s);
		if (!set_is_kernels(s) || (rung && !set_is_plain(s)))
			break;
		slice = epoll_set_until_probe(s, timeout_ns);
		n = wait_plain(s, epfd, events, max, slice, w);
		if (n != -EAGAIN && (n || slice == timeout_ns))
			return n;
		rung = n == -EAGAIN;
		idle_look(now_ns());
		if (deadline) {
			timeout_ns = deadline - now_ns();
			if (timeout_ns < 0)
				timeout_ns = 0;
		}
	}
	if (max <= 0)
		return -EINVAL;
	s = epoll_set_enter(epfd);
	if (!s)
		return sleep_in_kernel(epfd, events, max, timeout_ns, w);
	n = wait_entered(s, epfd, events, max, timeout_ns, w);
	set_requeue_told(s, n == max);
	set_run_pokes(s);
	set_settle(s);
	epoll_set_leave(s);
	return n;
}

int epoll_set_wait(int epfd, struct epoll_event *events, int max, int64_t timeout_ns, const sigset_t *mask, uint64_t handled)
{
	struct signals_held held;
	struct sleeping w = { .held = &held, .handled = handled };
	int n;

	signals_hold(&held);
	w.mask = signals_asleep(&held, mask);
	n = wait_on(epfd, events, max, timeout_ns, &w);
	signals_release(&held);
	return n;
}

/* ---- a set inside a set ---------------------------------------------------------------------------------------------- */

/*
 * For poll, select and an outer set: from now on every wait leaves everything armed behind it, and the kick pending while
 * something is ready, so that the kernel's word about the set's fd is right.
 */
void epoll_set_nest(struct epoll_set *s)
{
	store_relaxed(&s->nested, 1);
	if (set_is_plain(s))
		return;
	/* Members say at first, and with each frame, what is no news to the program: that is sifted out. */
	if (!set_lock(s))
		return;
	set_empty_park(s);
	set_queue_probes(s, now_ns());
	set_drain(s);
	set_run_pokes(s);
	set_settle(s);
	set_unlock(s);
}

static void nest_again(struct epoll_set *s)
{
	if (load_relaxed(&s->nested))
		epoll_set_nest(s);
}

/* Which sets are in which is the kernel's to know; where any is, all that are watched are brought up to date. */
void epoll_set_refresh(struct epoll_set *s)
{
	if (unlikely(load_relaxed(&s->nests)))
		pool_for_each_set(nest_again);
}

bool epoll_set_concerns_us(const struct epoll_set *s)
{
	return !set_is_plain(s) || load_relaxed(&((struct epoll_set *)s)->nests);
}
