/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_RETREAT_FAR_H
#define RINGWAY_RETREAT_FAR_H

/*
 * A lane between hosts comes back to TCP because its link is dead, or the peer's is (RETREAT.md section 9). What the sender says stands in the TCP
 * stream; from the moment at which it has been taken, the words of the receiver's own segment say it, and the steps are those of retreat.h.
 */

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct frame_due;

/* Of lane_rx.leaving: the frames that have come. */
enum {
	LEAVING_HAVE = 1,
	LEAVING_UPTO = 2,
	LEAVING_RETREAT = 4,
};

/* HAVE of an end that has acknowledged an announcement, and stands before the frame of the switch: with S in the place of a position. */
#define HAVE_STANDS (UINT64_C(1) << 63)

/*
 * The link is dead: how long, in nanoseconds, it is still to be waited for what the peer says by TCP before a lane leaves the ring. One that closes lets go of
 * its link, too, and must not be sent what it has read long ago.
 */
int64_t retreat_far_due(const struct conn *c);

/* ---- Tx lock held. */

/* The lane is on a ring whose link is dead, and there is something to send. False: not just now. */
bool retreat_far_leave(struct conn *c, int fd);
/* The same where nobody has anything to send: not to a peer that has ended its stream and has everything. False: to be called again. */
bool retreat_far_answer(struct conn *c, int fd);
/* The frames, or the rest of them, the move lock held: 0, they are out; 1, go on; -errno. */
int retreat_far_frames(struct conn *c, int fd);

/* ---- Rx lock held. */

/* A frame of the peer's that belongs to its leaving. False: it cannot be true. */
bool retreat_far_take(struct conn *c, int fd, const struct frame_due *due);
/* ... all of which have come: the lane's words say so once what has arrived is final. False as above. */
bool retreat_far_settle(struct conn *c);
/* `n` bytes have been read from TCP behind a ring. */
void retreat_far_came(struct conn *c, uint64_t n);
/* TCP has ended. True: in front of bytes that the peer was to send again; the connection is reset. */
bool retreat_far_is_short(struct conn *c, int fd);

/* ---- Both locks held: retreat_end_begin() between hosts. */
bool retreat_far_end(struct conn *c, int fd);

/* ---- No lock held, a close follows: until what the peer sends twice has come, or `until`. Unread, it would be a reset. */
void retreat_far_await(struct conn *c, int fd, int64_t until);

#endif
