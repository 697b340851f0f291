/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_BENCH_BARE_RING_H
#define RINGWAY_TESTS_BENCH_BARE_RING_H

/*
 * The least that a byte ring in shared memory can be, what the real one is measured by: one producer, one consumer, free-running
 * positions on a line each, and each side looks at the other's only when its copy of it is used up. Nobody can sleep, nobody is
 * distrusted, nothing is counted, and who waits only looks.
 */

#include <stdint.h>
#include <string.h>

#include "ringbuf/atomic.h"
#include "ringbuf/layout.h"

/* As large as the one that a connection gets. */
#define BARE_BYTES RING_BYTES_DEFAULT

struct bare_ring {
	_Alignas(128) _Atomic uint64_t tail;
	_Alignas(128) _Atomic uint64_t head;
	_Alignas(4096) uint8_t data[BARE_BYTES];
};

/* One side's: its own position, and the other's as it was seen last. */
struct bare_side {
	uint64_t pos, other;
};

/* `len` divides the ring, so that no message goes round its end. */
static inline void bare_send(struct bare_ring *ring, struct bare_side *tail, const void *buf, size_t len)
{
	while (BARE_BYTES - (tail->pos - tail->other) < len)
		tail->other = load_acquire(&ring->head);
	memcpy(ring->data + (tail->pos & (BARE_BYTES - 1)), buf, len);
	tail->pos += len;
	store_release(&ring->tail, tail->pos);
}

static inline void bare_recv(struct bare_ring *ring, struct bare_side *head, void *buf, size_t len)
{
	while (head->other - head->pos < len)
		head->other = load_acquire(&ring->tail);
	memcpy(buf, ring->data + (head->pos & (BARE_BYTES - 1)), len);
	head->pos += len;
	store_release(&ring->head, head->pos);
}

#endif
