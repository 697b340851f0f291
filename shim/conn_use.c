/* SPDX-License-Identifier: MIT */
/*
 * Uses of a connection by the threads of this process, and the end of its mapping here. A data call needs none: it holds a
 * lane lock, and close takes both before it ends anything. Waits hold no lock and count themselves here instead.
 */
#include "shim/conn_use.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/far.h"
#include "shim/fdtab.h"
#include "shim/own_fd.h"
#include "shim/signals.h"
#include "shim/wait.h"

struct use {
	_Atomic uint32_t nr;
	_Atomic uint32_t closing;
	_Atomic uint32_t flushed;	/* the end of the process has been announced */
	_Atomic uint32_t sleepers;	/* data calls that have slept and are not over */
	_Atomic uint32_t kept;		/* 1 + the hidden descriptor that they have instead of the closed one */
};

static _Atomic uint32_t nr_kept;

static struct use *uses;

int conn_use_init(void)
{
	long at = sys_mmap(NULL, sizeof(struct use) * CONN_MAX, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (sys_failed(at))
		return (int)at;
	uses = (struct use *)at;
	return 0;
}

void conn_use_opened(struct conn *c)
{
	/* Not `nr`: a thread that still has the record's former name may be between conn_hold() and its conn_drop(). */
	store_relaxed(&uses[c->index].closing, 0);
	store_relaxed(&uses[c->index].flushed, 0);
}

/* The connections that only sleeping calls hold: none but in a program that closes under them. */
static void for_each_kept(void (*act)(uint32_t index, int fd))
{
	if (!load_relaxed(&nr_kept))
		return;
	for (uint32_t i = 0; i < CONN_MAX; i++) {
		uint32_t kept = load_relaxed(&uses[i].kept);

		if (kept)
			act(i, (int)kept - 1);
	}
}

static void flush_kept(uint32_t index, int fd)
{
	conn_exit_flush(conn_at(index), fd);
}

void conn_use_flush_kept(void)
{
	for_each_kept(flush_kept);
}

/* The calls are the parent's, and so is what they keep. */
static void close_kept(uint32_t index, int fd)
{
	(void)index;
	own_fd_close(fd);
}

void conn_use_fork_child(void)
{
	for_each_kept(close_kept);
	store_relaxed(&nr_kept, 0);
	sys_call3(SYS_madvise, uses, sizeof(struct use) * CONN_MAX, MADV_DONTNEED);
}

bool conn_use_flush(struct conn *c)
{
	return exchange(&uses[c->index].flushed, 1) == 0;
}

bool conn_use_unflush(struct conn *c)
{
	return exchange(&uses[c->index].flushed, 0) == 1;
}

/* The link in this process: relatives keep theirs, and the record still has the values for them. */
static void take_down(struct conn *c)
{
	if (load_acquire(&c->linked)) {
		struct segment mine = c->link.segment;

		if (conn_is_far(c))
			far_leave(c);
		own_fd_close(c->link.rx.bells.bell_fd);
		own_fd_close(c->link.tx.bells.bell_fd);
		segment_close(&mine);
	}
	conn_unmap(c);
}

void conn_hold_locked(struct conn *c)
{
	fetch_add(&uses[c->index].nr, 1);
}

bool conn_hold(struct conn *c, int fd)
{
	/* Pairs with conn_use_close(), which runs after the fd table has forgotten the number. */
	fetch_add(&uses[c->index].nr, 1);
	if (likely(fdtab_get(fd) == c))
		return true;
	conn_drop(c);
	return false;
}

void conn_drop(struct conn *c)
{
	struct use *u = &uses[c->index];

	if (fetch_sub(&u->nr, 1) == 1 && unlikely(load_acquire(&u->closing)) && exchange(&u->closing, 0))
		take_down(c);
}

void conn_use_close(struct conn *c)
{
	struct use *u = &uses[c->index];

	exchange(&u->closing, 1);
	if (load_acquire(&u->nr) == 0 && exchange(&u->closing, 0))
		take_down(c);
}

/* ---- calls that sleep ---------------------------------------------------------------------------------------------- */

static int take_kept(struct use *u)
{
	int fd = (int)exchange(&u->kept, 0) - 1;

	if (fd >= 0)
		fetch_sub(&nr_kept, 1);
	return fd;
}

static void sleeper_gone(struct conn *c)
{
	struct use *u = &uses[c->index];

	if (fetch_sub(&u->sleepers, 1) == 1 && unlikely(load_acquire(&u->kept))) {
		int fd = take_kept(u);

		if (fd >= 0) {
			conn_release_kept(c, fd);
			own_fd_close(fd);
		}
	}
	conn_drop(c);
}

/* It has ended, or never will: cancelled, or jumped out of by a signal handler. */
static void sleep_over(void *arg)
{
	struct conn_sleep *s = arg;
	struct conn *c = s->slept;

	s->slept = NULL;
	if (c)
		sleeper_gone(c);
}

static void sleep_unwound(void *arg)
{
	struct conn_sleep *s = arg;

	sleep_over(s);
	signals_unwound(&s->between);
}

void conn_call_sleeps(struct conn *c, struct conn_sleep *s)
{
	struct signals_held held;

	if (s->slept)
		return;
	signals_hold(&held);
	_pthread_cleanup_push(&s->unwound, sleep_unwound, s);
	conn_hold_locked(c);
	fetch_add(&uses[c->index].sleepers, 1);
	s->slept = c;
	signals_release(&held);
	if (signals_count_between())
		signals_hold_now(&s->between);
}

bool conn_call_has(const struct conn *c, int fd)
{
	return likely(fdtab_get(fd) == c) || load_acquire(&uses[c->index].kept) == (uint32_t)fd + 1;
}

int conn_call_waits(struct conn *c, struct conn_sleep *s, int *fd, int what, bool briefly, int64_t deadline_ns)
{
	const struct signals_held *held = s->between.held ? &s->between : NULL;
	int r = briefly ? wait_briefly(c, *fd, deadline_ns, held) : wait_lane(c, *fd, (enum wait_for)what, deadline_ns, held);

	/* It may still have to run. */
	if (r == WAIT_HANDLED && held) {
		signals_release_now(&s->between);
		signals_hold_now(&s->between);
	}
	if (likely(fdtab_get(*fd) == c))
		return r;
	*fd = (int)load_acquire(&uses[c->index].kept) - 1;
	return *fd < 0 || r == WAIT_HANDLED ? -EBADF : r;
}

void conn_call_ends(struct conn *c, struct conn_sleep *s)
{
	struct signals_held held;

	if (likely(!s->slept))
		return;
	signals_hold(&held);
	_pthread_cleanup_pop(&s->unwound, 0);
	sleep_over(s);
	signals_release(&held);
	signals_release(&s->between);
	s->between.held = false;
}

bool conn_use_asleep(const struct conn *c)
{
	return load_relaxed(&uses[c->index].sleepers) != 0;
}

bool conn_use_keep(struct conn *c, int fd)
{
	struct use *u = &uses[c->index];
	int copy;

	if (likely(!load_relaxed(&u->sleepers)) || fd < 0)
		return false;
	copy = (int)sys_fcntl(fd, F_DUPFD_CLOEXEC, 0);
	copy = copy < 0 ? copy : own_fd_adopt(copy, NULL);
	if (copy < 0)
		return false;
	fetch_add(&nr_kept, 1);
	exchange(&u->kept, (uint32_t)copy + 1);
	/* Pairs with conn_call_ends(): the last call sees the descriptor, or is seen to have gone. */
	if (load_relaxed(&u->sleepers) || take_kept(u) < 0)
		return true;
	own_fd_close(copy);
	return false;
}
