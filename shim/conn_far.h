/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_FAR_H
#define RINGWAY_CONN_FAR_H

/*
 * Connections between hosts, in the data calls and the waits. The peer's part is played by an engine in this process (ringbuf/VERBS.md), which
 * works only when it is asked to: a *pump*. On one host none of this costs more than a compare, and that off the hot path.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "shim/conn.h"
#include "shim/far.h"

/*
 * Linked, and the caller holds a use of the connection or one of its lanes. `why` is of enum verbs_why. 0; -ESRCH in a process that did not make
 * the link (a child of the one that did): it sees what has arrived, and is reset then. Any other error is remembered: conn_far_judge() says
 * what it means.
 */
int conn_pump_far(struct conn *c, unsigned why);

static inline int conn_pump(struct conn *c, unsigned why)
{
	return conn_is_far(c) ? conn_pump_far(c, why) : 0;
}

/* A child of the process that made the link: nobody works for it, so it must not wait, nor send. */
static inline bool conn_far_is_orphaned(const struct conn *c)
{
	return conn_is_far(c) && !load_relaxed(&((struct conn *)c)->link_dead) && conn_pump_far((struct conn *)c, 0) == -ESRCH;
}

/* Pumps, for who is about to say what a connection is ready for, or has nothing to do but to look. */
int conn_pump_look(struct conn *c);

/*
 * For who finds no room to send: the peer may be in the same place. What the program has not read makes way for what the peer sends, as in the
 * receive buffer of a kernel's socket. No rx lock held.
 */
void conn_far_make_way(struct conn *c);

/* What a sleep on the connection waits for besides the bells, -1: nothing. Readable: pump(VERBS_RUNG), once disarmed. */
int conn_far_fd(const struct conn *c);

/* Bytes that the peer's device has not acknowledged; asking brings the acknowledgement nearer. */
int conn_far_outq(struct conn *c, int fd);

static inline bool conn_far_is_dead(const struct conn *c)
{
	return unlikely(load_relaxed(&((struct conn *)c)->link_dead) != 0);
}

/* Takes the link down, if that is this process's to do. True: it is dead, and no other byte arrives in the ring. Any lock or none held. */
bool conn_far_stop(struct conn *c);

/* This process lets go of the link. Relatives go on without one. */
void conn_far_leave(struct conn *c);

/* The link, which is dead, is given up (renew.h): what it has counted is counted on. Both locks held. */
void conn_far_part(struct conn *c);
/* ... and the next one is none of a dead link. */
void conn_far_blank(struct conn *c);

/* What the engine has counted since the last time goes into the process's summary. */
void conn_far_tell(struct conn *c);

/* Before bytes go into the ring, tx lock held: 0 (the lane may have left it), -EAGAIN while it is not known what a dead link means, or -errno. */
int conn_far_check(struct conn *c, int fd);

/* The link is dead, and this end may be due to leave its ring. Rx lock held, the frames in the socket have been taken. */
void conn_far_judge(struct conn *c);
/* How long until then, in nanoseconds; INT64_MAX: nothing is awaited. */
int64_t conn_far_patience(const struct conn *c);

#endif
