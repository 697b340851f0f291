/* SPDX-License-Identifier: MIT */
/*
 * The rows of this process's statistics segment (ringbuf/stats.h), one a connection, at the record's index. The segment is
 * made when the process listens, accepts, or has a connection that shows itself; where it cannot be had, every row is NULL and `ringway ps` shows nothing.
 */
#ifndef RINGWAY_SHIM_STATS_SLOTS_H
#define RINGWAY_SHIM_STATS_SLOTS_H

#include "ringbuf/stats.h"

struct conn;

#pragma GCC visibility push(hidden)

int stats_slots_init(void);

/* The segment alone: what is asked of the process holds for connections to come. */
void stats_slots_make(void);

/* This process's row of the connection, or NULL: it has not been opened here, or there is no segment. */
struct stats_slot *stats_slot_of(const struct conn *c);

/* Gives the connection a row, if its addresses can be had by now. Does nothing for one that has a row. A few system calls
 * the first time: not for the first bytes of a connection. */
void stats_slots_open(struct conn *c, int fd);
void stats_slots_close(const struct conn *c);

/*
 * What the tool has asked (RETREAT.md section 6). The first is all that a call pays: is there anything? `off` of a connection without a row is what all
 * have.
 */
extern const peer_u32 *stats_off_word;
static inline bool stats_any_off(void)
{
	return peer_read_u32(stats_off_word) != 0;
}
bool stats_is_off(const struct conn *c);

/* A forked child has no rows: it makes its own segment when it uses what it inherited. */
void stats_slots_in_child(void);

#pragma GCC visibility pop

#endif
