/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_FIN_H
#define RINGWAY_CONN_FIN_H

/*
 * The end of a stream that goes through the ring of another host (ringbuf/VERBS.md): the kernel's end of the TCP stream says nothing of bytes on
 * the other road, so a FIN frame in front of it says where they end.
 */

#include <poll.h>

#include "ringbuf/stats.h"
#include "shim/conn.h"
#include "shim/far.h"

enum tx_fin {
	TX_FIN_NONE,
	TX_FIN_DUE,	/* no byte follows: the last one is on its way */
	TX_FIN_LOST,	/* it was waited for in vain: no end can be told */
	TX_FIN_SENT,	/* the peer was told */
	TX_FIN_RESET,	/* it is told none: a reset follows */
};

/*
 * No lane locked, the caller holds a use of the connection or is the last to have it: waits until the peer's device has every byte, so that nobody has
 * to wait with a lock. `ends`: no byte of the program's follows, conn_fin_send() does. Nothing where the lane is not on such a ring.
 */
void conn_fin_await(struct conn *c, bool ends);

/* One of several that are waited for together, in as long as one may take: a device that does not answer costs its patience once. */
struct fin_wait {
	struct conn *c;		/* NULL: not this one */
	bool ends;
	bool stays;		/* its end is the kernel's to tell, if it comes */
	bool awaited;		/* what its peer sends again */
	uint64_t unacked;	/* when it was last looked at */
};
/* What conn_fin_await() and conn_fin_settle() do. `p`: as many, for the calls' own use. */
void conn_fin_await_all(struct fin_wait *w, struct pollfd *p, unsigned nr);
void conn_fin_settle_all(struct fin_wait *w, struct pollfd *p, unsigned nr);

/* Tx lock held, the lane is on such a ring: bytes that nobody has waited for are waited for. 0: the peer's device has them; -errno. */
int conn_fin_wait(struct conn *c);

/*
 * Tx lock held, the kernel's shutdown or close follows: the frame, behind bytes that the peer's device has, for which this waits if nobody has. Nothing is done where the
 * lane is not on such a ring, or has told its end. 0, or -errno where it cannot be told, and the peer will see a reset.
 */
int conn_fin_send(struct conn *c, int fd);

/* Both lanes locked, in its place, where a reset is to follow. */
void conn_fin_reset(struct conn *c);

/*
 * No lane locked, after either: what else was said arrives, too, before the link is let go. A reset waits for that for a moment only; without it the peer's sends would
 * succeed until its device gives up.
 */
void conn_fin_settle(struct conn *c);

/* The peer's has come. False: it cannot be true. Rx lock held. */
bool conn_fin_came(struct conn *c, uint64_t pos);

enum fin_sight {
	FIN_REACHED,	/* the last byte has arrived */
	FIN_MISSING,	/* not yet, on a link that lives */
	FIN_NEVER,	/* nothing was said of an end, or the link has died before it */
};
/* The kernel has told the end of the stream: has it all come? Rx lock held. */
enum fin_sight conn_fin_sight(struct conn *c);

/*
 * The peer has told its end, bytes before it are missing, and the link lives: they may take long, or be a lie. The kernel's socket is at its end all the
 * while, which is no news, and is not to be told before they have come. A few loads, no lock.
 */
static inline bool conn_fin_awaited(const struct conn *c)
{
	return conn_is_far(c) && unlikely(c->rx.fin_known) && load_relaxed(&((struct conn *)c)->rx.state) == RX_RING &&
	       ring_rx_published(&c->link.rx) != (c->rx.fin_pos & TAIL_POS_MASK);
}

/* Bytes are lost, or may be: the program sees a reset, once what has arrived is read. Rx lock held. */
void conn_cut(struct conn *c, int fd, enum reason why);

#endif
