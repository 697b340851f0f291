/* SPDX-License-Identifier: MIT */
/*
 * What a program that we exec, or that libc spawns for us, finds under its inherited numbers. A connection on TCP is
 * passed on as it is, and stays on TCP. One on a ring comes back to TCP first. Where that cannot be (RETREAT.md section 7) what its new owner wrote would land among
 * frames, and what it should read would be missing. So it is kept out: closed by the exec, or, under the numbers 0 to 2, where programs expect
 * something, replaced by a socket whose peer has reset. Of a failed exec only that is undone.
 */
#include "shim/inherit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/guard.h"
#include "shim/retreat.h"
#include "shim/retreat_far_go.h"
#include "shim/summary.h"
#include "shim/vfork_child.h"

#define DUP_MINIMUM 10 /* a saved copy of 0, 1 or 2 goes above what a program is likely to ask for by number */

/* Or may be put there at any moment: nobody but us may use the socket. */
static bool on_a_ring(struct conn *c)
{
	return conn_is_linked(c) && !load_relaxed(&c->returned);
}

/* Would the number be open in the new program? */
static bool passes_exec(int fd)
{
	long flags = sys_fcntl(fd, F_GETFD, 0);

	return flags >= 0 && !(flags & FD_CLOEXEC);
}

static void set_cloexec(int fd, bool on)
{
	(void)sys_fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0);
}

static void shield_raise(struct inherit_shield *shield)
{
	unsigned int nr = 0;
	long addr;

	*shield = (struct inherit_shield){ .nr = 0 };
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned int)fd + 1)) {
		struct conn *c = fdtab_get(fd);

		nr += c && on_a_ring(c);
	}
	if (nr == 0)
		return;
	shield->bytes = nr * sizeof(*shield->fds);
	addr = sys_mmap(NULL, shield->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_failed(addr)) {
		shield->bytes = 0;
		nr = 0; /* kept out all the same, but for good */
	}
	shield->fds = (int *)addr;
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned int)fd + 1)) {
		struct conn *c = fdtab_get(fd);

		if (!c || !on_a_ring(c) || !passes_exec(fd))
			continue;
		set_cloexec(fd, true);
		if (shield->nr < nr)
			shield->fds[shield->nr++] = fd;
	}
}

static void shield_lower(struct inherit_shield *shield)
{
	for (unsigned int i = 0; i < shield->nr; i++)
		set_cloexec(shield->fds[i], false);
	if (shield->bytes)
		(void)sys_munmap(shield->fds, shield->bytes);
	*shield = (struct inherit_shield){ .nr = 0 };
}

/* Those that cannot come back to TCP are the shield's. */
static void pin_what_passes(void)
{
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned int)fd + 1)) {
		struct conn *c = fdtab_get(fd);

		if (c && passes_exec(fd))
			(void)fd_hand_on(fd, REASON_EXEC);
	}
}

void inherit_before_spawn(struct inherit_shield *shield)
{
	*shield = (struct inherit_shield){ .nr = 0 };
	if (!guard_ready())
		return;
	pin_what_passes();
	shield_raise(shield);
}

void inherit_after_spawn(struct inherit_shield *shield)
{
	shield_lower(shield);
}

/* The child may pass any of them on, and has closed by then what the engine needs. */
void inherit_before_vfork(void)
{
	struct fd_list list = fd_list_conns();

	retreat_far_all_away(list.conns, list.fds, list.nr, 0, REASON_SHARED);
	fd_list_free(&list);
	pin_what_passes();
}

/* Its peer has reset; -1 where there is no fd to be had. */
static int dead_socket(void)
{
	int pair[2];

	if (sys_call4(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return -1;
	/* Closed with a byte unread, which a unix socket reports to its peer as a reset. */
	(void)sys_sendto(pair[0], "", 1, MSG_NOSIGNAL, NULL, 0);
	(void)sys_close(pair[1]);
	return pair[0];
}

/* Is a connection on a ring under `fd` that the next program would get? */
static bool gives_ring_away(int fd)
{
	struct conn *c;

	if (!passes_exec(fd))
		return false;
	c = in_vfork_child() ? vfork_child_conn(fd) : fdtab_get(fd);
	return c && on_a_ring(c);
}

static void replace_low(struct inherit_exec *undo)
{
	int dead = -1;

	for (int fd = 0; fd < 3; fd++) {
		if (!gives_ring_away(fd))
			continue;
		undo->low[fd] = (int)sys_fcntl(fd, F_DUPFD_CLOEXEC, DUP_MINIMUM);
		if (dead < 0)
			dead = dead_socket();
		if (dead >= 0)
			(void)sys_call3(SYS_dup3, dead, fd, 0);
		else
			set_cloexec(fd, true);
	}
	if (dead >= 0)
		(void)sys_close(dead);
}

static void restore_low(struct inherit_exec *undo)
{
	for (int fd = 0; fd < 3; fd++)
		if (undo->low[fd] >= 0) {
			(void)sys_call3(SYS_dup3, undo->low[fd], fd, 0);
			(void)sys_close(undo->low[fd]);
		}
}

/* The child's own descriptors, and of the connections nothing but that they come back to TCP. */
static void before_exec_in_vfork_child(struct inherit_exec *undo)
{
	for (int fd = vfork_child_next(0); fd >= 0; fd = vfork_child_next((unsigned int)fd + 1))
		if (passes_exec(fd))
			vfork_child_hands_on(fd);
	replace_low(undo);
	undo->shield.fds = undo->few;
	for (int fd = vfork_child_next(3); fd >= 0; fd = vfork_child_next((unsigned int)fd + 1)) {
		if (!gives_ring_away(fd))
			continue;
		set_cloexec(fd, true);
		if (undo->shield.nr < INHERIT_FEW)
			undo->shield.fds[undo->shield.nr++] = fd;
	}
}

void inherit_before_exec(struct inherit_exec *undo)
{
	*undo = (struct inherit_exec){ .low = { -1, -1, -1 } };
	if (!(load_relaxed(&guard_state) & GUARD_READY))
		return;
	if (in_vfork_child()) {
		before_exec_in_vfork_child(undo);
		return;
	}
	/* The new program cannot see the rings. */
	pin_what_passes();
	undo->gone = fd_list_conns();
	conn_exec_all(undo->gone.conns, undo->gone.fds, undo->gone.nr);
	summary_write();
	replace_low(undo);
	shield_raise(&undo->shield);
}

void inherit_exec_failed(struct inherit_exec *undo)
{
	int kept_errno = errno;

	shield_lower(&undo->shield);
	restore_low(undo);
	for (unsigned int i = 0; i < undo->gone.nr; i++) {
		if (!conn_hold(undo->gone.conns[i], undo->gone.fds[i]))
			continue;
		conn_exec_failed(undo->gone.conns[i], undo->gone.fds[i]);
		conn_drop(undo->gone.conns[i]);
	}
	fd_list_free(&undo->gone);
	errno = kept_errno;
}
