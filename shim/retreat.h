/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_RETREAT_H
#define RINGWAY_RETREAT_H

/*
 * A lane comes back to TCP: RETREAT.md. The steps of both ends on one host; a connection between hosts has none of them yet. None
 * blocks, but for a receiver that goes, which waits a bounded time for who has the move lock.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "ringbuf/stats.h"

struct conn;
struct frame_due;

/* Bytes that a receiver which hands its socket on is likely to have left there: so many are sent again by who ends. */
#define RETREAT_RESENT_AT_END (64 << 10)

/* ---- Tx: the caller holds the tx lock. */

/*
 * What the receiver has asked is done: the lane leaves the ring, or stays on TCP. False: not just now, since the receiver is going; to be
 * called again.
 */
bool retreat_answer(struct conn *c, int fd);

/* Of its own accord, from the ring. False: not just now; nor while a receiver that has shut both directions has bytes unread there. */
bool retreat_leave(struct conn *c, int fd);

/*
 * A lane that has left its ring: what the receiver has not taken goes out, as far as the socket takes it. 0: program data may follow;
 * -EAGAIN; other -errno of the kernel.
 */
int retreat_resend(struct conn *c, int fd);
/* The same where the program is told nothing now: an error is kept for it. */
int retreat_resend_kept(struct conn *c, int fd);
/* ... for a connection that ends: it has not come back to stay. */
int retreat_resend_quietly(struct conn *c, int fd);
/* ... and of whose bytes the socket shall take all that may be had. */
int retreat_resend_last(struct conn *c, int fd);

/* The same where nobody has data to send, for a receiver that cannot take it from the ring. */
void retreat_push(struct conn *c, int fd);

/* What is written into the socket under the move lock: a frame, or a piece of the ring. */
enum piece {
	PIECE_NONE,
	PIECE_SWITCH,	/* tx.rest_done counts it */
	PIECE_PROBE,	/* tx.probe_done */
	PIECE_RESENT,	/* tx.resent_pos */
	PIECE_GIVEN,	/* tx.given_done */
	PIECE_LEAVING,	/* tx.leaving_done */
};

/* Around the writing of a frame, or its rest. False: none may be written, as the receiver has gone, or is going. `n`: what the kernel said of it. */
bool retreat_frame_begin(struct conn *c, int fd, enum piece what);
void retreat_frame_end(struct conn *c, enum piece what, ssize_t n);
bool retreat_receiver_is_gone(const struct conn *c);

/* ---- Rx: the caller holds the rx lock. */

/* The lane is on the ring: has the sender left it? Then the lane's state says so from now on. */
bool retreat_left(struct conn *c);

/* The lane was left: once the ring is drained, takes away what is not the program's. The lane's state says how far it came. */
void retreat_follow(struct conn *c, int fd);

/*
 * For who must see behind a ring that is not drained: what is not the program's is taken out of the socket in advance. True: that goes on where the ring ends.
 * Until the ring is drained the connection cannot be handed on.
 */
bool retreat_clear(struct conn *c, int fd);

/* What came twice of bytes that the program has read already: the sender may be waiting to be rid of it. The rest stays for who may have the socket then. */
void retreat_clear_taken(struct conn *c, int fd);

/* The lane was left: is there more to come that came before? A hint. */
bool retreat_overlaps(struct conn *c);

/* The lane was left, and its ring holds bytes still: how many of the program's lie in the socket, behind what is not. */
size_t retreat_inq_behind(struct conn *c, int fd);

/* The rx lock was taken over from a relative that has died: so is what it held of the other. */
void retreat_recover_rx(struct conn *c);

/* ---- Both locks held. */

/*
 * Whoever has a descriptor of it from now on may use it without Ringway: true. False: that cannot be, and nothing that matters has changed. Waits for
 * nobody's program.
 */
bool retreat_go(struct conn *c, int fd, enum reason why);

/*
 * The tx half of it, for an end that may be another program in a moment, or may not. The lane goes on over TCP in either case. What a receiver that has gone needs is
 * pushed in a bounded wait. False: it could not be, and the kernel should say reset if the stream ends now.
 */
bool retreat_sender_goes(struct conn *c, int fd);

/*
 * The end of this end's stream is about to be told, and nothing can be sent behind it: what the receiver has not taken is sent again, for one
 * that goes later, as far as the socket takes it at once. What a receiver that has gone needs is pushed in a bounded wait. From then on
 * until retreat_end_over() no receiver goes. False: it could not be, and the kernel should say reset.
 */
bool retreat_end_begin(struct conn *c, int fd);
void retreat_end_over(struct conn *c);

/* ---- One lock held, or both. */

/* Both lanes are back: noted once a link. */
void retreat_note_returned(struct conn *c);
/* The same if it is so: a connection that was pinned with its link, and of which no lane is on a ring, or may still come there. */
void retreat_settle(struct conn *c);

/* ---- No lock held. */

/* Has the receiver gone while bytes of the ring are still to be sent to it? Then every wait is one for room in the socket, too. A hint. */
bool retreat_owes(const struct conn *c);

/* Both locks, and retreat_go(). */
bool retreat_go_unlocked(struct conn *c, int fd, enum reason why);

/*
 * For an end that goes on: as retreat_go() where nothing is unread, nor can come meanwhile. Else the tx lane leaves, the peer is asked for the other one, and the answer is false, but
 * between hosts, where nothing had come.
 */
bool retreat_back_unlocked(struct conn *c, int fd, enum reason why);

/* What a process has told that may not have had the bells: once more. */
void retreat_tell_again(struct conn *c);

/* In calls that send nothing: what the peer has asked of the tx lane, and what it waits for. A few loads if that is nothing. */
void retreat_serve(struct conn *c, int fd);

/*
 * ---- The move lock, as the sender takes it; the tx lock is held. Between retreat.c and retreat_go.c. ----
 *
 * A process may be killed with it held. Then another that holds the connection takes it over, and finds by the kernel's count how much of the piece was written.
 */
bool retreat_move_try(struct conn *c, int fd);
bool retreat_piece_begin(struct conn *c, int fd, enum piece what);
void retreat_piece_end(struct conn *c, enum piece what, ssize_t n);

/* Rx lock held. One of the frames that lie between the ring and what TCP goes on with was taken: false, it cannot be one of them. */
bool retreat_frame_took(struct conn *c, const struct frame_due *due);

#endif
