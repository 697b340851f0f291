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
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "shim/conn.h"
#include "shim/epoll.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "shim/nego.h"
#include "shim/real.h"
#include "ringbuf/sys.h"
#include "shim/wait.h"

/* While the rings give enough to do, other fds of the set wait this long at most. */
#define LOOK_EVERY_NS 30000
#define QUIET_LOOKS 128
#define RECENT_LOOKS 4

/* Read without the lock; its maker stirs what it puts in. */
static bool set_is_plain(struct epoll_set *s)
{
	return __atomic_load_n(&s->inner, __ATOMIC_RELAXED) < 0;
}

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

static int collect(struct epoll_set *s, struct epoll_event *events, int max)
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
		if (!r->hot && !r->armed && !r->fired)
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
static bool arm_all(struct epoll_set *s)
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

static void rouse_all(struct epoll_set *s)
{
	while (s->dozing.first)
		reg_rouse(s->dozing.first);
}

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

static void take_token(struct epoll_set *s, const struct epoll_event *ev)
{
	struct epoll_reg *r = pool_reg_of_token(s, ev->data.u64);

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
	case TOKEN_WATCH:
		s->pokes[s->nr_pokes++] = r->conn;
		break;
	case TOKEN_KICK:
		break;
	}
}

static int fd_of_conn(const struct conn *c)
{
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned)fd + 1))
		if (fdtab_get(fd) == c)
			return fd;
	return -1;
}

/*
 * Steps of rendezvous whose fds became readable. They may adopt, so they are made when the wait has told what it had to, else what
 * the kernel has just told would be told again; and without the lock.
 */
static bool run_pokes(struct epoll_set *s)
{
	struct conn *poke[EPOLL_POKES];
	int nr = s->nr_pokes;

	if (!nr)
		return false;
	s->nr_pokes = 0;
	memcpy(poke, s->pokes, (size_t)nr * sizeof(*poke));
	set_unlock(s);
	for (int i = 0; i < nr; i++) {
		int fd = fd_of_conn(poke[i]);

		if (fd >= 0)
			nego_poke(poke[i], fd);
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

static void drain_inner(struct epoll_set *s)
{
	while (!set_drain_inner(s))
		run_pokes(s);
}

/*
 * Level-triggered ones that were told go to the end. Where the events did not all fit, that is behind those, too, of which only
 * the inner set knows yet.
 */
static void requeue_told(struct epoll_set *s, bool full)
{
	struct epoll_reg *r;

	if (!s->told.first)
		return;
	if (full) {
		drain_inner(s);
		set_take_stirred(s);
		poll_hot(s);
	}
	while ((r = s->told.first) != NULL) {
		reg_unqueue(r);
		reg_queue(r);
	}
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
		drain_inner(s);
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

/* The program's own wait, a cancellation point like it. */
static int sleep_in_kernel(int epfd, struct epoll_event *events, int max, int64_t left_ns, const sigset_t *mask)
{
	int saved = errno, n;

	if (left_ns < 0 || left_ns % 1000000 == 0) {
		int64_t ms = left_ns < 0 ? -1 : left_ns / 1000000;

		n = real_epoll_pwait(epfd, events, max, ms > INT32_MAX ? INT32_MAX : (int)ms, mask);
	} else {
		struct timespec ts = { left_ns / 1000000000, left_ns % 1000000000 };

		n = real_epoll_pwait2(epfd, events, max, &ts, mask);
		if (n < 0 && errno == ENOSYS) {
			int64_t ms = left_ns / 1000000 + 1;

			n = real_epoll_pwait(epfd, events, max, ms > INT32_MAX ? INT32_MAX : (int)ms, mask);
		}
	}
	if (n < 0)
		n = -errno;
	errno = saved;
	return n;
}

/* Comes back with the lock held. */
static int sleep_on_set(struct epoll_set *s, int epfd, struct epoll_event *events, int max, int64_t left_ns,
			const sigset_t *mask)
{
	int n;

	pthread_cleanup_push(leave_cancelled, s);
	n = sleep_in_kernel(epfd, events, max, left_ns, mask);
	pthread_cleanup_pop(0);
	fetch_sub(&s->nr_waiters, 1);
	set_lock(s);
	rouse_all(s);
	note_told(s, n, max);
	if (n > 0 && strip_inner(events, &n)) {
		drain_inner(s);
		if (n == 0)
			return -EAGAIN; /* something happened, which collect() will weigh */
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
static void settle_locked(struct epoll_set *s)
{
	bool left, more;

	if (load_relaxed(&s->nr_waiters) <= 0 && !load_relaxed(&s->nested))
		return;
	rouse_all(s);
	/* What comes while arming is sifted once; if it does not stop coming, a wake-up too many does no harm. */
	left = sift_queue(s);
	more = arm_all(s);
	if (more) {
		left = sift_queue(s);
		more = arm_all(s);
	}
	if (left || more)
		set_kick(s);
}

static int wait_entered(struct epoll_set *s, int epfd, struct epoll_event *events, int max, int64_t timeout_ns,
			const sigset_t *mask)
{
	int64_t deadline = timeout_ns > 0 ? now_ns() + timeout_ns : 0, left = timeout_ns;
	bool spun = false;

	for (;;) {
		int n = 0, k, told;
		int64_t now = now_ns();
		bool due;

		if (deadline) {
			left = deadline - now;
			if (left < 0)
				left = 0;
		}
		due = now - s->looked_ns >= LOOK_EVERY_NS;
		/*
		 * The kernel first, so that what it has to say of a connection is told in one event with the rest; but not if
		 * it took all the room the last time.
		 */
		if (!due || s->turn) {
			n = collect(s, events, max);
			if (n && !due)
				return n;
		}
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
			n += collect(s, events + n, max - n);
		if (n || left == 0)
			return n;
		if (run_pokes(s))
			continue;

		if (s->nr_hot && !spun) {
			spun = true;
			set_unlock(s);
			n = spin_until(set_has_news, s);
			set_lock(s);
			if (n)
				continue;
		}
		if (arm_all(s))
			continue;
		if (deadline) {
			left = deadline - now_ns();
			if (left <= 0)
				left = 0;
		}
		/* Pairs with reg_stir(). */
		fetch_add(&s->nr_waiters, 1);
		fence_full();
		if (load_relaxed(&s->stirred)) {
			fetch_sub(&s->nr_waiters, 1);
			continue;
		}
		set_unlock(s);
		n = sleep_on_set(s, epfd, events, max, left, mask);
		s->looked_ns = now_ns();
		s->turn = n == max;
		if (n <= 0 && n != -EAGAIN)
			return n;
		if (n < 0)
			n = 0;
		if (n < max)
			n += collect(s, events + n, max - n);
		if (n)
			return n;
		run_pokes(s);
	}
}

static void uncount_cancelled(void *arg)
{
	struct epoll_set *s = arg;

	fetch_sub(&s->nr_waiters, 1);
}

/*
 * Nothing of ours is in the set. A connection may be adopted while we sleep: its inner set joins, and wakes those who are
 * counted. -EAGAIN: that has happened.
 */
static int wait_plain(struct epoll_set *s, int epfd, struct epoll_event *events, int max, int64_t timeout_ns,
		      const sigset_t *mask)
{
	int n = -EAGAIN;

	fetch_add(&s->nr_waiters, 1);
	fence_full();
	if (set_is_plain(s)) {
		pthread_cleanup_push(uncount_cancelled, s);
		n = sleep_in_kernel(epfd, events, max, timeout_ns, mask);
		pthread_cleanup_pop(0);
	}
	fetch_sub(&s->nr_waiters, 1);
	note_told(s, n, max);
	if (n > 0 && strip_inner(events, &n) && n == 0)
		return -EAGAIN;
	return n;
}

int epoll_set_wait(int epfd, struct epoll_event *events, int max, int64_t timeout_ns, const sigset_t *mask)
{
	struct epoll_set *s = fdtab_epoll(epfd);
	int64_t began = timeout_ns > 0 ? now_ns() : 0;
	int n;

	if (s)
		epoll_set_refresh(s);
	if (!s || set_is_plain(s)) {
		n = s ? wait_plain(s, epfd, events, max, timeout_ns, mask) :
			sleep_in_kernel(epfd, events, max, timeout_ns, mask);
		if (n != -EAGAIN)
			return n;
		if (timeout_ns > 0) {
			timeout_ns -= now_ns() - began;
			if (timeout_ns < 0)
				timeout_ns = 0;
		}
	}
	if (max <= 0)
		return -EINVAL;
	s = epoll_set_enter(epfd);
	if (!s)
		return sleep_in_kernel(epfd, events, max, timeout_ns, mask);
	n = wait_entered(s, epfd, events, max, timeout_ns, mask);
	requeue_told(s, n == max);
	run_pokes(s);
	settle_locked(s);
	epoll_set_leave(s);
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
	drain_inner(s);
	run_pokes(s);
	settle_locked(s);
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
	return !set_is_plain((struct epoll_set *)s) || load_relaxed(&((struct epoll_set *)s)->nests);
}
