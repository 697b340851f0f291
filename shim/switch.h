/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_SWITCH_H
#define RINGWAY_SWITCH_H

/*
 * A lane leaves TCP: PROTOCOL.md section 4. Steps are made inside data calls and waits, under the lock of the lane concerned,
 * and none of them blocks.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct conn;

/* Tx, caller holds the tx lock. */

/* Linked, nothing announced, nobody inside a call: announces the present count and rings a sleeping receiver. */
void switch_announce(struct conn *c);

/*
 * Before program data goes out. 0: send over TCP (an announcement was voided); 1: the lane is on the ring now; -EAGAIN: the
 * rest of a frame does not fit into the socket yet; other -errno from the kernel.
 */
int switch_before_send(struct conn *c, int fd);

/* A frame that was begun is finished: 0, -EAGAIN, -errno. */
int switch_finish_frame(struct conn *c, int fd);

/* Is it worth waiting a moment for the acknowledgement before the next send voids the announcement? */
bool switch_wants_hold(const struct conn *c);

/* Rx, caller holds the rx lock. */

/* Acknowledges an announcement that has come, if the counts allow. */
void switch_acknowledge(struct conn *c, int fd);

/*
 * How many bytes may be read from TCP now: SIZE_MAX where nothing is acknowledged. 0: the lane stands at S, and
 * switch_take() decides.
 */
size_t switch_read_cap(const struct conn *c);

/*
 * At S. 1: the frame was taken, the lane is on the ring; 0: what lies there is program data (voided or a lie; the state says which),
 * read on; -EAGAIN: nothing, or part of a frame, is there yet; 2: the stream has ended, let the kernel say how.
 */
int switch_take(struct conn *c, int fd);

/* Anything to do for the switch on either lane, seen with a few loads: for waits and readiness. */
bool switch_has_news(const struct conn *c);

#endif
