/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_PROBE_H
#define RINGWAY_CONN_PROBE_H

/*
 * Probes: bytes for a socket of the peer that may not exist any more, so that the kernel finds out (PROTOCOL.md section 6).
 * Who waits for room behind the peer's end of its own stream hears of nothing else by itself: a peer that reads slowly and one
 * that was killed are both silent. And the end of TCP_USER_TIMEOUT, which comes at the same places: the kernel does not know that bytes wait. And the
 * question whether a far peer's device is there (RETREAT.md section 9).
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shim/conn.h"

#define PROBE_NOT_NEEDED INT64_C(-1)

/*
 * One frame, or its rest. Tx lock held. 0 when it is out, -EAGAIN, -errno. It also wakes a receiver whose bell could not be rung
 * (RING_UNHEARD): a wait for bytes looks at the socket for the sake of ends, and takes the frame away.
 */
ssize_t conn_write_probe(struct conn *c, int fd);

/*
 * How long, in nanoseconds, a wait for room may sleep before a probe or a question is due or the connection is given up, or PROBE_NOT_NEEDED. Due times belong to the connection, not to
 * the wait: a loop of short waits comes to them, too. Under conn_hold(), like the next.
 */
int64_t conn_probe_wait(struct conn *c);

/*
 * The same for a wait for room or for bytes: also until the verdict on a dead link is due, or until memory may go back that an overflow has
 * cost (ring_rx_trim()), which the next conn_arm() or conn_give_back() does.
 */
int64_t conn_look_again(struct conn *c, bool room);
/* May there be something of that kind? Needs no hold. */
bool conn_has_date(const struct conn *c);

/* The one that goes in front of the next bytes (probe_due), if there is one. Tx lock held. */
void conn_probe_ahead(struct conn *c, int fd);

/*
 * A send has found no room, tx lock held: the time counts from here, wherever the program goes. It is up for whoever comes by later: a send
 * (conn_judge_stall_locked()), a receive, a look, or a wait for anything.
 */
void conn_note_stall(struct conn *c);
void conn_judge_stall_locked(struct conn *c, int fd);
static inline bool conn_is_stalled(const struct conn *c)
{
	return unlikely(load_relaxed(&((struct conn *)c)->tx.stalled_at) != 0);
}

/* A send has found no room, tx lock held, and does not wait: a program that does nothing but to come back asks here. */
void conn_ask_far(struct conn *c);

/* Writes the probe, asks a far peer's device, or gives the connection up, if its time has come and nobody has the lane. Never blocks. */
void conn_probe_if_due(struct conn *c, int fd);

#endif
