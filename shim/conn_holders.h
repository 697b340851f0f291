/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_HOLDERS_H
#define RINGWAY_CONN_HOLDERS_H

#include <stdbool.h>
#include <stdint.h>

struct conn;

/* `member` (family.h) opens it: nobody else knows the record yet. */
void conn_holder_first(struct conn *c, uint32_t member);
/* `member` holds it from now on. */
void conn_holder_add(struct conn *c, uint32_t member);
/* It does not, and is taken off the count if it still is on it; the record stays until conn_unmap(). */
void conn_holder_remove(struct conn *c, uint32_t member, bool counted);

/*
 * This process is about to end, and counts itself out; it may look at the record until it is gone. True if it was the last
 * holder; false at a second call, too. Both lanes locked.
 */
bool conn_holder_ends(struct conn *c);
/* It does not end after all: true if nobody else has held the connection meanwhile. */
bool conn_holder_goes_on(struct conn *c);

/* Takes holders that are gone off the record; if they were the last to look at it, it is given back. Needs no lock. */
void conn_reap_holders(struct conn *c);
/* The living, by a caller that is one of them. */
int conn_count_holders(struct conn *c);

/*
 * What a sleep on `c` waits for besides its bells: family_watch() while relatives hold it, else -1. When that is readable,
 * conn_relative_ended() makes good, in all connections of this process, what a holder may have left undone. No lane, no set locked.
 */
int conn_relatives_fd(const struct conn *c);
void conn_relative_ended(void);

#endif
