/* SPDX-License-Identifier: MIT */
/*
 * See vfork_child.h. Other threads of the parent run meanwhile, and the child has their locks: a connection that the table still names under its locks is
 * not let go. What the parent has besides memory (bells, epoll sets, a rendezvous) may be closed in the child by now, so for that the parent does what is left
 * to be done.
 */
#include "shim/vfork_child.h"

#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/fdtab.h"
#include "shim/guard.h"
#include "shim/retreat.h"

#define NOTES 16

static __thread struct {
	unsigned int nr_copies;
	int highest;	/* of the copies that found no room here, or -1 */
	struct {
		int fd;
		struct conn *conn;	/* NULL: not known to be any */
	} copies[NOTES];
	unsigned int nr_changed;
	int changed[NOTES];	/* the parent's numbers of connections that were handed on */
} notes __attribute__((tls_model("initial-exec")));

void vfork_child_begins(void)
{
	notes.nr_copies = 0;
	notes.highest = -1;
	notes.nr_changed = 0;
}

/* What the number stood for when the child came into being, or was copied from. */
static struct conn *noted(int fd)
{
	for (unsigned int i = 0; i < notes.nr_copies; i++)
		if (notes.copies[i].fd == fd)
			return notes.copies[i].conn;
	return fdtab_get(fd);
}

/* A connection that has not been looked at yet has no cookie. */
static bool is_under(const struct conn *c, const struct conn *hint, uint64_t cookie)
{
	return c && (load_acquire(&((struct conn *)c)->have_addr) ? c->cookie == cookie : c == hint);
}

/* The parent's number for what the child has under `fd`, or -1. */
static int number_of(int fd)
{
	struct conn *hint = noted(fd);
	uint64_t cookie;
	unsigned int len = sizeof(cookie);

	if (sys_getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0)
		return -1;
	if (is_under(fdtab_get(fd), hint, cookie))
		return fd;
	for (int other = fdtab_next_conn(0); other >= 0; other = fdtab_next_conn((unsigned int)other + 1))
		if (is_under(fdtab_get(other), hint, cookie))
			return other;
	return -1;
}

struct conn *vfork_child_conn(int fd)
{
	int number = number_of(fd);

	return number < 0 ? NULL : fdtab_get(number);
}

static void note_copy(int fd, struct conn *c)
{
	unsigned int i = 0;

	while (i < notes.nr_copies && notes.copies[i].fd != fd)
		i++;
	if (i == NOTES) {
		if (fd > notes.highest)
			notes.highest = fd;
		return;
	}
	notes.copies[i].fd = fd;
	notes.copies[i].conn = c;
	if (i == notes.nr_copies)
		notes.nr_copies++;
}

int vfork_child_copied(int from, int copy)
{
	if (copy >= 0 && copy != from && in_vfork_child())
		note_copy(copy, vfork_child_conn(from));
	return copy;
}

int vfork_child_next(unsigned int from)
{
	int next = fdtab_next_conn(from);

	if ((int)from <= notes.highest)
		return (int)from;
	for (unsigned int i = 0; i < notes.nr_copies; i++)
		if (notes.copies[i].fd >= (int)from && (next < 0 || notes.copies[i].fd < next))
			next = notes.copies[i].fd;
	return next;
}

void vfork_child_hands_on(int fd)
{
	struct conn *c = vfork_child_conn(fd);
	int number;

	if (!c || conn_lock_both(c) < 0)
		return;
	number = number_of(fd);
	if (number >= 0 && fdtab_get(number) == c) {
		conn_pin_locked(c, REASON_EXEC);
		if (conn_is_linked(c))
			(void)retreat_go(c, fd, REASON_EXEC);
		if (notes.nr_changed < NOTES)
			notes.changed[notes.nr_changed] = number;
		notes.nr_changed++;
	}
	conn_unlock_both(c);
}

void vfork_child_nonblock(int fd, bool on)
{
	struct conn *c = in_vfork_child() ? vfork_child_conn(fd) : NULL;

	if (c)
		conn_set_nonblock(c, on);
}

/* Rings that found no bell in the child are made good, and a rendezvous is given up. */
static void settle(int fd)
{
	struct conn *c = fdtab_get(fd);

	if (!c || !conn_hold(c, fd))
		return;
	if (conn_is_linked(c))
		retreat_tell_again(c);
	else
		(void)conn_pin(c, REASON_EXEC);
	conn_drop(c);
}

void vfork_child_over(void)
{
	unsigned int nr = notes.nr_changed;

	notes.nr_changed = 0;
	if (nr <= NOTES) {
		for (unsigned int i = 0; i < nr; i++)
			settle(notes.changed[i]);
		return;
	}
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned int)fd + 1)) {
		struct conn *c = fdtab_get(fd);

		if (c && load_relaxed(&c->pinned))
			settle(fd);
	}
}
