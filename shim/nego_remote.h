/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_NEGO_REMOTE_H
#define RINGWAY_NEGO_REMOTE_H

/* The rendezvous with a peer on another host (ringbuf/VERBS.md). Included by nego*.c only. */

#include "shim/nego_row.h"

/* Is the peer, of whom this host's kernel knows nothing, to be looked for there? Not where the addresses say that it must have been here. */
bool nego_remote_may_be(const struct nego_tuple *t);

/* One step, as nego_offer_step() and nego_dial_step(). */
enum nego_outcome nego_remote_step(struct conn *c, int fd, const struct nego_tuple *t, enum reason *why);

/* What the row holds of an attempt, but not the row itself: for nego_row_drop(). */
void nego_remote_drop(struct conn *c, struct nego_row *row);

/* An attempt has ended for `why`; hosts that have never answered are remembered for a while. */
void nego_remote_over(const struct conn *c, enum reason why);

#endif
