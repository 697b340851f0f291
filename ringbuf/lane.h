/* SPDX-License-Identifier: MIT */
/*
 * The words by which a lane moves to the ring: announce and void are the sender's, ack is the receiver's. What they mean
 * and when they are written is the switch's business; here is only how they are read and written without tearing.
 * Sequence numbers start at 1; 0 means never. The writer keeps its own copies and never reads these back.
 *
 * And those by which it comes back, which are the retreat's.
 */
#ifndef RINGWAY_RINGBUF_LANE_H
#define RINGWAY_RINGBUF_LANE_H

#include "ringbuf/layout.h"

/* Sender: from byte `at` of the TCP stream on, bytes will be in the ring, unless this announcement is voided. */
static inline void lane_announce(struct lane_ctl *ctl, uint32_t seq, uint64_t at)
{
	/*
	 * A reader that sees half of the new pair must be able to tell: take the number away, then change the position. The fence
	 * pairs with the one in lane_announced().
	 */
	peer_publish_u32(&ctl->tx_state.announce_seq, 0);
	fence_full();
	peer_publish_u64(&ctl->tx_state.announce_at, at);
	peer_publish_u32(&ctl->tx_state.announce_seq, seq);
}

/* Receiver: the announcement that stands, or 0. Ask lane_voided() afterwards. */
static inline uint32_t lane_announced(const struct lane_ctl *ctl, uint64_t *at)
{
	uint32_t seq = peer_read_u32(&ctl->tx_state.announce_seq);

	if (!seq)
		return 0;
	*at = peer_read_u64(&ctl->tx_state.announce_at);
	fence_acquire();
	return peer_read_u32(&ctl->tx_state.announce_seq) == seq ? seq : 0;
}

/* Sender: the announcement `seq` and those before it will not be carried out. Before the system call that sends data. */
static inline void lane_void(struct lane_ctl *ctl, uint32_t seq)
{
	peer_publish_u32(&ctl->tx_state.void_seq, seq);
	fence_full();
}

/* Receiver: has `seq` been voided? Numbers wrap; a distance of 2^31 is never reached. */
static inline bool lane_voided(const struct lane_ctl *ctl, uint32_t seq)
{
	uint32_t voided = peer_read_u32(&ctl->tx_state.void_seq);

	return voided && (int32_t)(voided - seq) >= 0;
}

/* Receiver: agreed, no byte past `at` will be handed out as data unless `seq` is voided. */
static inline void lane_ack(struct lane_ctl *ctl, uint32_t seq)
{
	peer_publish_u32(&ctl->rx_state.ack_seq, seq);
	fence_full();
}

/* Sender: has the receiver agreed to exactly this announcement? */
static inline bool lane_acked(const struct lane_ctl *ctl, uint32_t seq)
{
	return seq && peer_read_u32(&ctl->rx_state.ack_seq) == seq;
}

/* What the receiver wants of the sender, or is. */
enum lane_asked {
	ASKED_NOTHING,
	ASKED_BACK,	/* leave the ring, I drain it */
	ASKED_SOON = ASKED_BACK,	/* between hosts, where nobody is asked: I am about to say the next, or that I do not */
	ASKED_GONE,	/* I read the ring no more: what lies from the head on goes over TCP, and no frame */
	ASKED_AWAY,	/* between hosts: the same, and another link may follow */
};

enum lane_left {
	LEFT_NOT,
	LEFT_RESENDS,	/* TCP goes on with left_at; everything up to the tail comes first */
	LEFT_CUT,	/* TCP has what lies from left_at to resent_to, and then what follows the tail */
	LEFT_RESET,	/* TCP's end, behind the tail, is no end, but a reset. The lane stays where it is */
};

enum lane_mover {
	MOVER_NONE,
	MOVER_SENDER,
	MOVER_RECEIVER,
};

static inline enum lane_asked lane_asked(const struct lane_ctl *ctl)
{
	uint32_t asked = peer_read_u32(&ctl->rx_state.asked);

	return asked <= ASKED_AWAY ? (enum lane_asked)asked : ASKED_NOTHING;
}

static inline enum lane_left lane_left(const struct lane_ctl *ctl)
{
	uint32_t left = peer_read_u32(&ctl->tx_state.left);

	return left <= LEFT_CUT ? (enum lane_left)left : LEFT_NOT;
}

/* Sender: says so before the kernel ends the stream. */
static inline void lane_reset(struct lane_ctl *ctl)
{
	peer_publish_u32(&ctl->tx_state.left, LEFT_RESET);
	fence_full();
}

/* Sender. What was said of TCP's end stands. */
static inline void lane_leave(struct lane_ctl *ctl, enum lane_left how)
{
	if (peer_read_u32(&ctl->tx_state.left) != LEFT_RESET)
		peer_publish_u32(&ctl->tx_state.left, how);
}

/* Receiver, behind TCP's end. */
static inline bool lane_is_reset(const struct lane_ctl *ctl)
{
	return peer_read_u32(&ctl->tx_state.left) == LEFT_RESET;
}

/*
 * The move lock, held over system calls that do not block: a frame, a piece that is sent again, a receiver that goes. It lies where both ends write, so
 * one that lies can hold it, or break it: that costs it its own bytes.
 */
static inline bool lane_move_try(struct lane_ctl *ctl, enum lane_mover who)
{
	uint32_t none = MOVER_NONE;

	return compare_exchange(&ctl->tx_state.moving.peer_word, &none, (uint32_t)who);
}

static inline void lane_move_end(struct lane_ctl *ctl)
{
	peer_publish_u32(&ctl->tx_state.moving, MOVER_NONE);
}

#endif
