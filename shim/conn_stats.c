/* SPDX-License-Identifier: MIT */
/* What `ringway ps` sees of a connection, stored now and then: a store per message would be a tenth of an 8-byte send. */
#include "shim/conn_far.h"
#include "shim/fdtab.h"
#include "shim/stats_slots.h"

static void store_counts(const struct verbs_counts *counts, struct stats_slot *slot)
{
	struct verbs_counts *from = (struct verbs_counts *)counts;

	if (!from)
		return;
	stats_set(slot, wr, load_relaxed(&from->wr));
	stats_set(slot, doorbells, load_relaxed(&from->doorbells));
	stats_set(slot, cqes, load_relaxed(&from->cqes));
}

static void store(const struct conn *conn, struct stats_slot *slot)
{
	struct conn *c = (struct conn *)conn;

	enum stats_road ring = conn_is_far(c) ? ROAD_VERBS : ROAD_SHM;

	stats_set(slot, tx_road, conn_tx_on_ring(c) ? ring : ROAD_TCP);
	stats_set(slot, rx_road, conn_rx_on_ring(c) ? ring : ROAD_TCP);
	stats_set(slot, reason, load_relaxed(&c->reason));
	stats_set(slot, tcp_tx_bytes, load_relaxed(&c->tx.tcp_bytes));
	stats_set(slot, tcp_rx_bytes, load_relaxed(&c->rx.tcp_bytes));
	stats_set(slot, nr_switches, c->switches);
	if (!conn_is_linked(c))
		return;
	stats_set(slot, ring_tx_bytes, load_unlocked(&c->link.tx.tail_pos));
	stats_set(slot, ring_rx_bytes, load_unlocked(&c->link.rx.head_pos));
	if (conn_is_far(c))
		store_counts(far_engine->counts(&c->link), slot);
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
	store_relaxed(&c->stats_told, (uint8_t)(c->switches * 2 + load_relaxed(&c->pinned)));
	if (!stats_slot_of(c))
		stats_slots_open(c, fd);
	conn_refresh_stats(c);
}
