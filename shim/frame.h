/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_FRAME_H
#define RINGWAY_FRAME_H

/*
 * Frames: Ringway's own bytes in the TCP stream (PROTOCOL.md section 5). A frame is a function of both ends' nonces, the lane
 * and a position, so the receiver computes the one that must come and compares bytes: nothing is parsed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_SIZE 32

enum frame_type {
	FRAME_SWITCH = 1,	/* the lane leaves TCP here */
	FRAME_PROBE = 2,	/* nothing: makes the kernel find out whether the peer's socket is alive */
	FRAME_FIN = 3,		/* between hosts: the lane ends at this position of its ring */
	/* Between hosts, in this order, by a sender that leaves the ring (RETREAT.md section 9): */
	FRAME_HAVE = 4,		/* bytes of the other lane before this position have arrived, and no others will */
	FRAME_UPTO = 5,		/* the ring's bytes before this position are sent again before anything else */
	FRAME_RETREAT = 6,	/* TCP goes on from this position of the ring */
};

/* `sender_nonce` is of the end that writes the frame; `pos` is the lane's TCP byte count at the frame, a ring position between hosts, 0 in a probe. */
void frame_make(uint8_t out[FRAME_SIZE], enum frame_type type, const uint64_t sender_nonce[2],
		const uint64_t receiver_nonce[2], uint64_t pos);

/* A step of mixing a word into a state, of which every bit then depends on all that were mixed in. No MAC. */
uint64_t frame_mix(uint64_t state, uint64_t word);

/* What a frame says of itself, of which `len` bytes have come; 0 where they are too few to tell. To be compared with a frame made from it. */
uint32_t frame_type_of(const uint8_t *bytes, size_t len);
uint64_t frame_pos_of(const uint8_t *bytes, size_t len);

/* Are the `len` bytes those of the frame from `offset` on? */
bool frame_matches(const uint8_t expected[FRAME_SIZE], const uint8_t *got, size_t offset, size_t len);

#endif
