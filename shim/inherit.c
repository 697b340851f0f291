/* SPDX-License-Identifier: MIT */
/* See inherit.h. What happens to descriptors in an exec is in exec_fds.c. */
#include "shim/inherit.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "ringbuf/barrier.h"
#include "ringbuf/sys.h"
#include "shim/ceiling.h"
#include "shim/clock.h"
#include "shim/conn_use.h"
#include "shim/epoll.h"
#include "shim/family.h"
#include "shim/far.h"
#include "shim/glibc.h"
#include "shim/guard.h"
#include "shim/idle.h"
#include "shim/lane_lock.h"
#include "shim/nego.h"
#include "shim/own_fd.h"
#include "shim/retreat_far_go.h"
#include "shim/signals.h"
#include "shim/stats_slots.h"
#include "shim/summary.h"

#define FAR_ROUNDS 3	/* to another host new links may come, but not for ever */

pid_t inherit_pid;

/* One fork at a time, from the first handler to the last; no signal of this thread comes in between. */
static struct {
	struct lane_lock lock;
	struct signals_held held;
	int kept_errno;
	uint32_t child;
	struct fd_list list;
} forking;

/*
 * Devices are waited for while other threads go on, which may open, close and link connections: who waited for the fork instead would not do so for ever, and the child have
 * connections that it is not counted in. So the list that counts is made behind that.
 */
static struct fd_list list_without_far_links(void)
{
	int64_t since = 0;

	for (int round = 0;; round++) {
		int64_t began = now_ns();
		struct fd_list list;

		fd_fork_prepare();
		list = fd_list_conns();
		if (round == FAR_ROUNDS || !retreat_far_any(list.conns, list.nr, since))
			return list;
		fd_fork_done();
		retreat_far_all_away(list.conns, list.fds, list.nr, since, REASON_SHARED);
		fd_list_free(&list);
		since = began;
	}
}

void inherit_before_fork(void)
{
	struct signals_held held;

	if (!guard_ready())
		return;
	signals_hold_these(&held, signals_all());
	lane_lock_surely(&forking.lock);
	lane_lock_fork_prepare();
	forking.held = held;
	forking.list = list_without_far_links();
	forking.child = family_fork_prepare(forking.list.nr > 0);
	conn_fork_prepare(forking.list.conns, forking.list.nr, forking.child);
	epoll_fork_prepare();
	/* The handlers are not told whether the fork failed, but only a failing one sets errno. */
	forking.kept_errno = errno;
	errno = 0;
}

static void end_fork(void)
{
	struct signals_held held = forking.held;

	fd_list_free(&forking.list);
	fd_fork_done();
	errno = forking.kept_errno;
	lane_unlock(&forking.lock);
	signals_release(&held);
}

void inherit_in_parent(void)
{
	int error = errno;

	if (!guard_ready())
		return;
	epoll_fork_parent();
	family_fork_parent();
	if (error)
		conn_fork_cancel(forking.list.conns, forking.list.nr, forking.child);
	end_fork();
	if (error)
		errno = error;
}

void inherit_in_child(void)
{
	if (!guard_ready())
		return;
	inherit_pid = sys_getpid();
	guard_open();
	(void)own_fd_init();
	(void)barrier_init();
	summary_in_child();
	stats_slots_in_child();
	fd_fork_child();
	nego_fork_child();
	idle_fork_child();
	ceiling_fork_child();
	far_fork_child();
	epoll_fork_child();
	family_fork_child();
	conn_fork_child();
	end_fork();
}

void inherit_at_exit(void)
{
	struct fd_list list;

	if (!guard_ready())
		return;
	list = fd_list_conns();
	conn_exit_all(list.conns, list.fds, list.nr);
	fd_list_free(&list);
	conn_use_flush_kept();
	summary_write();
}

static void exit_handler(int status, void *arg)
{
	inherit_at_exit();
}

static void quick_exit_handler(void *arg)
{
	inherit_at_exit();
}

/* The compiler's name for this object. */
extern void *__dso_handle __attribute__((visibility("hidden")));

int inherit_init(void)
{
	inherit_pid = sys_getpid();
	(void)barrier_init();
	/* on_exit() because its handlers are not tied to an object: run in reverse order, this one is after them all. */
	if (on_exit(exit_handler, NULL) || __cxa_at_quick_exit(quick_exit_handler, &__dso_handle) ||
	    __register_atfork(inherit_before_fork, inherit_in_parent, inherit_in_child, &__dso_handle))
		return -ENOMEM;
	return 0;
}
