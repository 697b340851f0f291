/* SPDX-License-Identifier: MIT */
/*
 * A segment: the sealed memfd that holds one connection's control words and rings. Created by one end, checked by the
 * other before it is mapped, and trusted by neither afterwards.
 */
#ifndef RINGWAY_RINGBUF_SEGMENT_H
#define RINGWAY_RINGBUF_SEGMENT_H

#include "ringbuf/layout.h"

struct segment {
	uint8_t *base;       /* NULL = not mapped */
	uint64_t bytes;      /* mapped */
	uint32_t ring_bytes; /* private copy; the header is never read again */
};

/* A ring size that a segment can have: the power of two at or above `wanted`, within the bounds. */
uint32_t segment_ring_bytes(uint64_t wanted);

/*
 * Creates, seals and maps a segment with two rings for each lane. The memfd, for the peer (the caller closes it once it has been passed
 * on: the mapping stays), or -errno: -EINVAL for a size that segment_ring_bytes() would not give, -EFBIG where
 * RLIMIT_FSIZE forbids it (asking the kernel would raise SIGXFSZ), or as from memfd_create, ftruncate, mmap.
 * Nothing is left behind on failure.
 */
int segment_create(struct segment *seg, uint32_t ring_bytes);

/*
 * Checks and maps a segment that came from a peer. `fd` stays the caller's. -EPROTO: not a memfd, seals missing, a size or
 * a header that is not exactly what `ring_bytes` (as agreed in the rendezvous) asks for. -errno from mmap.
 */
int segment_attach(struct segment *seg, int fd, uint32_t ring_bytes);

/* Unmaps. Harmless on one that is not mapped. */
void segment_close(struct segment *seg);

static inline struct lane_ctl *segment_ctl(const struct segment *seg, enum lane_index lane)
{
	return (struct lane_ctl *)(seg->base + SEGMENT_LANE_OFFSET(lane));
}

static inline struct lane_front *segment_front(const struct segment *seg, enum lane_index lane)
{
	return &((struct segment_front *)(seg->base + SEGMENT_FRONT_OFFSET))->lane[lane];
}

static inline uint8_t *segment_ring(const struct segment *seg, enum lane_index lane)
{
	return seg->base + SEGMENT_RING_OFFSET(lane, seg->ring_bytes);
}

static inline uint8_t *segment_overflow(const struct segment *seg, enum lane_index lane)
{
	return seg->base + SEGMENT_OVERFLOW_OFFSET(lane, seg->ring_bytes);
}

#endif
