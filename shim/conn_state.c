/* SPDX-License-Identifier: MIT */
/* The one place that changes a lane's state, by the table conn_state.def. */
#include "shim/conn_state.h"

#include "shim/conn.h"
#include "shim/log.h"
#include "shim/summary.h"

struct state_row {
	const char *name;
	enum lane_mode mode;
};

struct state_edge {
	uint8_t from, to;
};

static const struct state_row tx_rows[] = {
#define TX_STATE(name, mode, sentence) { #name, MODE_##mode },
#include "shim/conn_state.def"
};

static const struct state_row rx_rows[] = {
#define RX_STATE(name, mode, sentence) { #name, MODE_##mode },
#include "shim/conn_state.def"
};

static const struct state_edge tx_edges[] = {
#define TX_EDGE(from, to, when) { TX_##from, TX_##to },
#include "shim/conn_state.def"
};

static const struct state_edge rx_edges[] = {
#define RX_EDGE(from, to, when) { RX_##from, RX_##to },
#include "shim/conn_state.def"
};

#define NR(array) (sizeof(array) / sizeof((array)[0]))
_Static_assert(NR(tx_rows) == TX_NR_STATES && NR(rx_rows) == RX_NR_STATES, "every state has its row");

static bool has_edge(const struct state_edge *edges, size_t nr, unsigned from, unsigned to)
{
	for (size_t i = 0; i < nr; i++)
		if (edges[i].from == from && edges[i].to == to)
			return true;
	return false;
}

static void missing(const char *lane, const char *from, const char *to)
{
	summary_add_reason(REASON_BAD_STATE);
	log_error("%s lane: no way from %s to %s; it stays where it is", lane, from, to);
}

bool conn_tx_set(struct conn *c, enum tx_state to)
{
	enum tx_state from = load_relaxed(&c->tx.state);

	if (!has_edge(tx_edges, NR(tx_edges), from, to)) {
		missing("tx", tx_rows[from].name, tx_rows[to].name);
		return false;
	}
	log_debug("connection %u tx: %s to %s", c->index, tx_rows[from].name, tx_rows[to].name);
	store_relaxed(&c->tx.state, to);
	/* Pairs with plain_enter(): a data call has either been counted before, or sees the new mode. */
	store_release(&c->tx.mode, (uint8_t)tx_rows[to].mode);
	fence_full();
	return true;
}

bool conn_rx_set(struct conn *c, enum rx_state to)
{
	enum rx_state from = load_relaxed(&c->rx.state);

	if (!has_edge(rx_edges, NR(rx_edges), from, to)) {
		missing("rx", rx_rows[from].name, rx_rows[to].name);
		return false;
	}
	log_debug("connection %u rx: %s to %s", c->index, rx_rows[from].name, rx_rows[to].name);
	store_relaxed(&c->rx.state, to);
	store_release(&c->rx.mode, (uint8_t)rx_rows[to].mode);
	fence_full();
	return true;
}

/*
 * Whoever finds it done already may be the one that goes on under the lock, and must not find plain calls under way afterwards; who made
 * it may be late with the mode, and must not take back what has followed.
 */
static void seek(_Atomic uint8_t *state, uint8_t from, uint8_t to, _Atomic uint8_t *mode)
{
	uint8_t was = from, plain = MODE_PLAIN;

	if (compare_exchange(state, &was, to) || was == to)
		(void)compare_exchange(mode, &plain, MODE_SLOW);
	fence_full();
}

void conn_tx_seek(struct conn *c)
{
	seek(&c->tx.state, TX_TCP, TX_SEEK, &c->tx.mode);
}

void conn_rx_seek(struct conn *c)
{
	seek(&c->rx.state, RX_TCP, RX_SEEK, &c->rx.mode);
}

const char *tx_state_name(enum tx_state s)
{
	return s < TX_NR_STATES ? tx_rows[s].name : "?";
}

const char *rx_state_name(enum rx_state s)
{
	return s < RX_NR_STATES ? rx_rows[s].name : "?";
}
