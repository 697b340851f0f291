/* SPDX-License-Identifier: MIT */
/*
 * What lies in a segment: the memory that the two ends of one connection share. It is an ABI between two processes that
 * may have loaded different builds, so every offset is asserted and SEGMENT_VERSION changes with any of them.
 *
 *      0  struct segment_header   written once by the creator, before the memfd is passed
 *    128  struct segment_front    both lanes' tails
 *    256  struct lane_ctl[0]      lane 0: the creator (the end that accepted) sends
 *    640  struct lane_ctl[1]      lane 1: the end that connected sends
 *   4096  ring of lane 0          ring_bytes
 *   4096 + ring_bytes             ring of lane 1
 *   4096 + 2 * ring_bytes         overflow ring of lane 0, then that of lane 1: OVERFLOW_BYTES() each
 *
 * Lines are 128 bytes apart: processors fetch cache lines in pairs, and two writers in one pair would disturb each other
 * as if they shared a line. The two tails do share one line, on purpose: an end that answers has just read the question
 * from it, so a round trip moves one line to and fro where two lines would be fetched and invalidated each. Both processes can
 * write every byte of a segment, so each word is a peer_* type: the side that owns it writes it, and keeps the truth in private
 * memory.
 */
#ifndef RINGWAY_RINGBUF_LAYOUT_H
#define RINGWAY_RINGBUF_LAYOUT_H

#include "ringbuf/untrusted.h"

#define SEGMENT_MAGIC UINT64_C(0x31796177676e6972) /* "ringway1" in memory */
#define SEGMENT_VERSION 4
#define SEGMENT_LINE 128
#define SEGMENT_CTL_BYTES 4096

#define RING_BYTES_MIN (UINT32_C(1) << 12)
#define RING_BYTES_MAX (UINT32_C(1) << 30)
#define RING_BYTES_DEFAULT (UINT32_C(1) << 18)

/* Of the overflow ring that belongs to a ring of so many bytes, see overflow.c. Pages of it exist once they are touched. */
#define OVERFLOW_BYTES(ring_bytes) \
	((ring_bytes) <= RING_BYTES_MAX >> 4 ? (uint32_t)(ring_bytes) << 4 : RING_BYTES_MAX)

/* Lanes are named by who sends. */
enum lane_index {
	LANE_OF_CREATOR = 0,
	LANE_OF_ATTACHER = 1,
	NR_LANES = 2,
};

struct segment_header {
	peer_u64 magic;
	peer_u32 version;
	peer_u32 header_bytes;  /* SEGMENT_CTL_BYTES */
	peer_u32 ring_bytes;    /* of each lane; a power of two */
	peer_u32 reserved;
	peer_u64 segment_bytes; /* of the whole memfd */
};

/*
 * A wake word: the state of the side whose line it lies on, for the other side to read after it has published something.
 * The low two bits are a state, the next are flags by which the owner asks for attention, the upper half counts the threads
 * and processes of the owner that sleep (it means nothing to the other side).
 *
 *   WAKE_AWAKE    not asleep, may go to sleep at any moment: the other side fences between its publication and its look
 *   WAKE_ARMED    about to sleep or asleep: the other side swaps it to AWAKE and rings the bell, once
 *   WAKE_POLLING  not asleep, and promises a membarrier before it sleeps: the other side need not fence
 */
#define WAKE_AWAKE UINT32_C(0)
#define WAKE_ARMED UINT32_C(1)
#define WAKE_POLLING UINT32_C(2)
#define WAKE_STATE_MASK UINT32_C(3)
/* Set by the word's owner: "look at my cold words" (announce, ack, void) or "look at the kernel socket" (frames). */
#define WAKE_ATTN_WORDS UINT32_C(4)
#define WAKE_ATTN_KERNEL UINT32_C(8)
#define WAKE_ATTN_MASK (WAKE_ATTN_WORDS | WAKE_ATTN_KERNEL)
#define WAKE_SLEEPER (UINT32_C(1) << 16)
#define WAKE_SLEEPERS_MAX (UINT32_C(0xffff) << 16)

/*
 * A published tail: the position modulo 2^62, and above it how often the sender has moved between its two rings, modulo 4. An odd
 * number means that the bytes before this tail end in the overflow ring.
 */
#define TAIL_POS_BITS 62
#define TAIL_POS_MASK ((UINT64_C(1) << TAIL_POS_BITS) - 1)

/* What one lane shows in the front line. */
struct lane_front {
	peer_u64 tail_pos;     /* bytes before this position are in the lane's rings; with TAIL_POS_MASK */
	peer_u64 express_mark; /* which bytes express[] holds, see EXPRESS_MARK() */
	peer_u64 express[2];
};

/* The line that both ends poll. */
struct segment_front {
	struct lane_front lane[NR_LANES];
	uint8_t pad[SEGMENT_LINE - 64];
};

/* The last bytes before the tail can travel beside it, so that a short message costs one line. */
#define LANE_EXPRESS_WORDS 2
#define LANE_EXPRESS_BYTES (LANE_EXPRESS_WORDS * 8)
/* `len` bytes that end at `end`. The top bits of the position fall away: a writer would have to go round 2^59 bytes. */
#define EXPRESS_MARK(end, len) ((uint64_t)(end) << 5 | (uint64_t)(len))

struct lane_ctl {
	/* The receiver's position: the sender reads it only when it seems to be out of room, so storing it costs little. */
	struct {
		peer_u64 head_pos;     /* bytes before this position have been taken */
		uint8_t pad[SEGMENT_LINE - 8];
	} rx;
	/* The receiver's state: read by the sender after each publication, written rarely. */
	struct {
		peer_u32 wake;         /* the receiver's state, as it waits for bytes */
		peer_u32 ack_seq;      /* the announcement that the receiver has agreed to */
		peer_u32 trimming;     /* it gives the pages of the overflow ring back just now: nobody may write there */
		peer_u32 asked;        /* enum lane_asked: what the receiver wants of the sender, or is */
		peer_u64 given;        /* one that has gone: so many bytes of TCP, not read, come again before those of the ring */
		peer_u64 given_at;     /* they lie in the other lane's overflow ring, at this position */
		uint8_t pad[SEGMENT_LINE - 32];
	} rx_state;
	/* The sender's state, and its words of the switch; see lane.h. Read by the receiver four times a lap. */
	struct {
		peer_u32 wake;         /* the sender's state, as it waits for room */
		peer_u32 announce_seq; /* 0 = never announced */
		peer_u64 announce_at;  /* S, a count of bytes of the TCP stream */
		peer_u32 void_seq;     /* announcements up to this one are void */
		peer_u32 left;         /* enum lane_left: has the sender left the ring? */
		peer_u64 moved_at;     /* from this position on bytes lie in the overflow ring, while the moves in the tail are odd */
		peer_u64 claimed;      /* up to this position the sender may be writing into the overflow ring */
		peer_u64 left_at;      /* once it has left: TCP goes on with this position */
		peer_u64 resent_to;    /* and has the ring's bytes up to this one */
		peer_u32 frames;       /* whole frames in the TCP stream, SWITCH among them */
		peer_u32 owed;         /* a part of a frame is there */
		peer_u32 moving;       /* enum lane_mover: the move lock, which both ends take */
		uint8_t pad[SEGMENT_LINE - 68];
	} tx_state;
};

#define SEGMENT_FRONT_OFFSET SEGMENT_LINE
#define SEGMENT_LANE_OFFSET(lane) (2 * SEGMENT_LINE + (lane) * sizeof(struct lane_ctl))
#define SEGMENT_RING_OFFSET(lane, ring_bytes) (SEGMENT_CTL_BYTES + (uint64_t)(lane) * (ring_bytes))
#define SEGMENT_OVERFLOW_OFFSET(lane, ring_bytes) \
	(SEGMENT_RING_OFFSET(NR_LANES, ring_bytes) + (uint64_t)(lane) * OVERFLOW_BYTES(ring_bytes))
#define SEGMENT_BYTES(ring_bytes) SEGMENT_OVERFLOW_OFFSET(NR_LANES, ring_bytes)

_Static_assert(sizeof(peer_u64) == 8 && sizeof(peer_u32) == 4, "words have no hidden lock");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "words work between processes");
_Static_assert(sizeof(struct segment_header) == 32, "ABI");
_Static_assert(offsetof(struct segment_header, segment_bytes) == 24, "ABI");
_Static_assert(sizeof(struct lane_front) == 32, "ABI: both lanes share one cache line");
_Static_assert(sizeof(struct segment_front) == SEGMENT_LINE, "ABI");
_Static_assert(LANE_EXPRESS_BYTES < 32, "a length fits beside the position in a mark");
_Static_assert(sizeof(struct lane_ctl) == 3 * SEGMENT_LINE, "ABI");
_Static_assert(offsetof(struct lane_ctl, rx_state.wake) == SEGMENT_LINE, "ABI");
_Static_assert(offsetof(struct lane_ctl, tx_state.wake) == 2 * SEGMENT_LINE, "ABI");
_Static_assert(offsetof(struct lane_ctl, tx_state.announce_at) == 2 * SEGMENT_LINE + 8, "ABI");
_Static_assert(offsetof(struct lane_ctl, tx_state.moved_at) == 2 * SEGMENT_LINE + 24, "ABI");
_Static_assert(offsetof(struct lane_ctl, tx_state.claimed) == 2 * SEGMENT_LINE + 32, "ABI");
_Static_assert(offsetof(struct lane_ctl, tx_state.left_at) == 2 * SEGMENT_LINE + 40, "ABI");
_Static_assert(offsetof(struct lane_ctl, tx_state.moving) == 2 * SEGMENT_LINE + 64, "ABI");
_Static_assert(offsetof(struct lane_ctl, rx_state.trimming) == SEGMENT_LINE + 8, "ABI");
_Static_assert(offsetof(struct lane_ctl, rx_state.asked) == SEGMENT_LINE + 12, "ABI");
_Static_assert(offsetof(struct lane_ctl, rx_state.given) == SEGMENT_LINE + 16, "ABI");
_Static_assert(SEGMENT_LANE_OFFSET(NR_LANES) <= SEGMENT_CTL_BYTES, "the control words fit in front of the rings");

#endif
