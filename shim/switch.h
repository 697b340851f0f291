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

#include "shim/frame.h"

struct conn;

/* ---- Tx: the caller holds the tx lock. */

/* Linked, nothing announced, nobody inside a call: announces the present count and wakes a sleeping receiver. */
void switch_announce(struct conn *c);
/* After a send by TCP that returned `n`. */
void switch_announce_after(struct conn *c, ssize_t n);

/*
 * Before program data goes out, which is `w`, or NULL where it cannot be looked at. 0: send over TCP (an announcement that stood was voided); 1: the lane is on the ring;
 * -EAGAIN: the rest of a frame does not fit into the socket yet; other -errno from the kernel.
 */
struct iov_walk;
int switch_before_send(struct conn *c, int fd, const struct iov_walk *w);

/* Into the socket, and on its way: the kernel waits for nothing more. Bytes taken, -errno. */
ssize_t switch_send_now(int fd, const void *bytes, size_t len);

/* A frame that was begun is finished: 0 (also where none is owed), -EAGAIN, -errno. */
int switch_finish_frame(struct conn *c, int fd);

/* Would the next send void an announcement that is worth a moment's wait? Readable without the lock. */
bool switch_wants_hold(const struct conn *c);
/* The moment passed without an acknowledgement: the next wait is farther off. */
void switch_held_in_vain(struct conn *c);

/* On TCP for good: true; false if the lane is past the point where it could stay. */
bool switch_stay_tx(struct conn *c);
/* An announcement that stands is void, and nothing more comes of it than of none. Where the peer may stand before its frame it must hear of it: on one host. */
void switch_withdraw_tx(struct conn *c);
/* The peer stands before the frame of an announcement: it goes out, whatever has become of the link. */
void switch_carry_out(struct conn *c, int fd);

/* ---- Rx: the caller holds the rx lock. */

/* So many bytes at most that the program has not read are waited for before an announcement behind them is acknowledged; tests that bury a frame make it 0. */
extern uint32_t switch_little;

/* Lifts the limit of a voided announcement, acknowledges one that has come, if the counts allow. */
void switch_acknowledge(struct conn *c, int fd);

/* How many bytes may be read from TCP now: SIZE_MAX where nothing is acknowledged; 0: the lane stands at S. */
size_t switch_read_cap(const struct conn *c);

enum switch_take {
	TAKE_RING,	/* the frame was taken, the lane is on the ring */
	TAKE_DATA,	/* what lies there is program data (stash first); nothing is acknowledged any more */
	TAKE_WAIT,	/* nothing, or part of a frame, is there yet */
	TAKE_END,	/* the stream has ended or failed: the kernel says how */
};

/* The lane stands at S. Never blocks. */
enum switch_take switch_take(struct conn *c, int fd);

/* The lane stays on TCP: true. Its calls wait in the kernel from now on, unless the other lane has something to hear meanwhile. */
bool switch_stay_rx(struct conn *c);

enum frame_sight {
	FRAME_TAKEN,	/* it came, whole, and was taken out of the socket */
	FRAME_NOT_YET,	/* nothing, or its beginning (which is in the stash now) */
	FRAME_NONE,	/* something else lies there, untouched */
	FRAME_END,	/* end of stream, or an error, now in pending_errno */
};

/* Which frame may come; `or_fin`: or a FIN, and then type and pos say so. */
struct frame_due {
	enum frame_type type;
	uint64_t pos;
	bool or_far;	/* or one of those between hosts of which the position is not known before */
};

/* Looks for one frame in the socket. `is_data` may say that its mere beginning is none; NULL: it never is. */
enum frame_sight frame_receive(struct conn *c, int fd, struct frame_due *due, bool (*is_data)(struct conn *c));

#endif
