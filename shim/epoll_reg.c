/* SPDX-License-Identifier: MIT */
/*
 * One registration: moved between the kernel's set and ours, armed, and asked what it has to tell. Everything here runs with
 * the set locked, but for reg_stir().
 */
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

#include "shim/conn.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "shim/own_fd.h"
#include "ringbuf/sys.h"

#define QUEUE offsetof(struct epoll_reg, in_queue)
#define HOT offsetof(struct epoll_reg, in_hot)
#define SET offsetof(struct epoll_reg, in_set)

#define READ_STATES (EPOLLIN | EPOLLRDNORM)
#define WRITE_STATES (EPOLLOUT | EPOLLWRNORM)
/* States of which only the kernel knows whether they last, on whatever road the lanes are. */
#define KERNEL_KEEPS (EPOLLERR | EPOLLHUP | EPOLLRDHUP | EPOLLPRI)

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
	struct epoll_event kick = { .events = EPOLLIN | EPOLLET, .data.u64 = (uint64_t)TOKEN_KICK << 62 };
	long err;
	int fd;

	if (s->inner >= 0)
		return 0;
	fd = (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);
	if (fd < 0)
		return fd;
	err = own_fd_adopt(fd, &s->inner);
	if (err < 0)
		goto no_inner;
	fd = (int)sys_call2(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0) {
		err = fd;
		goto no_kick;
	}
	err = own_fd_adopt(fd, &s->kick);
	if (err < 0)
		goto no_kick;
	err = sys_call4(SYS_epoll_ctl, s->inner, EPOLL_CTL_ADD, s->kick, &kick);
	if (!err)
		err = program_ctl(s, EPOLL_CTL_ADD, s->inner, EPOLLIN, epoll_inner_word);
	if (!err)
		return 0;
	own_fd_close(s->kick);
no_kick:
	own_fd_close(s->inner);
no_inner:
	s->kick = s->inner = -1;
	return (int)err;
}

void set_kick(struct epoll_set *s)
{
	uint64_t one = 1;

	if (s->kick >= 0)
		sys_call3(SYS_write, s->kick, &one, sizeof(one));
}

void reg_stir(struct epoll_reg *r)
{
	struct epoll_set *s = r->set;
	struct epoll_reg *first;

	if (exchange(&r->stirred, 1))
		return;
	first = load_relaxed(&s->stirred);
	do {
		r->next_stirred = first;
	} while (!compare_exchange(&s->stirred, &first, r));
	/* Pairs with epoll_set_wait(): it counts itself as a waiter, then looks at `stirred`. */
	fence_full();
	if (load_relaxed(&s->nr_waiters) > 0 || load_relaxed(&s->nested))
		set_kick(s);
}

struct epoll_reg *reg_find(struct epoll_set *s, struct conn *c, int fd)
{
	struct epoll_reg *r;

	for (unsigned n = 0; (r = pool_nth(c, n)) != NULL; n++)
		if (r->set == s && r->fd == fd && (r->state == REG_PLAIN || r->state == REG_ADOPTED))
			return r;
	return NULL;
}

int reg_living_fd(const struct epoll_reg *r)
{
	if (fdtab_get(r->fd) == r->conn)
		return r->fd;
	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned)fd + 1))
		if (fdtab_get(fd) == r->conn)
			return fd;
	return -1;
}

/* ---- lists --------------------------------------------------------------------------------------------------------- */

void reg_queue(struct epoll_reg *r)
{
	if (r->queued || r->aside)
		return;
	r->queued = true;
	list_append(&r->set->queue, r, QUEUE);
}

void reg_put_aside(struct epoll_reg *r)
{
	if (r->queued || r->aside)
		return;
	r->aside = true;
	list_append(&r->set->told, r, QUEUE);
}

void reg_unqueue(struct epoll_reg *r)
{
	if (r->queued)
		list_remove(&r->set->queue, r, QUEUE);
	else if (r->aside)
		list_remove(&r->set->told, r, QUEUE);
	r->queued = r->aside = false;
}

void reg_heat(struct epoll_reg *r)
{
	struct epoll_set *s = r->set;

	if (r->hot)
		return;
	reg_cool(r);
	reg_disarm(r);
	/* The one that has been hot longest goes to sleep; if that finds something, it is queued and no longer needs polling. */
	if (s->nr_hot == EPOLL_HOT_MAX) {
		struct epoll_reg *oldest = s->hot.first;

		reg_arm(oldest);
		reg_cool(oldest);
	}
	r->hot = true;
	r->quiet_looks = 0;
	s->nr_hot++;
	list_append(&s->hot, r, HOT);
}

void reg_doze(struct epoll_reg *r)
{
	r->dozing = true;
	list_append(&r->set->dozing, r, HOT);
}

void reg_rouse(struct epoll_reg *r)
{
	uint32_t quiet_looks = r->quiet_looks;

	reg_heat(r);
	r->quiet_looks = quiet_looks;
}

void reg_cool(struct epoll_reg *r)
{
	if (r->dozing) {
		r->dozing = false;
		list_remove(&r->set->dozing, r, HOT);
	}
	if (!r->hot)
		return;
	r->hot = false;
	r->set->nr_hot--;
	list_remove(&r->set->hot, r, HOT);
}

/* ---- arming -------------------------------------------------------------------------------------------------------- */

static bool reg_hold(const struct epoll_reg *r)
{
	int fd = reg_living_fd(r);

	return fd >= 0 && conn_hold(r->conn, fd);
}

/*
 * Position up to which bytes have arrived in the ring, also while the lane still stands before its SWITCH frame: an arrival is
 * one, even behind bytes that the program has not read from TCP. Compared only for having moved, so it may lie.
 */
static uint64_t arrived(const struct conn *c)
{
	return peer_read_u64(&c->link.rx.front->tail_pos);
}

static bool has_news(const struct epoll_reg *r)
{
	return arrived(r->conn) != r->tail_looked || conn_rx_edge(r->conn) != r->rx_seen ||
	       conn_tx_edge(r->conn) != r->tx_seen || conn_attention(r->conn);
}

bool reg_has_news(struct epoll_reg *r)
{
	bool news;

	if (conn_is_plain(r->conn) || !reg_hold(r))
		return false;
	news = has_news(r);
	conn_drop(r->conn);
	return news;
}

void reg_disarm_held(struct conn *c, short armed, bool rung)
{
	if (!conn_is_linked(c))
		return;
	if (armed & POLLIN)
		conn_disarm_one(c, POLLIN, rung);
	if (armed & POLLOUT)
		conn_disarm_one(c, POLLOUT, rung);
}

void reg_disarm(struct epoll_reg *r)
{
	short armed = r->armed;

	r->armed = 0;
	if (armed && reg_hold(r)) {
		reg_disarm_held(r->conn, armed, r->rung);
		conn_drop(r->conn);
	}
}

/*
 * Arming drains the bell, and with it the edge of another set that has not been looked at yet. That set's registration
 * can tell: it has not seen what came. It is stirred only then, else two sleeping sets would wake each other for ever.
 */
static void stir_if_behind(struct epoll_reg *other, void *arg)
{
	if (other != arg && other->state == REG_ADOPTED && has_news(other))
		reg_stir(other);
}

/*
 * Room is waited for by edges like bytes, but once a look has found none it is a level: it may have come without a send that
 * failed, and then no edge tells.
 */
static bool arm_lanes(struct epoll_reg *r, short want)
{
	if (conn_arm_edge(r->conn, POLLIN, r->rx_seen, r->tx_seen))
		return true;
	if (arrived(r->conn) != r->tail_looked) {
		conn_disarm(r->conn, POLLIN);
		return true;
	}
	if (!(want & POLLOUT))
		return false;
	if (r->no_room ? conn_arm(r->conn, POLLOUT) : conn_arm_edge(r->conn, POLLOUT, r->rx_seen, r->tx_seen)) {
		conn_disarm(r->conn, POLLIN);
		return true;
	}
	return false;
}

bool reg_arm(struct epoll_reg *r)
{
	short want = POLLIN | (r->events & WRITE_STATES ? POLLOUT : 0);
	bool something = false;

	if (r->armed || conn_is_plain(r->conn) || !reg_hold(r))
		return false;
	if (has_news(r) || arm_lanes(r, want)) {
		something = true;
		reg_queue(r);
	} else {
		r->armed = want;
		r->rung = false;
	}
	if (r->in_conn.next || r->in_conn.prev)
		pool_for_each(r->conn, stir_if_behind, r);
	conn_drop(r->conn);
	return something;
}

/* ---- what is to be told -------------------------------------------------------------------------------------------- */

static uint32_t kernel_says(int fd, short want)
{
	struct pollfd p = { .fd = fd, .events = want };
	struct timespec zero = { 0, 0 };
	long n = sys_call5(SYS_ppoll, &p, 1, &zero, 0, 0);

	return n == 1 && !(p.revents & POLLNVAL) ? (uint16_t)p.revents : 0;
}

/*
 * Does what the kernel has reported since the last look make an edge? It counts for what the kernel carries, and if it was asked
 * for. A frame is none: its EPOLLIN counts only while it stands for bytes or an end that the program will see.
 */
static bool kernel_edge(const struct epoll_reg *r, uint32_t mask, uint32_t kernel, uint32_t reported)
{
	uint32_t seen = reported & kernel & mask & r->events;
	uint32_t came = mask & KERNEL_KEEPS & ~r->kernel_mask;

	/* An end wakes whoever waits for whatever; urgent bytes are bytes. */
	if (came & ~(uint32_t)EPOLLPRI || came & r->events)
		return true;
	return (seen & EPOLLIN && !conn_rx_on_ring(r->conn)) || (seen & EPOLLOUT && !conn_tx_on_ring(r->conn));
}

uint32_t reg_evaluate(struct epoll_reg *r)
{
	struct conn *c = r->conn;
	const short all = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLPRI | POLLRDHUP;
	uint32_t kernel = 0, reported = r->kernel_events, mask;
	uint64_t tail = 0;
	int fd = reg_living_fd(r);
	bool plain = conn_is_plain(c), asked, edge = r->edge;

	if (fd < 0 || !conn_hold(c, fd))
		return 0;
	asked = plain || reported || r->kernel_mask || conn_attention(c) || !conn_rx_on_ring(c) ||
		(!conn_tx_on_ring(c) && r->events & WRITE_STATES);
	r->kernel_events = 0;
	if (!plain) {
		/* Before the look: what comes during it must be an edge at the next one. */
		uint64_t rx = conn_rx_edge(c), tx = conn_tx_edge(c);

		tail = arrived(c);
		edge |= (tail != r->tail_seen && r->events & READ_STATES) || (tx != r->tx_seen && r->events & WRITE_STATES);
		r->rx_seen = rx;
		r->tx_seen = tx;
		r->tail_looked = tail;
	}
	if (asked)
		kernel = kernel_says(fd, plain ? all : (short)(conn_kernel_events(c, all) | POLLRDHUP | POLLPRI));
	mask = plain ? kernel : (uint16_t)conn_ready(c, fd, all, (short)kernel);
	edge |= kernel_edge(r, mask, kernel, reported);
	/* In front of a frame that could not be taken just now, the arrival is still to be told. */
	if (!plain && (mask & EPOLLIN || conn_rx_on_ring(c)))
		r->tail_seen = tail;
	if (!plain && conn_tx_on_ring(c)) {
		edge |= r->no_room && mask & r->events & WRITE_STATES;
		r->no_room = !(mask & EPOLLOUT);
	}
	if (asked)
		r->kernel_mask = mask & kernel & KERNEL_KEEPS;
	conn_drop(c);
	if (r->fired)
		return 0;
	mask &= (r->events & EPOLL_STATES) | EPOLL_ALWAYS;
	if (!mask || (r->events & EPOLLET && !edge))
		return 0;
	r->edge = false;
	if (r->events & EPOLLONESHOT)
		r->fired = true;
	return mask;
}

/* ---- between the sets ---------------------------------------------------------------------------------------------- */

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

/* They exist before the connection is linked, when it is adopted. */
static int bell_of(const struct conn *c, int which)
{
	return which ? c->link.tx.bells.bell_fd : c->link.rx.bells.bell_fd;
}

/* Two numbers of one connection in one set share the membership of its bells: the one that stays takes it over. */
static void bells_leave(struct epoll_reg *r)
{
	struct bell_heir h = { r, NULL };

	pool_for_each(r->conn, find_heir, &h);
	for (int i = 0; i < 2; i++) {
		int fd = bell_of(r->conn, i);

		if (fd < 0)
			continue;
		if (h.heir)
			inner_ctl(r->set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, token_make(TOKEN_BELL, h.heir));
		else
			inner_ctl(r->set, EPOLL_CTL_DEL, fd, 0, 0);
	}
}

static int bells_join(struct epoll_reg *r)
{
	for (int i = 0; i < 2; i++) {
		int fd = bell_of(r->conn, i);
		long err = fd < 0 ? 0 : inner_ctl(r->set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, token_make(TOKEN_BELL, r));

		if (err && err != -EEXIST)
			return (int)err;
	}
	return 0;
}

static void reg_become_adopted(struct epoll_reg *r)
{
	r->state = REG_ADOPTED;
	r->set->nr_adopted++;
	r->rx_seen = conn_is_plain(r->conn) ? 0 : conn_rx_edge(r->conn);
	r->tx_seen = conn_is_plain(r->conn) ? 0 : conn_tx_edge(r->conn);
	r->tail_seen = r->tail_looked = conn_is_plain(r->conn) ? 0 : arrived(r->conn);
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
	r->edge = true;
	reg_become_adopted(r);
	return 0;
}

int reg_adopt(struct epoll_reg *r)
{
	struct epoll_set *s = r->set;
	int err;

	if (r->state == REG_ADOPTED)
		return bells_join(r);
	if (r->state == REG_PARKED) {
		reg_remove(r, true);
		return 0;
	}
	if (fdtab_get(r->fd) != r->conn)
		return -EXDEV;
	if (r->events & EPOLLONESHOT && !r->fresh) {
		r->wanted = true;
		return -EAGAIN;
	}
	err = reg_add_adopted(r);
	if (err)
		return err;
	program_ctl(s, EPOLL_CTL_DEL, r->fd, 0, 0);
	/*
	 * An edge that the kernel's set holds and has not told yet must not be lost, and only the kernel knows of it: so what the
	 * inner set reports first is told, though the program may have been told before.
	 */
	r->edge = false;
	r->wanted = false;
	return 0;
}

void reg_disown(struct epoll_reg *r)
{
	struct epoll_set *s = r->set;

	/* A one-shot that has fired cannot be put into the kernel's set as it is: it stays here, where it costs nothing. */
	if (r->state != REG_ADOPTED || r->fired)
		return;
	bells_leave(r);
	inner_ctl(s, EPOLL_CTL_DEL, r->fd, 0, 0);
	program_ctl(s, EPOLL_CTL_ADD, r->fd, r->events, r->data);
	reg_disarm(r);
	reg_unqueue(r);
	reg_cool(r);
	r->state = REG_PLAIN;
	r->armed_tick = load_relaxed(&s->tick);
	s->nr_adopted--;
}

void reg_remove(struct epoll_reg *r, bool in_kernel)
{
	struct epoll_set *s = r->set;

	if (r->state == REG_ADOPTED) {
		if (in_kernel) {
			bells_leave(r);
			inner_ctl(s, EPOLL_CTL_DEL, r->fd, 0, 0);
		}
		reg_disarm(r);
		reg_unqueue(r);
		reg_cool(r);
		s->nr_adopted--;
	} else if (r->state == REG_PARKED) {
		/* The number may stand for another socket by now, in the kernel's eyes, too. */
		if (in_kernel && fdtab_get(r->fd) == r->conn) {
			bells_leave(r);
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
	s->nr_adopted--;
	r->state = REG_PARKED;
	list_append(&s->parked, r, HOT);
	if (++s->nr_parked > EPOLL_PARKED_MAX)
		reg_remove(s->parked.first, true);
}

void reg_unpark(struct epoll_reg *r)
{
	list_remove(&r->set->parked, r, HOT);
	r->set->nr_parked--;
	r->edge = true;
	reg_become_adopted(r);
}

struct epoll_reg *reg_parked(struct epoll_set *s, struct conn *c)
{
	struct epoll_reg *r;

	for (unsigned n = 0; s->nr_parked && (r = pool_nth(c, n)) != NULL; n++)
		if (r->set == s && r->state == REG_PARKED)
			return r;
	return NULL;
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

void reg_rung(struct epoll_reg *r)
{
	r->rung = true;
	reg_queue(r);
	reg_heat(r);
}
