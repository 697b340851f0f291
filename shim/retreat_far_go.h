/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_RETREAT_FAR_GO_H
#define RINGWAY_RETREAT_FAR_GO_H

/*
 * An end of a connection between hosts goes while its link lives, or is about to be shared with a process that has no link (RETREAT.md section 9): one message says
 * all, and once the peer's device has it nothing but program bytes goes over TCP.
 */

#include <stdbool.h>

#include "ringbuf/lane.h"
#include "ringbuf/stats.h"

struct conn;

/*
 * Both locks held. ASKED_GONE: for good; ASKED_AWAY: another link may follow. True: the link is down, the tx lane is on TCP, and so is the rx lane behind what the ring
 * holds. False: nothing has changed, or the link is dead; in the middle of it the connection may be reset. Waits for the peer's device, not for its program.
 */
bool retreat_far_away(struct conn *c, int fd, enum lane_asked how, enum reason why);

/*
 * ... for a while, of all connections of the process whose link is its own, and was made at `since` (now_ns()) or later, before it makes a child (`shared`), or tries to become
 * another program. No lock held. _any: is there one?
 */
void retreat_far_all_away(struct conn *const *conns, const int *fds, unsigned nr, int64_t since, enum reason why);
bool retreat_far_any(struct conn *const *conns, unsigned nr, int64_t since);

/* Rx lock held: a switch was taken. If this end has gone, is its sender's end behind it? */
void retreat_far_switched(struct conn *c, int fd);

/*
 * Rx lock held: the socket has what is no frame, or its end. Has the sender left, and gone? What says so has arrived by then, but another thread may be about to
 * take it.
 */
bool retreat_far_heard(struct conn *c);

/*
 * Tx lock held: a frame of the lane is about to be written. The peer's device is told before, so that who goes knows that it comes. False: it may not be
 * written, since the receiver has gone or the link is dead.
 */
bool retreat_far_frame_may(struct conn *c);
/* The same for who waits for the device anyway. True: it is to be told something new. */
bool retreat_far_frame_soon(struct conn *c);
/* ... and is not, after all. */
void retreat_far_frame_void(struct conn *c);

#endif
