/* SPDX-License-Identifier: MIT */
/*
 * A connection record's life: who holds it, how it begins and ends, and the locks over both lanes. The bytes are conn_send.c's
 * and conn_recv.c's, the ends of a stream conn_end.c's, the memory conn_arena.c's.
 */
#include "shim/conn.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/conn_arena.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_fin.h"
#include "shim/conn_holders.h"
#include "shim/conn_lock.h"
#include "shim/conn_use.h"
#include "shim/family.h"
#include "shim/log.h"
#include "shim/nego.h"
#include "shim/options.h"
#include "shim/ready.h"
#include "shim/summary.h"
#include "shim/switch.h"

struct conn *conn_opened(enum conn_role role, bool nonblock)
{
	struct conn *c;
	uint32_t index, generation;

	family_join();
	c = arena_take();
	if (!c)
		return NULL;
	index = c->index;
	generation = c->generation;
	memset(c, 0, sizeof(*c));
	c->index = index;
	c->generation = generation + 1;
	c->born = c->generation;
	c->role = (uint8_t)role;
	store_relaxed(&c->nonblock, nonblock);
	store_relaxed(&c->rcv_lowat, 1);
	store_relaxed(&c->tx.mode, MODE_PLAIN);
	store_relaxed(&c->rx.mode, MODE_PLAIN);
	c->tx.hold_at = CONN_HOLD_AFTER;
	c->tx.hold_step = 1;
	c->link.tx.bells.bell_fd = -1;
	c->link.rx.bells.bell_fd = -1;
	nego_conn_init(&c->nego);
	c->opener = family_me;
	conn_holder_first(c, family_me);
	conn_use_opened(c);
	store_release(&c->live, 1);
	if (role == CONN_UNKNOWN)
		conn_pin(c, REASON_ROLE_UNKNOWN);
	else if (!options.transports)
		conn_pin(c, REASON_TRANSPORTS_NONE);
	summary_add_connection();
	return c;
}

void conn_set_nonblock(struct conn *c, bool on)
{
	store_relaxed(&c->nonblock, on);
}

/*
 * ---- Locks and pins ----
 */

__thread struct conn *conn_locked_last __attribute__((tls_model("initial-exec")));
__thread const void *conn_locked_frame __attribute__((tls_model("initial-exec")));

int conn_lock_both(struct conn *c)
{
	int r = conn_lock_tx(c);

	if (r < 0)
		return r;
	r = conn_lock_rx(c);
	if (r < 0)
		lane_unlock(&c->tx.lock);
	return r;
}

int conn_trylock_both(struct conn *c)
{
	if (!conn_trylock_tx(c))
		return -EBUSY;
	if (!conn_trylock_rx(c)) {
		lane_unlock(&c->tx.lock);
		return -EBUSY;
	}
	if (load_relaxed(&c->tx.in_calls) || load_relaxed(&c->rx.in_calls)) {
		conn_unlock_both(c);
		return -EBUSY;
	}
	return 0;
}

void conn_unlock_both(struct conn *c)
{
	lane_unlock(&c->rx.lock);
	lane_unlock(&c->tx.lock);
}

/* A reason says why a connection is on TCP. One of which both lanes have left it, and are not on their way back, has none, whatever was asked of it since. */
static void note_pin(struct conn *c, enum reason why)
{
	if (load_relaxed(&c->switches) - c->switches_before < 2 || load_relaxed(&c->passing))
		store_relaxed(&c->reason, (uint8_t)why);
	store_relaxed(&c->passing, 0);
	store_relaxed(&c->pinned, 1);
}

bool conn_pin_locked(struct conn *c, enum reason why)
{
	bool tx, rx;

	if (!load_relaxed(&c->pinned) || load_relaxed(&c->passing)) {
		note_pin(c, why);
		c->nego.due_calls = NEGO_NEVER;
		c->nego.due_bytes = NEGO_NEVER;
	}
	tx = switch_stay_tx(c);
	rx = switch_stay_rx(c);
	return tx && rx;
}

bool conn_pin(struct conn *c, enum reason why)
{
	bool all;

	if (conn_lock_both(c) < 0) {
		/* A signal handler in the middle of a call of its own thread: the flag alone keeps the lanes from being announced. */
		note_pin(c, why);
		return false;
	}
	all = conn_pin_locked(c, why);
	if (all)
		nego_abandon(c);
	conn_unlock_both(c);
	return all;
}

/*
 * ---- Addresses ----
 */

int conn_learn_addresses(struct conn *c, int fd)
{
	unsigned len = sizeof(c->local);
	unsigned cookie_len = sizeof(c->cookie);
	long r;

	if (load_acquire(&c->have_addr))
		return 0;
	r = sys_getsockname(fd, &c->local, &len);
	if (r < 0)
		return (int)r;
	len = sizeof(c->peer);
	r = sys_call3(SYS_getpeername, fd, &c->peer, &len);
	if (r < 0)
		return (int)r;
	r = sys_getsockopt(fd, SOL_SOCKET, SO_COOKIE, &c->cookie, &cookie_len);
	if (r < 0)
		return (int)r;
	store_release(&c->have_addr, 1);
	return 0;
}

/*
 * ---- The end of a record ----
 */

void conn_unmap(struct conn *c)
{
	if (fetch_sub(&c->nr_maps, 1) == 1) {
		store_release(&c->live, 0);
		arena_give_back(c);
	}
}

void conn_discard(struct conn *c)
{
	conn_holder_remove(c, family_me, true);
	conn_unmap(c);
}

static void release_locked(struct conn *c, int fd)
{
	/* Its end may have been announced already: then it is on nobody's count, and who was last was settled there. */
	bool counted = conn_use_flush(c), last;

	if (load_relaxed(&c->shared))
		conn_reap_holders(c);
	last = counted && load_relaxed(&c->nr_holders) == 1;
	conn_holder_remove(c, family_me, counted);
	if (last) {
		if (conn_is_linked(c))
			conn_pump(c, VERBS_GOING);
		conn_end_lanes(c, fd);
		conn_tx_set(c, TX_CLOSED);
		conn_rx_set(c, RX_CLOSED);
	}
	conn_tell_summary(c, last);
}

/* Once nobody's call reads any more, the peer is told nothing that would make room: it waits for the end. */
static void close_soon(struct conn *c, int fd)
{
	if (conn_is_linked(c) && load_relaxed(&c->nr_holders) == 1)
		conn_pump(c, VERBS_GOING);
	conn_end_soon(c, fd);
}

static void let_go(struct conn *c)
{
	conn_fin_settle(c);
	conn_use_close(c);
}

void conn_release(struct conn *c, int fd)
{
	if (likely(!conn_use_asleep(c)))
		close_soon(c, fd);
	if (conn_lock_both(c) < 0) {
		/* This thread was interrupted inside a call on it: that call still needs the record, so it is never given back. */
		log_warn("connection %u: closed by a signal handler in the middle of a call", c->index);
		conn_use_bury(c);
		return;
	}
	nego_leave(c);
	if (conn_use_keep(c, fd)) {
		/* They sleep on a number that names nothing now, or soon something else. */
		if (load_relaxed(&c->linked)) {
			bell_ring(c->link.rx.bells.bell_fd, &c->link.rx.bells.own);
			bell_ring(c->link.tx.bells.bell_fd, &c->link.tx.bells.own);
		}
		conn_unlock_both(c);
		return;
	}
	release_locked(c, fd);
	conn_unlock_both(c);
	let_go(c);
}

void conn_release_kept(struct conn *c, int fd)
{
	close_soon(c, fd);
	if (conn_lock_both(c) < 0)
		return;
	release_locked(c, fd);
	conn_unlock_both(c);
	let_go(c);
}

struct conn_bytes conn_bytes_so_far(const struct conn *conn)
{
	struct conn *c = (struct conn *)conn;
	struct conn_bytes b = {
		.tcp_tx = load_relaxed(&c->tx.tcp_bytes) - load_relaxed(&c->own_bytes[0]),
		.tcp_rx = load_relaxed(&c->rx.tcp_bytes) - load_relaxed(&c->own_bytes[1]),
		.ring_tx = load_relaxed(&c->ring_before[0]),
		.ring_rx = load_relaxed(&c->ring_before[1]),
	};

	if (conn_is_linked(c)) {
		b.ring_tx += load_unlocked(&c->link.tx.tail_pos);
		b.ring_rx += load_unlocked(&c->link.rx.head_pos);
	}
	return b;
}

/* A peer that ends takes the lane back with which it ends: that is no way back to TCP, and nobody's reason. */
static bool ended_on_tcp(const struct conn *c)
{
	uint8_t reason = load_relaxed(&c->reason);

	if (reason == REASON_RETREAT)
		return load_relaxed(&c->returned) || !load_relaxed(&c->linked);
	return !load_relaxed(&c->switches) || reason != REASON_NONE;
}

/* What of its bytes no process has told yet; the reason it is on TCP, once, when its last holder goes. */
void conn_tell_summary(struct conn *c, bool last)
{
	struct conn_bytes bytes = conn_bytes_so_far(c);
	uint64_t now[4] = { bytes.tcp_tx, bytes.tcp_rx, bytes.ring_tx, bytes.ring_rx };
	bool opener = c->opener == family_me;
	uint64_t delta[4], all = 0;

	/* A child that holds what it does not use has nothing to tell: whoever is left will. Nor is there any need where nobody asked for it. */
	if ((!opener && !last) || !options.summary_path)
		return;
	for (int i = 0; i < 4; i++) {
		delta[i] = now[i] - exchange(&c->told[i], now[i]);
		all |= delta[i];
	}
	if (!opener && all)
		summary_add_connection();
	summary_add_bytes(delta[0], delta[1], delta[2], delta[3]);
	conn_far_tell(c);
	if (last && !c->reason_told && ended_on_tcp(c)) {
		uint8_t reason = load_relaxed(&c->reason);

		c->reason_told = 1;
		summary_add_reason(reason != REASON_NONE ? reason : REASON_NOT_BUSY);
	}
}
