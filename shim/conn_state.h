/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_STATE_H
#define RINGWAY_CONN_STATE_H

/* The states of a lane, from conn_state.def. One function for each lane writes its state; the edges are that table. */

#include <stdbool.h>
#include <stdint.h>

/* What a data call looks at first. */
enum lane_mode {
	MODE_PINNED,	/* the real call, and count */
	MODE_PLAIN,	/* the real call, count, and perhaps a step of the rendezvous */
	MODE_RING,	/* the ring */
	MODE_SLOW,	/* under the lane lock, never blocking inside the kernel's data call */
};

enum tx_state {
#define TX_STATE(name, mode, sentence) TX_##name,
#include "conn_state.def"
	TX_NR_STATES
};

enum rx_state {
#define RX_STATE(name, mode, sentence) RX_##name,
#include "conn_state.def"
	RX_NR_STATES
};

struct conn;

/* Caller holds the lane's lock. False, and nothing changed, if the table has no such edge. */
bool conn_tx_set(struct conn *c, enum tx_state to);
bool conn_rx_set(struct conn *c, enum rx_state to);

/* From TCP to SEEK, if it is on TCP: the one edge that is made without the lane's lock, by several at once. */
void conn_tx_seek(struct conn *c);
void conn_rx_seek(struct conn *c);

const char *tx_state_name(enum tx_state s);
const char *rx_state_name(enum rx_state s);

#endif
