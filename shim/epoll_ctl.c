/* SPDX-License-Identifier: MIT */
/*
 * epoll_ctl() on a TCP connection. A plain registration goes to the kernel first and is noted if the kernel agrees; an
 * adopted one is ours, with the kernel's checks and errors.
 */
#include "shim/conn.h"
#include "shim/epoll.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "shim/nego.h"
#include "shim/ready.h"
#include "ringbuf/sys.h"

/* What may stand beside EPOLLEXCLUSIVE. */
#define EXCLUSIVE_OK (EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE)

static int kernel_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	return (int)sys_call4(SYS_epoll_ctl, epfd, op, fd, event);
}

static void reg_arm_as_told(struct epoll_reg *r, const struct epoll_event *event)
{
	r->events = event->events;
	r->data = event->data.u64;
	r->fired = false;
	r->armed_tick = load_relaxed(&r->set->tick);
}

/* The rendezvous could not link before, because only the kernel knew whether this one-shot had fired: now it is known. */
static void adopt_if_wanted(struct epoll_reg *r)
{
	if (!r->wanted || r->state != REG_PLAIN)
		return;
	r->fresh = true;
	reg_adopt(r);
	r->fresh = false;
}

struct epoll_reg *reg_note(struct epoll_set *s, int fd, struct conn *c, const struct epoll_event *event)
{
	struct epoll_reg *r = pool_reg_get(c, s);

	if (!r)
		return NULL;
	r->fd = fd;
	r->state = REG_PLAIN;
	list_append(&s->regs, r, offsetof(struct epoll_reg, in_set));
	reg_arm_as_told(r, event);
	return r;
}

static int ctl_add(struct epoll_set *s, int epfd, int fd, struct conn *c, struct epoll_event *event)
{
	struct epoll_reg *r = reg_find(s, c, fd), *parked;
	bool adopted = conn_is_linked(c) || pool_is_adopted(c);
	int err = 0, watch;

	if (r && r->state == REG_ADOPTED)
		return -EEXIST;
	if (event->events & EPOLLEXCLUSIVE && event->events & ~(uint32_t)EXCLUSIVE_OK)
		return -EINVAL;
	if (!adopted)
		err = kernel_ctl(epfd, EPOLL_CTL_ADD, fd, event);
	if (err)
		return err;
	parked = adopted ? reg_parked(s, c) : NULL;
	if (parked && parked->fd == fd) {
		reg_arm_as_told(parked, event);
		reg_unpark(parked);
		reg_stir(parked);
		return 0;
	}
	if (parked)
		reg_remove(parked, true);
	if (r) /* noted, and the kernel has just taken it anew: it had lost it with a number that was closed behind us */
		reg_remove(r, false);
	r = reg_note(s, fd, c, event);
	if (!r)
		return adopted ? -ENOMEM : 0;
	if (adopted) {
		err = reg_add_adopted(r);
		if (err)
			reg_remove(r, false);
		else
			reg_stir(r);
		return err;
	}
	watch = nego_wait_fd(c);
	if (watch >= 0)
		reg_watch(r, watch);
	return 0;
}

static int ctl_mod(struct epoll_set *s, int epfd, int fd, struct epoll_reg *r, struct epoll_event *event)
{
	int err;

	if (!r || r->state == REG_PLAIN) {
		err = kernel_ctl(epfd, EPOLL_CTL_MOD, fd, event);
		if (!err && r) {
			reg_arm_as_told(r, event);
			adopt_if_wanted(r);
		}
		return err;
	}
	if ((event->events | r->events) & EPOLLEXCLUSIVE)
		return -EINVAL;
	reg_disarm(r);
	reg_arm_as_told(r, event);
	r->edge = true;
	reg_queue(r);
	reg_heat(r);
	reg_stir(r);
	return 0;
}

/*
 * A set that was not made under our eyes: inherited across exec, received, made by a raw system call. It gets its record
 * with the first connection that the kernel lets into it.
 */
static int ctl_unknown_set(int epfd, int op, int fd, struct conn *c, struct epoll_event *event)
{
	int err = kernel_ctl(epfd, op, fd, event);
	struct epoll_set *s;
	struct epoll_reg *r;

	if (err || op != EPOLL_CTL_ADD || fdtab_epoll(epfd))
		return err;
	s = epoll_set_create(epfd);
	if (s && !fdtab_install_epoll(epfd, s)) {
		epoll_set_drop(s, epfd);
		s = NULL;
	}
	if (!s || !(s = epoll_set_enter(epfd))) {
		conn_pin(c, REASON_NO_MEMORY);
		return 0;
	}
	r = reg_note(s, fd, c, event);
	if (!r) {
		conn_pin(c, REASON_NO_MEMORY);
	} else if (conn_is_linked(c) || pool_is_adopted(c)) {
		r->fresh = true;
		reg_adopt(r);
		r->fresh = false;
	}
	epoll_set_leave(s);
	return 0;
}

int epoll_set_ctl_early(int epfd, int op, int fd, struct epoll_event *event)
{
	int err = kernel_ctl(epfd, op, fd, event);
	struct epoll_set *s = fdtab_epoll(epfd);

	if (err)
		return err;
	if (!s && op == EPOLL_CTL_ADD) {
		s = epoll_set_create(epfd);
		if (s && !fdtab_install_epoll(epfd, s)) {
			epoll_set_drop(s, epfd);
			s = NULL;
		}
	}
	if (s)
		epoll_early_note(s, op, fd, event);
	return 0;
}

int epoll_set_ctl(int epfd, int op, int fd, struct conn *c, struct epoll_event *event)
{
	struct epoll_set *s = epoll_set_enter(epfd);
	struct epoll_reg *r;
	bool nested;
	int err;

	if (!s)
		return ctl_unknown_set(epfd, op, fd, c, event);
	r = reg_find(s, c, fd);
	if (op != EPOLL_CTL_DEL && !event) {
		err = -EFAULT;
	} else if (op == EPOLL_CTL_ADD) {
		err = ctl_add(s, epfd, fd, c, event);
	} else if (op == EPOLL_CTL_MOD) {
		err = ctl_mod(s, epfd, fd, r, event);
	} else if (op == EPOLL_CTL_DEL) {
		err = r && r->state == REG_ADOPTED ? 0 : kernel_ctl(epfd, EPOLL_CTL_DEL, fd, event);
		if (!err && r && reg_may_park(r))
			reg_park(r);
		else if (!err && r)
			reg_remove(r, true);
	} else {
		err = -EINVAL;
	}
	nested = load_relaxed(&s->nested);
	epoll_set_leave(s);
	if (nested && (s = fdtab_epoll(epfd)) != NULL)
		epoll_set_nest(s);
	return err;
}
