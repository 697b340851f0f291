/* SPDX-License-Identifier: MIT */
/*
 * The commonest message of all, short and in the middle of a stream. What ring_write() and ring_read() do for it, with everything left out that it
 * does not need: false, and nothing done, where that would be something. They call nothing, so a caller that ends in these has nothing to
 * save, which is half of what such a message costs.
 */
#ifndef RINGWAY_RINGBUF_RING_SHORT_H
#define RINGWAY_RINGBUF_RING_SHORT_H

#include "ringbuf/ring.h"

/* The most that they carry. */
#define RING_SHORT_BYTES 16

/* What ring_tx_notify() finds most often. */
static inline bool ring_tx_is_heard(const struct ring_tx *tx)
{
	return load_relaxed(&((struct ring_tx *)tx)->ctl->rx_state.wake.peer_word) == WAKE_POLLING && barrier_registered();
}

/*
 * One short message of a stream, in one piece, to a receiver that polls. Published; it is still to be seen whether the peer polls now: what
 * ring_tx_is_heard() denies, ring_tx_notify() does.
 */
static inline bool ring_write_short(struct ring_tx *tx, const void *buf, size_t len)
{
	uint64_t pos = tx->tail_pos, off = pos & tx->mask;

	if (unlikely(len - 1 >= RING_SHORT_BYTES) || unlikely(ring_tx_known(tx) < len) || unlikely(tx->mask - off < len - 1) ||
	    unlikely(load_unlocked(tx->other_pos) != tx->answered) || unlikely(!ring_tx_is_heard(tx)))
		return false;
	ring_copy_short(tx->data + off, buf, len);
	ring_publish(tx, pos + len);
	return true;
}

/* One short message that is known to be there, in one piece, with which no quarter of the ring is crossed. */
static inline bool ring_read_short(struct ring_rx *rx, void *buf, size_t len)
{
	uint64_t pos = rx->head_pos, off = pos & rx->mask, end = pos + len;

	if (unlikely(len - 1 >= RING_SHORT_BYTES) || unlikely(ring_rx_known(rx) < len) || unlikely((pos ^ end) & ~(rx->mask >> 2)) ||
	    unlikely(rx->moving) || unlikely(load_relaxed(&rx->streak) < RING_POLLING_AFTER))
		return false;
	ring_copy_short(buf, rx->data + off, len);
	store_unlocked(&rx->head_pos, end);
	peer_publish_u64(&rx->ctl->rx.head_pos, end);
	return true;
}

#endif
