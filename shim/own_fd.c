/* SPDX-License-Identifier: MIT */
/*
 * Where hidden fds live. The kernel gives out numbers below the soft limit only, so for the moment of the move the soft
 * limit is raised and then put back; the fd keeps its number. In that moment another thread at its limit could open one
 * file more than it should, which is the whole harm.
 *
 * The lowest number tried is the program's soft limit, but at most PLACE_MAX: the kernel's table of a process is as long
 * as its highest number, and is copied by fork. A program that has more than PLACE_MAX files open merely sees its
 * numbers skip ours. Where soft and hard limit are one, ours take the top eighth of the range and no more than half of
 * that, and nothing at all below LIMIT_MIN: there every number counts, and the connection stays on TCP. Only what a connection on
 * rings cannot go without any more takes a number of the program's, too.
 */
#include "shim/own_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "ringbuf/sys.h"
#include "shim/fdtab.h"
#include "shim/signals.h"
#include "shim/unseen.h"

enum {
	PLACE_MAX = 16384,
	LIMIT_MIN = 64,
	ROOM = 65536, /* how far above the soft limit */
	FIRST_NUMBER = 3, /* those below have a meaning, though they be closed */
};

static _Atomic int nr_hidden;
/* Held while the soft limit is raised, so that nobody takes the raised one for the program's. */
static _Atomic int limit_lock;

static struct rlimit64 read_limit(void)
{
	struct rlimit64 limit = { 0, 0 };

	(void)sys_prlimit(0, RLIMIT_NOFILE, NULL, &limit);
	return limit;
}

static void limit_lock_take(struct signals_held *held)
{
	/* A handler of this thread must not come in and wait for us. */
	signals_hold_these(held, signals_all());
	while (exchange(&limit_lock, 1))
		(void)sys_call0(SYS_sched_yield);
}

static void limit_lock_drop(const struct signals_held *held)
{
	store_release(&limit_lock, 0);
	signals_release(held);
}

unsigned long own_fd_limit(void)
{
	struct rlimit64 limit;
	struct signals_held held;

	limit_lock_take(&held);
	limit = read_limit();
	limit_lock_drop(&held);
	return limit.rlim_cur;
}

_Atomic uint32_t own_fd_polled;

void own_fd_limit_set(void)
{
	unsigned long limit = own_fd_limit();

	store_relaxed(&own_fd_polled, limit < FDTAB_MAX ? (uint32_t)limit : FDTAB_MAX);
}

int own_fd_init(void)
{
	store_relaxed(&limit_lock, 0);
	own_fd_limit_set();
	return read_limit().rlim_cur ? 0 : -EMFILE;
}

int own_fd_room(void)
{
	/* It may be the raised one: then it is said to be more for a moment. */
	struct rlimit64 limit = read_limit();
	uint64_t all;

	if (limit.rlim_cur > PLACE_MAX)
		all = limit.rlim_cur - PLACE_MAX;
	else if (limit.rlim_max > limit.rlim_cur)
		all = limit.rlim_max - limit.rlim_cur;
	else
		all = limit.rlim_cur >= LIMIT_MIN ? limit.rlim_cur / 16 : 0;
	if (all > ROOM)
		all = ROOM;
	return (int)all - load_relaxed(&nr_hidden);
}

/* A copy of fd out of the program's way, or -EMFILE. */
static int place(int fd)
{
	struct rlimit64 limit, raised;
	struct signals_held held;
	int number = -EMFILE;

	limit_lock_take(&held);
	limit = read_limit();
	if (limit.rlim_cur > PLACE_MAX) {
		number = (int)sys_fcntl(fd, F_DUPFD_CLOEXEC, PLACE_MAX);
	} else if (limit.rlim_max > limit.rlim_cur) {
		raised = limit;
		raised.rlim_cur += ROOM;
		if (raised.rlim_cur > limit.rlim_max)
			raised.rlim_cur = limit.rlim_max;
		if (sys_prlimit(0, RLIMIT_NOFILE, &raised, NULL) == 0) {
			number = (int)sys_fcntl(fd, F_DUPFD_CLOEXEC, (long)limit.rlim_cur);
			(void)sys_prlimit(0, RLIMIT_NOFILE, &limit, NULL);
		}
	} else if (limit.rlim_cur >= LIMIT_MIN && load_relaxed(&nr_hidden) < (int)(limit.rlim_cur / 16)) {
		number = (int)sys_fcntl(fd, F_DUPFD_CLOEXEC, (long)(limit.rlim_cur - limit.rlim_cur / 8));
	}
	limit_lock_drop(&held);
	return number < 0 ? -EMFILE : number;
}

static int hide(int number, int *holder)
{
	if (!fdtab_install_hidden(number, holder))
		return -EMFILE;
	fetch_add(&nr_hidden, 1);
	return number;
}

static int place_hidden(int fd, int *holder)
{
	int number = place(fd), hidden = number < 0 ? number : hide(number, holder);

	if (number >= 0 && hidden < 0)
		(void)sys_close(number);
	return hidden;
}

int own_fd_adopt(int fd, int *holder)
{
	int number = place_hidden(fd, holder);

	(void)sys_close(fd);
	if (holder)
		*holder = number;
	return number;
}

int own_fd_insist(int fd, int *holder)
{
	int number = place_hidden(fd, holder);

	if (number < 0)
		number = hide(fd, holder);
	if (number != fd)
		(void)sys_close(fd);
	*holder = number;
	return number;
}

int own_fd_take(int fd)
{
	int number = place_hidden(fd, NULL);

	if (number >= 0)
		(void)sys_close(fd);
	return number;
}

void own_fd_let_go(int fd)
{
	if (fd < 0 || !fdtab_hidden(fd))
		return;
	fdtab_mark(fd, FD_MARK_NONE);
	fetch_sub(&nr_hidden, 1);
}

void own_fd_close(int fd)
{
	int change;

	if (fd < 0 || !fdtab_hidden(fd))
		return;
	change = unseen_change_begin();
	own_fd_let_go(fd);
	(void)sys_close(fd);
	unseen_change_end(change, fd);
}

int own_fd_evict(int fd)
{
	int *holder = fdtab_holder(fd);
	int number;

	if (!holder)
		return -EBUSY;
	number = place(fd);
	/* It may be at one of the program's already, and then another one will do. */
	if (number < 0)
		number = (int)sys_fcntl(fd, F_DUPFD_CLOEXEC, FIRST_NUMBER);
	if (number < 0)
		return -EBUSY;
	if (!fdtab_install_hidden(number, holder)) {
		(void)sys_close(number);
		return -EBUSY;
	}
	*holder = number;
	fdtab_mark(fd, FD_MARK_NONE);
	return 0;
}
