/* SPDX-License-Identifier: MIT */
/* What `ringway ps` sees of a connection, stored now and then: a store per message would be a tenth of an 8-byte send. */
#include "shim/conn_far.h"
#include "shim/fdtab.h"
#include "shim/idle.h"
#include "shim/renew.h"
#include "shim/stats_slots.h"

static void store_counts(const struct conn *c, const struct verbs_counts *counts, struct stats_slot *slot)
{
	struct verbs_counts *from = (struct verbs_counts *)counts;

	if (!from)
		return;
	stats_set(slot, wr, c->far_before[0] + load_relaxed(&from->wr));
	stats_set(slot, doorbells, c->far_before[1] + load_relaxed(&from->doorbells));
	stats_set(slot, cqes, c->far_before[2] + load_relaxed(&from->cqes));
}

/* For the tool, which wakes whoever sleeps on them. */
static void store_bells(const struct conn *c, struct stats_slot *slot)
{
	bool linked = conn_is_linked(c);

	stats_set(slot, data_key, c->link.rx.bells.own.key);
	stats_set(slot, room_key, c->link.tx.bells.own.key);
	stats_set(slot, data_port, linked ? c->link.rx.bells.own.port : 0);
	stats_set(slot, room_port, linked ? c->link.tx.bells.own.port : 0);
}

static void store(const struct conn *conn, struct stats_slot *slot)
{
	struct conn *c = (struct conn *)conn;

	struct conn_bytes bytes = conn_bytes_so_far(c);
	enum stats_road ring = conn_is_far(c) ? ROAD_VERBS : ROAD_SHM;

	stats_set(slot, tx_road, conn_tx_on_ring(c) ? ring : ROAD_TCP);
	stats_set(slot, rx_road, conn_rx_on_ring(c) ? ring : ROAD_TCP);
	stats_set(slot, reason, load_relaxed(&c->reason));
	stats_set(slot, tcp_tx_bytes, bytes.tcp_tx);
	stats_set(slot, tcp_rx_bytes, bytes.tcp_rx);
	stats_set(slot, ring_tx_bytes, bytes.ring_tx);
	stats_set(slot, ring_rx_bytes, bytes.ring_rx);
	stats_set(slot, nr_switches, load_relaxed(&c->switches));
	stats_set(slot, nr_retreats, load_relaxed(&c->retreats));
	store_bells(c, slot);
	if (conn_is_linked(c) && conn_is_far(c))
		store_counts(c, far_engine->counts(&c->link), slot);
}

void conn_refresh_stats(const struct conn *c)
{
	struct stats_slot *slot = stats_slot_of(c);

	if (slot)
		store(c, slot);
}

void conn_tell_stats(struct conn *c, int fd)
{
	/* A call that goes on after a close: the connection has no row any more. */
	if (fdtab_get(fd) != c)
		return;
	store_relaxed(&c->stats_told, conn_stats_mark(c));
	if (!stats_slot_of(c))
		stats_slots_open(c, fd);
	conn_refresh_stats(c);
	idle_note(c);
	if (unlikely(renew_wanted(c) != REASON_NONE) && conn_hold(c, fd)) {
		renew_take_back(c, fd);
		conn_drop(c);
	}
}
