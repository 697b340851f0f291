/* SPDX-License-Identifier: MIT */
/*
 * The move lock, as a sender takes it, and what is written into the socket under it. Who has it can be killed between the kernel's taking
 * bytes and the record's saying so; a relative then asks the kernel how many these were, since bytes that are sent twice are worse than none.
 */
#include "shim/retreat.h"

#include <errno.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/diag.h"
#include "shim/far.h"
#include "shim/frame.h"

#define LOCK_TRIES 64
#define COUNT_TRIES 4

/* -EAGAIN: data comes in so fast that no two looks agree. */
static int written(struct conn *c, int fd, uint64_t *count)
{
	struct diag_bytes kernel;
	int r = -EAGAIN;

	for (int i = 0; i < COUNT_TRIES && r == -EAGAIN; i++)
		r = diag_counts(fd, c->role == CONN_CONNECTED, &kernel);
	if (!r)
		*count = kernel.written;
	return r;
}

static uint64_t done_of(const struct conn *c, enum piece what)
{
	switch (what) {
	case PIECE_RESENT:
		return c->tx.resent_pos;
	case PIECE_GIVEN:
		return c->tx.given_done;
	case PIECE_PROBE:
		return c->tx.probe_done;
	case PIECE_LEAVING:
		return c->tx.leaving_done;
	default:
		return c->tx.rest_done;
	}
}

/* Nothing is added up here: whoever comes after one that was killed in the middle does it once more. */
static void note(struct conn *c, enum piece what, uint64_t n)
{
	uint64_t done = c->tx.piece_at + n;

	switch (what) {
	case PIECE_NONE:
		return;
	case PIECE_RESENT:
		c->tx.resent_pos = done;
		peer_publish_u64(&c->link.tx.ctl->tx_state.resent_to, done);
		return;
	case PIECE_GIVEN:
		c->tx.given_done = done;
		return;
	case PIECE_LEAVING:
		c->tx.leaving_done = (uint8_t)done;
		return;
	case PIECE_SWITCH:
		c->tx.rest_done = (uint8_t)done;
		break;
	case PIECE_PROBE:
		c->tx.probe_done = (uint8_t)done;
		break;
	}
	c->tx.frames = c->tx.piece_frames + (n && done == FRAME_SIZE);
}

static void publish_frames(struct conn *c)
{
	struct lane_ctl *ctl = c->link.tx.ctl;

	peer_publish_u32(&ctl->tx_state.frames, c->tx.frames);
	peer_publish_u32(&ctl->tx_state.owed, c->tx.rest_done % FRAME_SIZE || c->tx.probe_done % FRAME_SIZE);
}

/* The lock is a dead relative's: the tx lock, without which no sender takes it, is ours. */
static bool inherit(struct conn *c, int fd)
{
	uint64_t count = 0;

	if (c->tx.piece != PIECE_NONE) {
		if (written(c, fd, &count) < 0)
			return false;
		note(c, (enum piece)c->tx.piece, count - c->tx.piece_count);
		fence_compiler();
		c->tx.piece = PIECE_NONE;
	}
	publish_frames(c);
	return true;
}

bool retreat_move_try(struct conn *c, int fd)
{
	struct lane_ctl *ctl = c->link.tx.ctl;

	/* A receiver that goes is inside a few system calls just now, or was killed there: then the kernel tells of its end. */
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (lane_move_try(ctl, MOVER_SENDER))
			return true;
		if (peer_read_u32(&ctl->tx_state.moving) == MOVER_SENDER)
			return inherit(c, fd);
		sys_call0(SYS_sched_yield);
	}
	return false;
}

bool retreat_piece_begin(struct conn *c, int fd, enum piece what)
{
	c->tx.piece_at = done_of(c, what);
	c->tx.piece_frames = c->tx.frames;
	if ((what == PIECE_SWITCH || what == PIECE_PROBE) && !load_relaxed(&c->shared))
		return true;
	if (written(c, fd, &c->tx.piece_count) < 0)
		return false;
	fence_compiler();
	c->tx.piece = (uint8_t)what;
	fence_compiler();
	return true;
}

void retreat_piece_end(struct conn *c, enum piece what, ssize_t n)
{
	if (n > 0)
		note(c, what, (uint64_t)n);
	fence_compiler();
	c->tx.piece = PIECE_NONE;
}

bool retreat_frame_begin(struct conn *c, int fd, enum piece what)
{
	struct lane_ctl *ctl = c->link.tx.ctl;

	if (conn_is_far(c)) {
		c->tx.piece_at = done_of(c, what);
		c->tx.piece_frames = c->tx.frames;
		return true;
	}
	if (!retreat_move_try(c, fd))
		return false;
	/* Of a frame that was begun the receiver knows: it has not gone. */
	if ((done_of(c, what) % FRAME_SIZE || !retreat_receiver_is_gone(c)) && retreat_piece_begin(c, fd, what)) {
		peer_publish_u32(&ctl->tx_state.owed, 1);
		return true;
	}
	lane_move_end(ctl);
	return false;
}

void retreat_frame_end(struct conn *c, enum piece what, ssize_t n)
{
	retreat_piece_end(c, what, n);
	if (conn_is_far(c))
		return;
	publish_frames(c);
	lane_move_end(c->link.tx.ctl);
}

/* What of the other lane it had taken out of the socket, and not counted, is lost with it. */
void retreat_recover_rx(struct conn *c)
{
	struct lane_ctl *ctl = c->link.rx.ctl;

	if (!conn_is_far(c) && peer_read_u32(&ctl->tx_state.moving) == MOVER_RECEIVER)
		lane_move_end(ctl);
}
