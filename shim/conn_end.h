/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_END_H
#define RINGWAY_CONN_END_H

/* How a connection ends, and what its parts tell each other about it (PROTOCOL.md section 6). */

#include <stdbool.h>
#include <sys/types.h>

#include "ringbuf/stats.h"

struct conn;

/*
 * The caller holds the rx lock, the lane is on a ring. Asks the kernel's socket: probes are taken away, an end or an error moves
 * the lane to ENDED. True if it is there.
 */
bool conn_look(struct conn *c, int fd);

/* The receiver has said that it goes. */
void conn_receiver_goes(struct conn *c);

/* An error for the program, told once by the next send, receive or SO_ERROR. */
void conn_set_pending(struct conn *c, int err);
/* What a call of ours, of which the program does not know, came back with: an error that it has taken from the socket is the program's. */
void conn_keep_error(struct conn *c, ssize_t n);

/*
 * Before bytes go into the ring, tx lock held: 0, RING_ORPHAN where nobody will read them and they count as sent, or -errno.
 */
#define RING_ORPHAN 1
int conn_ring_check(struct conn *c, int fd);

/* What ring_tx_notify() had to say, tx lock held. */
void conn_ring_said(struct conn *c, int fd, uint32_t said);

/* As the kernel does for this thread. */
void conn_raise_sigpipe(void);

/* The peer's stream has ended: is it half closed, or gone? The next send finds out. */
void conn_peer_ended(struct conn *c);

/*
 * TCP_USER_TIMEOUT is over: the connection is dead, without a word to the peer but the kernel's reset; the program sees ETIMEDOUT once.
 * Both locks held.
 */
void conn_timed_out(struct conn *c, int fd);

/*
 * The kernel told the end of the peer's stream. Did the peer die, without a word in the segment, with bytes of ours unread in its ring?
 * Its kernel would have answered with a reset had they been in its socket: true, and the program will see one. Any lock or
 * none held.
 */
bool conn_check_killed(struct conn *c, int fd);

/*
 * What the peer's kernel is to see as a reset, on whatever road its lanes are: a FIN would be an end. What the socket has of the program's bytes goes with it.
 */
void conn_reset_kernel(struct conn *c, int fd);

/* The peer broke the protocol: nothing that it sends is believed any more, and the program sees a reset. Rx lock held. */
void conn_lied(struct conn *c, int fd, enum reason why);

/* Before conn_end_lanes(), no lane locked: what a far peer must have before its end is waited for. */
void conn_end_soon(struct conn *c, int fd);
/* Does conn_end_soon() do anything, where the peer is far? */
bool conn_end_waits(const struct conn *c, int fd);

/*
 * Both locks held, nobody else holds the connection, the kernel's close follows: a reset if program bytes are unread in the
 * ring, else frames are taken away so that the kernel says FIN; the peer is told to look.
 */
void conn_end_lanes(struct conn *c, int fd);
/* Both locks held, before an exec: no lane leaves TCP any more, and what is about to has. */
void conn_exec_soon(struct conn *c, int fd);
/*
 * The same, where the close follows if an exec succeeds: what the kernel is to send after the end of this process is given to it, and what is not the program's taken out
 * of it. The peer is told of no end. If the exec fails that stands, and the lanes go on from there. False: it has to be told of one, as by conn_end_lanes(), and none of this
 * was done.
 */
bool conn_exec_lanes(struct conn *c, int fd);
/* The kernel's close does not follow. */
void conn_unend_lanes(struct conn *c, int fd);

/*
 * Both locks held. If the program has shut both directions and keeps the descriptor, the peer is told that its bytes are not wanted: the
 * kernel answers data to such a socket with a reset, so the peer has to give it some.
 */
void conn_tell_shut(struct conn *c);

/* One process fewer looks at the record; the last gives it back. */
void conn_unmap(struct conn *c);

/* Bytes that moved and were not told yet; the reason too if nobody holds it any more. */
void conn_tell_summary(struct conn *c, bool last);

/* A lane was taken over from a thread that died holding it: published again, the peer woken. */
void conn_tx_recover(struct conn *c);
void conn_rx_recover(struct conn *c);

#endif
