/* SPDX-License-Identifier: MIT */
/*
 * Registrations of TCP sockets that are not connected yet. Some programs put a socket into their set first and call connect()
 * afterwards; the registration must be known when the connection is adopted. Listening sockets stand here too, and stay.
 *
 * The list is short in any program: it is searched from end to end.
 */
#include "shim/conn.h"
#include "shim/epoll.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "ringbuf/sys.h"

#define EARLY_MAX 1024

struct early {
	struct epoll_set *set;
	int fd;
	struct epoll_event event;
	bool fired;		/* a one-shot that the kernel's set does not have, since it would fire there once more */
};

static struct {
	struct lane_lock lock;	/* inside a set's; nothing is taken while it is held */
	_Atomic uint32_t nr;
	_Atomic bool overflown;	/* some registration is not here: who connects under an unlisted number stays on TCP */
	struct early list[EARLY_MAX];
} early;

static bool early_lock(void)
{
	return lane_lock(&early.lock, false) != -EDEADLK;
}

static void early_unlock(void)
{
	lane_unlock(&early.lock);
}

static void take_out_locked(uint32_t i)
{
	uint32_t last = load_relaxed(&early.nr) - 1;

	early.list[i] = early.list[last];
	store_relaxed(&early.nr, last);
}

static uint32_t find_locked(const struct epoll_set *s, int fd)
{
	uint32_t i;

	for (i = 0; i < load_relaxed(&early.nr); i++)
		if (early.list[i].set == s && early.list[i].fd == fd)
			break;
	return i;
}

static void note(struct epoll_set *s, int op, int fd, const struct epoll_event *event, bool fired)
{
	uint32_t nr, i;

	if (!early_lock()) {
		store_relaxed(&early.overflown, true);
		return;
	}
	nr = load_relaxed(&early.nr);
	i = find_locked(s, fd);
	if (op == EPOLL_CTL_DEL) {
		if (i < nr)
			take_out_locked(i);
	} else if (i < nr || nr < EARLY_MAX) {
		early.list[i] = (struct early){ s, fd, *event, fired };
		if (i == nr)
			store_relaxed(&early.nr, nr + 1);
	} else {
		store_relaxed(&early.overflown, true);
	}
	early_unlock();
}

void epoll_early_note(struct epoll_set *s, int op, int fd, const struct epoll_event *event)
{
	note(s, op, fd, event, false);
}

void epoll_early_note_fired(struct epoll_set *s, int fd, const struct epoll_event *event)
{
	note(s, EPOLL_CTL_ADD, fd, event, true);
}

bool epoll_early_has_fired(const struct epoll_set *s, int fd)
{
	uint32_t i;
	bool fired;

	if (likely(!load_relaxed(&early.nr)) || !early_lock())
		return false;
	i = find_locked(s, fd);
	fired = i < load_relaxed(&early.nr) && early.list[i].fired;
	early_unlock();
	return fired;
}

/* The next one under this number (s == NULL) or of this set (fd < 0), taken out. */
static bool take_next(struct epoll_set *s, int fd, struct early *out)
{
	bool found = false;

	if (!load_relaxed(&early.nr) || !early_lock())
		return false;
	for (uint32_t i = 0; i < load_relaxed(&early.nr) && !found; i++)
		if (s ? early.list[i].set == s : early.list[i].fd == fd) {
			*out = early.list[i];
			take_out_locked(i);
			found = true;
		}
	early_unlock();
	return found;
}

/* With the set locked. One that has fired and cannot be kept from the kernel's set may fire once more. */
static void bind_one(struct conn *c, struct early *e)
{
	struct epoll_reg *r = reg_note(e->set, e->fd, c, &e->event);

	if (unlikely(e->fired) && (!r || reg_adopt_fired(r) < 0)) {
		(void)sys_call4(SYS_epoll_ctl, e->set->epfd, EPOLL_CTL_ADD, e->fd, &e->event);
		conn_pin(c, REASON_NO_MEMORY);
	}
}

void epoll_early_bind(struct conn *c, int fd)
{
	struct early e;
	bool any = false;

	while (take_next(NULL, fd, &e)) {
		any = true;
		if (!set_lock(e.set)) {
			conn_pin(c, REASON_NO_MEMORY);
			continue;
		}
		if (e.set->live && e.set->nr_numbers)
			bind_one(c, &e);
		set_unlock(e.set);
	}
	if (!any && unlikely(load_relaxed(&early.overflown)))
		conn_pin(c, REASON_NO_MEMORY);
}

void epoll_early_forget(int fd)
{
	struct early e;

	while (take_next(NULL, fd, &e))
		;
}

void epoll_early_forget_set(struct epoll_set *s)
{
	struct early e;

	while (take_next(s, -1, &e))
		;
}

/* A handler that forks inside the lock keeps what it has. */
static bool fork_holds;

const struct lane_lock *epoll_early_fork_prepare(bool regardless)
{
	int err = lane_lock_briefly(&early.lock);

	fork_holds = err >= 0;
	return err >= 0 || err == -EDEADLK || regardless ? NULL : &early.lock;
}

void epoll_early_fork_release(bool child)
{
	if (child)
		store_relaxed(&early.lock.owner, 0);
	else if (fork_holds)
		early_unlock();
}
