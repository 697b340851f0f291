/* SPDX-License-Identifier: MIT */
/*
 * The life of a set's record: as long as a number of this process names the set, and while a thread is inside a wait.
 */
#include <string.h>

#include "shim/circle.h"
#include "shim/conn.h"
#include "shim/epoll.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "shim/nego.h"
#include "shim/own_fd.h"
#include "ringbuf/sys.h"

struct epoll_set *epoll_set_create(int epfd)
{
	struct epoll_set *s;

	if (pool_init() < 0)
		return NULL;
	s = pool_set_get();
	if (!s)
		return NULL;
	/* No fork sees half of it. */
	if (!set_lock(s)) {
		pool_set_put(s);
		return NULL;
	}
	/*
	 * But for the lock, which a late look at the set that was here before may be about to take, and the count of those who
	 * still sleep on that one.
	 */
	memset((char *)s + offsetof(struct epoll_set, live), 0, sizeof(*s) - offsetof(struct epoll_set, live));
	s->epfd = epfd;
	s->nr_numbers = 1;
	s->inner = s->room = s->kick = -1;
	s->live = true;
	set_unlock(s);
	return s;
}

struct epoll_set *epoll_set_enter(int epfd)
{
	struct epoll_set *s = fdtab_epoll(epfd);

	if (!s || !set_lock(s))
		return NULL;
	if (!s->live || s->nr_numbers == 0 || fdtab_epoll(epfd) != s) {
		set_unlock(s);
		return NULL;
	}
	s->nr_users++;
	return s;
}

static void set_free_locked(struct epoll_set *s)
{
	while (s->regs.first)
		reg_remove(s->regs.first, false);
	epoll_early_forget_set(s);
	set_take_stirred(s);
	own_fd_close(s->kick);
	own_fd_close(s->room);
	own_fd_close(s->inner);
	s->kick = s->room = s->inner = -1;
	store_relaxed(&s->has_inner, 0);
	s->live = false;
	set_unlock(s);
	pool_set_put(s);
}

void epoll_set_leave(struct epoll_set *s)
{
	if (--s->nr_users == 0 && s->nr_numbers == 0)
		set_free_locked(s);
	else
		set_unlock(s);
}

void epoll_set_dup(struct epoll_set *s, int epfd)
{
	if (!set_lock(s))
		return;
	s->nr_numbers++;
	if (s->epfd < 0)
		s->epfd = epfd;
	set_unlock(s);
}

void epoll_set_drop(struct epoll_set *s, int epfd)
{
	if (!set_lock(s))
		return;
	s->nr_numbers--;
	if (s->epfd == epfd || epfd < 0) {
		s->epfd = -1;
		for (int fd = fdtab_next(0); s->nr_numbers && fd >= 0; fd = fdtab_next((unsigned)fd + 1))
			if (fd != epfd && fdtab_epoll(fd) == s) {
				s->epfd = fd;
				break;
			}
	}
	if (s->nr_numbers == 0 && s->nr_users == 0)
		set_free_locked(s);
	else
		set_unlock(s);
}

/* ---- fork ---------------------------------------------------------------------------------------------------------- */

static const struct lane_lock *fork_misses;
static bool fork_regardless;

/* Free records, too: one may come into use while we wait for it. What a handler's fork finds locked by its own thread is not ours to unlock. */
static bool fork_lock(struct epoll_set *s)
{
	int err = lane_lock_briefly(&s->lock);

	if (err < 0) {
		fork_misses = &s->lock;
		return err == -EDEADLK || fork_regardless;
	}
	s->fork_locked = true;
	if (!s->live)
		return true;
	set_empty_park(s);
	/* Who sleeps there since before there were relatives does not hear of their ends. */
	if (!s->watches && s->inner >= 0 && load_relaxed(&s->nr_waiters) > 0)
		set_kick(s);
	return true;
}

static bool fork_unlock(struct epoll_set *s)
{
	if (s->fork_locked) {
		s->fork_locked = false;
		set_unlock(s);
	}
	return true;
}

static void for_each_record(bool (*fn)(struct epoll_set *s))
{
	uint32_t from = 0;

	pool_for_each_record(&from, fn);
}

/*
 * The child's copy describes the kernel's set as it is, which it shares with the parent. What the parent has armed is the
 * parent's sleep; the child arms for itself at its first wait.
 */
static bool fork_child_set(struct epoll_set *s)
{
	store_relaxed(&s->lock.owner, 0);
	store_relaxed(&s->nr_waiters, 0);
	store_relaxed(&s->waits_alone, 0);
	s->nr_users = 0;
	s->inherited = true;
	s->fork_locked = false;
	s->watches = false;
	s->relative_ended = false;
	for (struct epoll_reg *r = s->live ? s->regs.first : NULL; r; r = r->in_set.next) {
		r->armed = 0;
		if (r->state == REG_ADOPTED)
			reg_queue(r);
	}
	return true;
}

static bool got(const struct lane_lock *missing)
{
	fork_misses = missing;
	return !missing;
}

static bool fork_lock_all(void)
{
	uint32_t nr_locked = 0;

	while (pool_for_each_record(&nr_locked, fork_lock) && got(pool_fork_prepare(fork_regardless))) {
		/* New records come under the pool's lock, which is taken after the sets'. */
		if (likely(pool_has_records(nr_locked)) && got(epoll_early_fork_prepare(fork_regardless)))
			return true;
		pool_fork_release(false);
		if (pool_has_records(nr_locked))
			break;
	}
	return false;
}

/*
 * A handler in the middle of another thread's call may want any of these before it lets go the one that is missing: then all over again. Where it wants
 * what the call holds in whose middle this fork is, one of the two does without.
 */
void epoll_fork_prepare(void)
{
	struct circle_wait circle;

	circle_begin(&circle);
	fork_regardless = false;
	while (!fork_lock_all()) {
		for_each_record(fork_unlock);
		fork_regardless = lane_waits_in_circle(&circle, fork_misses);
		sys_call0(SYS_sched_yield);
	}
	circle_leave(&circle);
}

void epoll_fork_parent(void)
{
	epoll_early_fork_release(false);
	pool_fork_release(false);
	for_each_record(fork_unlock);
}

void epoll_fork_child(void)
{
	epoll_early_fork_release(true);
	pool_fork_release(true);
	for_each_record(fork_child_set);
}
