/* SPDX-License-Identifier: MIT */
/*
 * One registration: polled or armed, and asked what it has to tell. Everything here runs with the set locked, but for
 * reg_stir(). How it comes into the inner set and out of it is in epoll_member.c.
 */
#include <poll.h>

#include "shim/conn.h"
#include "shim/conn_far.h"
#include "shim/conn_probe.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "shim/ready.h"
#include "shim/renew.h"
#include "shim/retreat.h"
#include "ringbuf/sys.h"
#include "shim/wait.h"

#define QUEUE offsetof(struct epoll_reg, in_queue)
#define HOT offsetof(struct epoll_reg, in_hot)

#define READ_STATES (EPOLLIN | EPOLLRDNORM)
#define WRITE_STATES (EPOLLOUT | EPOLLWRNORM)
/* States of which only the kernel knows whether they last, on whatever road the lanes are. */
#define KERNEL_KEEPS (EPOLLERR | EPOLLHUP | EPOLLRDHUP | EPOLLPRI)

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
	if (set_has_waiter(s) || load_relaxed(&s->nested))
		set_kick(s);
}

static bool stands_for(const struct epoll_reg *r, int fd)
{
	return r->fd == fd && (r->state == REG_PLAIN || r->state == REG_ADOPTED);
}

struct epoll_reg *reg_find(struct epoll_set *s, struct conn *c, int fd)
{
	return pool_find(c, s, stands_for, fd);
}

int reg_living_fd(const struct epoll_reg *r)
{
	return likely(fdtab_get(r->fd) == r->conn) ? r->fd : fdtab_next_of(r->conn, 0);
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
uint64_t reg_arrived(const struct conn *c)
{
	return ring_rx_published(&c->link.rx);
}

static bool has_news(const struct epoll_reg *r)
{
	return reg_arrived(r->conn) != r->tail_looked || conn_rx_edge(r->conn) != r->rx_seen ||
	       conn_tx_edge(r->conn) != r->tx_seen || conn_attention(r->conn);
}

bool reg_has_news(struct epoll_reg *r)
{
	bool news;

	if (conn_is_plain(r->conn) || !reg_hold(r))
		return false;
	conn_pump_look(r->conn);
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
	if (reg_arrived(r->conn) != r->tail_looked) {
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

/* Who waits for room behind the peer's end sleeps no longer than until its next probe; nobody past the verdict on a dead link. */
static void note_probe(struct epoll_reg *r)
{
	int64_t at = load_relaxed(&r->set->probe_at), wait_ns = conn_look_again(r->conn, r->events & WRITE_STATES);

	if (likely(wait_ns == PROBE_NOT_NEEDED))
		return;
	wait_ns += now_ns();
	if (!at || wait_ns < at)
		store_relaxed(&r->set->probe_at, wait_ns);
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
		if (want & POLLOUT || conn_has_date(r->conn))
			note_probe(r);
	}
	if ((r->in_conn.next || r->in_conn.prev) && !pool_for_each(r->conn, stir_if_behind, r))
		ready_changed(r->conn);
	conn_drop(r->conn);
	return something;
}

/* ---- what is to be told -------------------------------------------------------------------------------------------- */

static uint32_t kernel_says(int fd, short want)
{
	short now = sys_ready_now(fd, want);

	return now & POLLNVAL ? 0 : (uint16_t)now;
}

/*
 * Room alone is named beside a change of state of ours, and also where a frame has come and was taken before the report. What is taken for a frame may be a shutdown that
 * is not noted yet: that is made good when it is.
 */
static bool is_change_of_state(struct epoll_reg *r, uint32_t reported)
{
	bool first = r->unsure;

	if (load_relaxed(&r->conn->tx.state) == TX_SHUT || reported & ~(uint32_t)EPOLLOUT)
		return true;
	if (!conn_tx_on_ring(r->conn))
		return false;
	r->unsure = false;
	r->unexplained = !first;
	return first;
}

/* Does what the kernel has reported since the last look, but of bytes, make an edge? It counts for what the kernel carries, and if it was asked for. */
static bool kernel_edge(struct epoll_reg *r, uint32_t mask, uint32_t kernel, uint32_t reported)
{
	bool room = reg_room_came(r, reported);
	uint32_t came = mask & KERNEL_KEEPS & ~r->kernel_mask;

	/* The answer to our own end is a change of state, whatever else lies in the socket by now. */
	if ((reported || r->unexplained) && load_relaxed(&r->conn->tx.shut) && !r->shut_seen) {
		r->shut_seen = true;
		return true;
	}
	/* A change of state (an end, a shutdown of ours) wakes whoever waits for whatever. The kernel names no bytes with it. */
	if (reported && !(reported & EPOLLIN) && is_change_of_state(r, reported))
		return true;
	/* Urgent bytes are bytes. */
	if (came & ~(uint32_t)EPOLLPRI || came & r->events)
		return true;
	/* A direction that is shut is writable for ever, and is named beside every arrival. */
	return room && kernel & mask & r->events & EPOLLOUT && !conn_tx_on_ring(r->conn) && load_relaxed(&r->conn->tx.state) != TX_SHUT;
}

/* Are there bytes by TCP that are the program's? Those of a lane that is there; and behind a ring that was left, though that is not drained, unless all of them came twice. */
static bool bytes_are_seen(struct epoll_reg *r, int fd, uint32_t mask)
{
	if (!(mask & EPOLLIN))
		return false;
	return !conn_rx_on_ring(r->conn) || (load_relaxed(&r->conn->rx.state) == RX_LEFT && retreat_inq_behind(r->conn, fd));
}

/*
 * Does what the kernel has reported of bytes make an edge? They may be a frame, or have come twice, and who looks may find the lane locked, or the announcement not void yet
 * whose frame they could be. If they are the program's, they are told when that is known: the kernel does not report them again.
 */
static bool bytes_edge(struct epoll_reg *r, int fd, bool may_be_frame, uint32_t missed, uint32_t mask, uint32_t reported)
{
	struct conn *c = r->conn;

	if (!(reported & EPOLLIN) && likely(!r->undecided))
		return false;
	r->undecided = false;
	if (bytes_are_seen(r, fd, mask))
		return r->events & READ_STATES;
	r->undecided = conn_looks_missed(c) != missed || conn_rx_is_leaving(c) || (may_be_frame && !conn_rx_on_ring(c));
	return false;
}

/* The ring had no room at the last look, and has, or the lane is back on TCP, where there is. */
static bool room_edge(struct epoll_reg *r, int fd, uint32_t mask, bool plain)
{
	bool on_ring = !plain && conn_tx_on_ring(r->conn), had_none = r->no_room;

	if (likely(on_ring) || unlikely(had_none))
		r->no_room = !(mask & EPOLLOUT);
	if (on_ring && r->no_room && r->events & WRITE_STATES && !r->fired) {
		conn_probe_if_due(r->conn, fd);
		note_probe(r);
	}
	return had_none && mask & r->events & WRITE_STATES;
}

uint32_t reg_evaluate(struct epoll_reg *r)
{
	struct conn *c = r->conn;
	const short all = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLPRI | POLLRDHUP;
	uint32_t kernel = 0, reported = r->kernel_events, missed = conn_looks_missed(c), mask;
	uint64_t tail = 0;
	int fd = reg_living_fd(r);
	bool plain = conn_is_plain(c), may_be_frame = load_relaxed(&c->rx.state) == RX_ACKED, asked, edge = r->edge, arrived = false, withheld;

	if (fd < 0 || !conn_hold(c, fd))
		return 0;
	if (!plain)
		conn_pump_look(c);
	asked = plain || reported || r->kernel_mask || conn_has_more_to_tell(c) || !conn_rx_on_ring(c) ||
		(!conn_tx_on_ring(c) && r->events & WRITE_STATES);
	r->kernel_events = 0;
	if (!plain) {
		/* Before the look: what comes during it must be an edge at the next one. */
		uint64_t rx = conn_rx_edge(c), tx = conn_tx_edge(c);

		tail = reg_arrived(c);
		arrived = tail != r->tail_seen && r->events & READ_STATES;
		edge |= tx != r->tx_seen && r->events & WRITE_STATES;
		r->rx_seen = rx;
		r->tx_seen = tx;
		r->tail_looked = tail;
	}
	if (asked)
		kernel = kernel_says(fd, plain ? all : (short)(conn_kernel_events(c, all) | POLLRDHUP | POLLPRI));
	mask = plain ? kernel : (uint16_t)conn_ready(c, fd, all, (short)kernel);
	edge |= kernel_edge(r, mask, kernel, reported);
	edge |= bytes_edge(r, fd, may_be_frame, missed, mask, reported);
	/* What the low-water mark keeps back has not arrived yet. */
	withheld = !plain && !(mask & EPOLLIN) && conn_rx_avail(c);
	edge |= arrived && !withheld;
	/* In front of a frame that could not be taken just now, the arrival is still to be told. */
	if (!plain && (mask & EPOLLIN || conn_rx_on_ring(c)) && !withheld)
		r->tail_seen = tail;
	edge |= room_edge(r, fd, mask, plain);
	if (unlikely(load_relaxed(&c->link.rx.overflowed)) && !plain)
		conn_give_back(c);
	if (asked)
		r->kernel_mask = mask & kernel & KERNEL_KEEPS;
	/* Its link can be given up, which needs this set. */
	if (renew_is_due(c) && r->set->nr_pokes < EPOLL_POKES)
		r->set->pokes[r->set->nr_pokes++] = c;
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

/* Hot, so not armed, first: what the pump publishes then rings no bell for this set. */
void reg_link_rung(struct epoll_reg *r)
{
	reg_heat(r);
	if (conn_is_plain(r->conn) || !reg_hold(r))
		return;
	conn_pump(r->conn, VERBS_RUNG);
	conn_drop(r->conn);
	reg_queue(r);
}

void reg_rung(struct epoll_reg *r)
{
	r->rung = true;
	reg_queue(r);
	reg_heat(r);
}
