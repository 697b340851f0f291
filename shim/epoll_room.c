/* SPDX-License-Identifier: MIT */
/*
 * Edges of room in the kernel's socket, for registrations that wait for them and not for bytes. The kernel names room beside every arrival, so in the inner set, where
 * all stand for everything, the one cannot be told from the other. These stand in a set of their own as well, a member of the inner one, for room alone. With the set locked.
 */
#include "shim/conn.h"
#include "shim/epoll_set.h"
#include "shim/own_fd.h"
#include "shim/unseen.h"
#include "ringbuf/sys.h"

#define READ_STATES (EPOLLIN | EPOLLRDNORM)
#define WRITE_STATES (EPOLLOUT | EPOLLWRNORM)
#define BATCH 16

static bool wants_room_alone(const struct epoll_reg *r)
{
	return r->events & EPOLLET && r->events & WRITE_STATES && !(r->events & READ_STATES);
}

static bool make_room_set(struct epoll_set *s)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.u64 = TOKEN_ROOM_SET };
	int change, fd, err;

	if (likely(s->room >= 0))
		return true;
	change = unseen_change_begin();
	fd = (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);
	err = fd < 0 ? fd : own_fd_insist(fd, &s->room);
	unseen_change_end(change, fd);
	if (err >= 0)
		err = (int)sys_call4(SYS_epoll_ctl, s->inner, EPOLL_CTL_ADD, s->room, &ev);
	if (!err)
		return true;
	own_fd_close(s->room);
	s->room = -1;
	return false;
}

void set_drain_room(struct epoll_set *s)
{
	struct epoll_event batch[BATCH];
	long n = s->room < 0 ? 0 : BATCH;

	while (n == BATCH) {
		n = sys_call6(SYS_epoll_pwait, s->room, (long)batch, BATCH, 0, 0, 0);
		for (long i = 0; i < n; i++) {
			struct epoll_reg *r = pool_reg_of_token(s, batch[i].data.u64);

			if (!r)
				continue;
			r->room_said = true;
			if (r->state != REG_PARKED)
				reg_queue(r);
		}
	}
}

void reg_await_room(struct epoll_reg *r)
{
	struct epoll_event ev = { .events = EPOLLOUT | EPOLLET, .data.u64 = token_make(TOKEN_SOCKET, r) };

	if (likely(!wants_room_alone(r)))
		return;
	if (!r->in_room_set && make_room_set(r->set))
		r->in_room_set = !sys_call4(SYS_epoll_ctl, r->set->room, EPOLL_CTL_ADD, r->fd, &ev);
}

void reg_forget_room(struct epoll_reg *r)
{
	if (likely(!r->in_room_set))
		return;
	set_drain_room(r->set);
	r->room_said = false;
}

void reg_await_room_no_more(struct epoll_reg *r)
{
	struct epoll_event ev = { 0 };

	if (unlikely(r->in_room_set))
		sys_call4(SYS_epoll_ctl, r->set->room, EPOLL_CTL_DEL, r->fd, &ev);
	r->in_room_set = r->room_said = false;
}

bool reg_room_came(struct epoll_reg *r, uint32_t reported)
{
	bool came = wants_room_alone(r) && r->in_room_set ? r->room_said : reported & EPOLLOUT;

	r->room_said = false;
	return came;
}
