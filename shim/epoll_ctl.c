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

/*
 * A connection that was on rings will be there again. An edge-triggered registration that the kernel has meanwhile would be told once more then of what it was told of, since only
 * the kernel knows that.
 */
static bool moves_again(const struct epoll_set *s, struct conn *c, const struct epoll_event *event)
{
	return unlikely(conn_had_link(c)) && event->events & EPOLLET && !(event->events & EPOLLEXCLUSIVE) && !s->inherited &&
	       !load_relaxed(&c->shared) && !load_relaxed(&c->pinned) && !pool_set_adopted(c, true);
}

/*
 * The rendezvous waits, because only the kernel knows whether this one-shot has fired. The program arms it now, so it goes to the inner set instead, and
 * the kernel's set, which could tell another thread of it meanwhile, is not armed at all. -EAGAIN: as ever.
 */
static int rearm_adopted(struct epoll_reg *r, const struct epoll_event *event)
{
	int err;

	if (!r->wanted)
		return moves_again(r->set, r->conn, event) ? reg_adopt_armed(r, event) : -EAGAIN;
	if (event->events & EPOLLEXCLUSIVE)
		return -EAGAIN;
	r->wanted = false;
	if (!nego_is_under_way(&r->conn->nego) || pool_set_adopted(r->conn, true))
		return -EAGAIN;
	err = reg_adopt_armed(r, event);
	if (!err)
		nego_look_soon(&r->conn->nego);
	return err;
}

struct epoll_reg *reg_note(struct epoll_set *s, int fd, struct conn *c, const struct epoll_event *event)
{
	struct epoll_reg *r = pool_reg_get(c, s);

	if (!r)
		return NULL;
	conn_wait_seen(c);
	r->fd = fd;
	r->state = REG_PLAIN;
	list_append(&s->regs, r, offsetof(struct epoll_reg, in_set));
	reg_arm_as_told(r, event);
	return r;
}

/*
 * Who registers a number has looked it up before; who closes it takes it out of the table first, and looks for registrations then.
 * So a registration that came too late for that look finds the number gone here, and goes as if it had come in time. Where the
 * number stands for another connection by now, that is the one which the kernel may have taken. Pairs with ready_forget().
 */
static bool closed_meanwhile(struct epoll_reg *r)
{
	struct conn *other;

	fence_full();
	other = fdtab_get(r->fd);
	if (likely(other == r->conn))
		return false;
	if (other)
		pool_set_incomplete(other);
	if (reg_living_fd(r) >= 0)
		return false;
	reg_remove(r, true);
	return true;
}

static bool ctl_add_parked(struct epoll_set *s, int fd, struct conn *c, const struct epoll_event *event)
{
	struct epoll_reg *parked = reg_parked(s, c);

	if (!parked)
		return false;
	if (parked->fd != fd) {
		reg_remove(parked, true);
		return false;
	}
	reg_arm_as_told(parked, event);
	reg_unpark(parked);
	reg_stir(parked);
	return true;
}

static int ctl_add(struct epoll_set *s, int epfd, int fd, struct conn *c, struct epoll_event *event)
{
	struct epoll_reg *r = reg_find(s, c, fd), *former = r;
	int err, watch;

	if (r && r->state == REG_ADOPTED)
		return -EEXIST;
	if (event->events & EPOLLEXCLUSIVE && event->events & ~(uint32_t)EXCLUSIVE_OK)
		return -EINVAL;
	if (ctl_add_parked(s, fd, c, event))
		return 0;
	/*
	 * Noted before the kernel takes it and before we look whether it is adopted: a rendezvous that another thread makes meanwhile
	 * either finds it, and then waits for the set, or has said before that it adopts.
	 */
	r = reg_note(s, fd, c, event);
	if (pool_derives(c))
		err = r ? reg_add_adopted(r) : -ENOMEM;
	else if (!r || !moves_again(s, c, event) || reg_add_adopted(r))
		err = kernel_ctl(epfd, EPOLL_CTL_ADD, fd, event);
	else
		err = 0;
	if (err) {
		if (r)
			reg_remove(r, false);
		return err;
	}
	if (former) /* the kernel had lost it with a number that was closed behind us */
		reg_remove(former, false);
	if (!r || closed_meanwhile(r))
		return 0;
	watch = r->state == REG_PLAIN ? nego_wait_fd(c) : -1;
	if (watch >= 0)
		reg_watch(r, watch);
	if (r->state == REG_ADOPTED)
		reg_stir(r);
	return 0;
}

static int ctl_mod(struct epoll_set *s, int epfd, int fd, struct epoll_reg *r, struct epoll_event *event)
{
	int err;

	if (!r || r->state == REG_PLAIN) {
		err = r ? rearm_adopted(r, event) : -EAGAIN;
		if (err == -EAGAIN)
			err = kernel_ctl(epfd, EPOLL_CTL_MOD, fd, event);
		if (!err && r)
			reg_arm_as_told(r, event);
		if (!err && r && r->state == REG_ADOPTED) {
			reg_await_room(r);
			reg_forget_room(r);
			reg_stir(r);
		}
		return err;
	}
	if ((event->events | r->events) & EPOLLEXCLUSIVE)
		return -EINVAL;
	reg_disarm(r);
	reg_arm_as_told(r, event);
	reg_await_room(r);
	reg_forget_room(r);
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
	if (r && !closed_meanwhile(r) && pool_derives(c)) {
		r->fresh = true;
		reg_adopt(r);
		r->fresh = false;
	}
	epoll_set_leave(s);
	return 0;
}

/* One that has fired, and that the kernel's set does not have. */
static int ctl_early_fired(int epfd, int op, int fd, struct epoll_event *event)
{
	if (op == EPOLL_CTL_ADD && event)
		return -EEXIST;
	if (op == EPOLL_CTL_MOD && event && event->events & EPOLLEXCLUSIVE)
		return -EINVAL;
	return op == EPOLL_CTL_DEL ? 0 : kernel_ctl(epfd, op == EPOLL_CTL_MOD ? EPOLL_CTL_ADD : op, fd, event);
}

int epoll_set_ctl_early(int epfd, int op, int fd, struct epoll_event *event)
{
	struct epoll_set *s = fdtab_epoll(epfd);
	int err = s && unlikely(epoll_early_has_fired(s, fd)) ? ctl_early_fired(epfd, op, fd, event) :
								 kernel_ctl(epfd, op, fd, event);

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
