/* SPDX-License-Identifier: MIT */
/*
 * The inner set and its members: how a registration is moved from the kernel's set to ours and back, and what stays behind
 * when the program removes it. With the set locked.
 */
#include <sys/eventfd.h>

#include "shim/conn.h"
#include "shim/conn_far.h"
#include "shim/epoll_fired.h"
#include "shim/epoll_set.h"
#include "shim/family.h"
#include "shim/fdtab.h"
#include "shim/own_fd.h"
#include "shim/unseen.h"
#include "ringbuf/sys.h"

#define HOT offsetof(struct epoll_reg, in_hot)
#define SET offsetof(struct epoll_reg, in_set)

static long inner_ctl(struct epoll_set *s, int op, int fd, uint32_t events, uint64_t token)
{
	struct epoll_event ev = { .events = events, .data.u64 = token };

	return sys_call4(SYS_epoll_ctl, s->inner, op, fd, &ev);
}

static long program_ctl(struct epoll_set *s, int op, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event ev = { .events = events, .data.u64 = data };

	return sys_call4(SYS_epoll_ctl, s->epfd, op, fd, &ev);
}

int set_make_inner(struct epoll_set *s)
{
	struct epoll_event kick = { .events = EPOLLIN | EPOLLET, .data.u64 = (uint64_t)TOKEN_KICK << TOKEN_KIND_SHIFT };
	int fd, change;
	long err;

	if (s->inner >= 0)
		return 0;
	change = unseen_change_begin();
	fd = (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);
	err = fd < 0 ? fd : own_fd_insist(fd, &s->inner);
	unseen_change_end(change, fd);
	if (fd < 0)
		return fd;
	if (err < 0)
		goto no_inner;
	fd = (int)sys_call2(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0) {
		err = fd;
		goto no_kick;
	}
	err = own_fd_insist(fd, &s->kick);
	if (err < 0)
		goto no_kick;
	err = sys_call4(SYS_epoll_ctl, s->inner, EPOLL_CTL_ADD, s->kick, &kick);
	if (!err)
		err = program_ctl(s, EPOLL_CTL_ADD, s->inner, EPOLLIN, epoll_inner_word);
	if (!err) {
		store_release(&s->has_inner, 1);
		return 0;
	}
	own_fd_close(s->kick);
no_kick:
	own_fd_close(s->inner);
no_inner:
	s->kick = s->inner = -1;
	return (int)err;
}

void set_watch_family(struct epoll_set *s)
{
	int fd = family_watch();

	if (likely(fd < 0) || s->watches || s->inner < 0)
		return;
	s->watches = !inner_ctl(s, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, TOKEN_FAMILY);
}

struct bell_heir {
	const struct epoll_reg *leaving;
	struct epoll_reg *heir;
};

static void find_heir(struct epoll_reg *r, void *arg)
{
	struct bell_heir *h = arg;

	if (r != h->leaving && r->set == h->leaving->set && r->state == REG_ADOPTED)
		h->heir = r;
}

/* Its bells, and what carries a far link. They exist before the connection is linked, when it is adopted. */
#define NR_BELLS 3

static int bell_of(const struct conn *c, int which)
{
	/* Numbers of a link that was given up may be others' by now. */
	if (unlikely(c->parted))
		return -1;
	return which == 0 ? c->link.rx.bells.bell_fd : which == 1 ? c->link.tx.bells.bell_fd : conn_far_fd(c);
}

static uint64_t bell_token(const struct epoll_reg *r, int which)
{
	return token_make(which == 2 ? TOKEN_LINK : TOKEN_BELL, r);
}

/* Two numbers of one connection in one set share the membership of its bells: the one that stays takes it over. */
static void bells_leave(struct epoll_reg *r)
{
	struct bell_heir h = { r, NULL };

	/* Not to be had now: they go when they are closed. */
	if (!pool_for_each(r->conn, find_heir, &h))
		return;
	for (int i = 0; i < NR_BELLS; i++) {
		int fd = bell_of(r->conn, i);

		if (fd < 0)
			continue;
		if (h.heir)
			inner_ctl(r->set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, bell_token(h.heir, i));
		else
			inner_ctl(r->set, EPOLL_CTL_DEL, fd, 0, 0);
	}
}

static int bells_join(struct epoll_reg *r)
{
	for (int i = 0; i < NR_BELLS; i++) {
		int fd = bell_of(r->conn, i);
		long err = fd < 0 ? 0 : inner_ctl(r->set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, bell_token(r, i));

		if (err && err != -EEXIST)
			return (int)err;
	}
	return 0;
}

static void reg_become_adopted(struct epoll_reg *r)
{
	r->state = REG_ADOPTED;
	count_add(&r->set->nr_adopted, 1);
	r->rx_seen = conn_is_plain(r->conn) ? 0 : conn_rx_edge(r->conn);
	r->tx_seen = conn_is_plain(r->conn) ? 0 : conn_tx_edge(r->conn);
	r->shut_seen = load_relaxed(&r->conn->tx.shut);
	r->unsure = r->unexplained = r->undecided = false;
	r->tail_seen = r->tail_looked = conn_is_plain(r->conn) ? 0 : reg_arrived(r->conn);
	reg_queue(r);
	reg_heat(r);
}

int reg_add_adopted(struct epoll_reg *r)
{
	int err = set_make_inner(r->set);

	if (!err)
		err = (int)inner_ctl(r->set, EPOLL_CTL_ADD, r->fd, EPOLL_INNER_EVENTS, token_make(TOKEN_SOCKET, r));
	if (err)
		return err;
	err = bells_join(r);
	if (err) {
		bells_leave(r);
		inner_ctl(r->set, EPOLL_CTL_DEL, r->fd, 0, 0);
		return err;
	}
	reg_await_room(r);
	reg_forget_room(r);
	r->edge = true;
	reg_become_adopted(r);
	return 0;
}

int reg_adopt_armed(struct epoll_reg *r, const struct epoll_event *event)
{
	int err = (int)program_ctl(r->set, EPOLL_CTL_DEL, r->fd, 0, 0);

	if (err)
		return err;
	err = reg_add_adopted(r);
	return err && program_ctl(r->set, EPOLL_CTL_ADD, r->fd, event->events, event->data.u64) == 0 ? 0 : err;
}

int reg_adopt_fired(struct epoll_reg *r)
{
	int err = pool_set_adopted(r->conn, true);

	if (!err)
		err = reg_add_adopted(r);
	if (err)
		return err;
	r->fired = true;
	r->edge = false;
	return 0;
}

bool reg_has_fired(const struct epoll_reg *r)
{
	return !r->set->inherited && epoll_has_fired(r->set->epfd, r->fd);
}

int reg_adopt(struct epoll_reg *r)
{
	struct epoll_set *s = r->set;
	int err;

	if (r->state == REG_ADOPTED)
		return bells_join(r);
	if (fdtab_get(r->fd) != r->conn)
		return -EXDEV;
	if (r->events & EPOLLONESHOT && !r->fresh && !reg_has_fired(r)) {
		r->wanted = true;
		return -EAGAIN;
	}
	err = reg_add_adopted(r);
	if (err)
		return err;
	r->fired = r->events & EPOLLONESHOT && !r->fresh;
	program_ctl(s, EPOLL_CTL_DEL, r->fd, 0, 0);
	/*
	 * An edge that the kernel's set holds and has not told yet must not be lost, and only the kernel knows of it: so what the
	 * inner set reports first is told, though the program may have been told before.
	 */
	r->edge = false;
	r->unsure = true;
	r->room_said = r->in_room_set;
	r->wanted = false;
	return 0;
}

void reg_disown(struct epoll_reg *r)
{
	struct epoll_set *s = r->set;

	long err;

	/* A one-shot that has fired cannot be put into the kernel's set as it is: it stays here, where it costs nothing. */
	if (r->state != REG_ADOPTED || r->fired || fdtab_get(r->fd) != r->conn)
		return;
	err = program_ctl(s, EPOLL_CTL_ADD, r->fd, r->events, r->data);
	if (err && err != -EEXIST)
		return;
	bells_leave(r);
	reg_await_room_no_more(r);
	inner_ctl(s, EPOLL_CTL_DEL, r->fd, 0, 0);
	reg_disarm(r);
	reg_unqueue(r);
	reg_cool(r);
	r->state = REG_PLAIN;
	r->armed_tick = load_relaxed(&s->tick);
	count_add(&s->nr_adopted, -1);
}

/* The next link's rings begin at 0. */
void reg_part(struct epoll_reg *r)
{
	if (r->state != REG_ADOPTED)
		return;
	bells_leave(r);
	reg_disarm(r);
	reg_cool(r);
	r->rx_seen = load_relaxed(&r->conn->rx.ends);
	r->tail_seen = r->tail_looked = 0;
	/* Room that nobody has looked for since is told still. */
	r->no_room |= r->tx_seen != conn_tx_full_seq(r->conn);
	r->tx_seen = conn_tx_full_seq(r->conn);
	if (r->no_room || r->undecided)
		reg_stir(r);
}

/* In a set that a fork has shared the members are others', too. */
bool reg_go_home(struct epoll_reg *r)
{
	if (likely(pool_derives(r->conn)) || r->state != REG_ADOPTED || r->fired || r->set->inherited)
		return false;
	reg_disown(r);
	return r->state == REG_PLAIN;
}

/* The kernel tells a new member at once of what holds, as it tells one that has stayed of a connection's end. */
void reg_outlive(struct epoll_reg *r)
{
	struct epoll_event event = { .events = r->events, .data.u64 = r->data };
	struct epoll_set *s = r->set;
	int fd = r->fd;
	bool lives = fdtab_get(fd) == r->conn && r->state != REG_PARKED, fired = r->state == REG_ADOPTED && r->fired;

	if (lives && r->state == REG_ADOPTED && !fired)
		program_ctl(s, EPOLL_CTL_ADD, fd, r->events, r->data);
	reg_remove(r, !s->inherited);
	if (lives && fired)
		epoll_early_note_fired(s, fd, &event);
	else if (lives)
		epoll_early_note(s, EPOLL_CTL_ADD, fd, &event);
}

void reg_remove(struct epoll_reg *r, bool in_kernel)
{
	struct epoll_set *s = r->set;

	if (r->state == REG_ADOPTED) {
		if (in_kernel) {
			bells_leave(r);
			reg_await_room_no_more(r);
			inner_ctl(s, EPOLL_CTL_DEL, r->fd, 0, 0);
		}
		reg_disarm(r);
		reg_unqueue(r);
		reg_cool(r);
		count_add(&s->nr_adopted, -1);
	} else if (r->state == REG_PARKED) {
		/* The number may stand for another socket by now, in the kernel's eyes, too. */
		if (in_kernel && fdtab_get(r->fd) == r->conn) {
			bells_leave(r);
			reg_await_room_no_more(r);
			inner_ctl(s, EPOLL_CTL_DEL, r->fd, 0, 0);
		}
		list_remove(&s->parked, r, HOT);
		s->nr_parked--;
	}
	list_remove(&s->regs, r, SET);
	pool_reg_put(r);
}

/*
 * ---- Parking: there are programs that remove a connection and add it again for each request. Its members stay in the inner set
 * for a while, so that neither costs a system call; what they report meanwhile is kept for the next look and told to nobody. Only
 * where nobody else can see the difference: no other registration of the connection, no relative, no set around this one.
 */

bool reg_may_park(const struct epoll_reg *r)
{
	return r->state == REG_ADOPTED && !r->in_conn.next && !r->in_conn.prev && !r->set->inherited &&
	       !load_relaxed(&r->set->nested) && !load_relaxed(&r->conn->shared) && conn_is_linked(r->conn);
}

void reg_park(struct epoll_reg *r)
{
	struct epoll_set *s = r->set;

	reg_disarm(r);
	reg_unqueue(r);
	reg_cool(r);
	count_add(&s->nr_adopted, -1);
	r->state = REG_PARKED;
	list_append(&s->parked, r, HOT);
	if (++s->nr_parked > EPOLL_PARKED_MAX)
		reg_remove(s->parked.first, true);
}

void reg_unpark(struct epoll_reg *r)
{
	list_remove(&r->set->parked, r, HOT);
	r->set->nr_parked--;
	reg_await_room(r);
	reg_forget_room(r);
	r->edge = true;
	reg_become_adopted(r);
}

static bool is_parked(const struct epoll_reg *r, int fd)
{
	return r->state == REG_PARKED;
}

struct epoll_reg *reg_parked(struct epoll_set *s, struct conn *c)
{
	return s->nr_parked ? pool_find(c, s, is_parked, -1) : NULL;
}

void set_empty_park(struct epoll_set *s)
{
	while (s->parked.first)
		reg_remove(s->parked.first, true);
}

int reg_watch(struct epoll_reg *r, int fd)
{
	int err = set_make_inner(r->set);

	return err ? err : (int)inner_ctl(r->set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, token_make(TOKEN_WATCH, r));
}

void reg_unwatch(struct epoll_reg *r, int fd)
{
	if (r->set->inner >= 0)
		inner_ctl(r->set, EPOLL_CTL_DEL, fd, 0, 0);
}
