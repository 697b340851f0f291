/* SPDX-License-Identifier: MIT */
/*
 * Sleeping on a lane. Every wait has this shape, and no other is safe:
 *
 *	for (;;) {
 *		... is there something to do? (spin here by policy)
 *		if (ring_rx_sleep_begin(rx))
 *			continue;               something came: look again
 *		... ppoll on rx->bells.bell_fd, the program's fd, ...
 *		ring_rx_sleep_end(rx, bell was readable);
 *	}
 *
 * Several threads and processes may sleep on one lane. The bell is level: it stays readable until a later
 * sleep_begin() drains it, so all that sleep are woken. Whoever drains it and then does not sleep rings it
 * again for the others. Sleepers are counted in the wake word itself, in one atomic step with the state,
 * so that nobody takes back an arming that another sleeper relies on. A sleeper that was killed stays
 * counted; that costs a needless bell now and then, nothing else.
 *
 * An epoll set that waits on a lane is one sleeper: sleep_begin() when it stops polling the lane, sleep_end() when it takes
 * it up again.
 *
 * These functions may be called without the lane's lock. Each begin that said false is followed by one end.
 */
#ifndef RINGWAY_RINGBUF_WAKE_H
#define RINGWAY_RINGBUF_WAKE_H

#include "ringbuf/ring.h"

/*
 * Drains what an earlier sleep left, arms, fences (with a membarrier if we were POLLING), looks again. true: there are bytes
 * (or a lie: ring_rx_avail() tells), or the sender asks for attention; not armed by us any more, do not call
 * sleep_end(). false: armed and counted, sleep until bell_fd is readable, then call sleep_end().
 */
bool ring_rx_sleep_begin(struct ring_rx *rx);
void ring_rx_sleep_end(struct ring_rx *rx, bool rung);

/*
 * The same for who has seen the bytes before `tail_pos` and wants more (edge-triggered sets, MSG_WAITALL, SO_RCVLOWAT): true only if
 * the published tail differs, or for attention. sleep_end() is the same.
 */
bool ring_rx_sleep_begin_past(struct ring_rx *rx, uint64_t tail_pos);

/*
 * The same for a sender that waits for room. true as soon as a quarter of the ring into which bytes go now, or `want` bytes if that
 * is less, are free. The receiver rings when it crosses a quarter, so what is waited for is never more than a quarter.
 */
bool ring_tx_sleep_begin(struct ring_tx *tx, size_t want);
/* The same for a sender that waits for the receiver's attention only (an acknowledgement), whatever room there is. */
bool ring_tx_sleep_begin_words(struct ring_tx *tx);
void ring_tx_sleep_end(struct ring_tx *tx, bool rung);

/* Of a large ring to a far receiver: what that has fetched is free when it was written, too, and its device may not take all of it while the program does other things. */
#define RING_FAR_LOW_WATER (UINT32_C(1) << 16)

/* Room that makes a sender writable, and that sleep_begin() waits for. */
static inline size_t ring_tx_low_water(const struct ring_tx *tx, size_t want)
{
	size_t quarter = (size_t)((tx->mask + 1) >> 2);

	if (unlikely(tx->bells.far) && quarter > RING_FAR_LOW_WATER)
		quarter = RING_FAR_LOW_WATER;
	return want < quarter ? want : quarter;
}

/* No membarrier may be needed on this lane any more (see barrier_disable()): POLLING -> AWAKE, with the last one. */
void ring_rx_leave_polling(struct ring_rx *rx);

/*
 * For what plays a far peer's part in this process: bytes, a head or words were published for this end, whose sleepers on the lane are
 * woken as the peer would wake them.
 */
void ring_rx_arrived(struct ring_rx *rx);
void ring_tx_arrived(struct ring_tx *tx);
/* ... and what this end asks of the peer by ring_*_raise_attention(), cleared: it is told of by other means. */
uint32_t ring_tx_own_attention(struct ring_tx *tx);
uint32_t ring_rx_own_attention(struct ring_rx *rx);

/*
 * Asks the other side of the lane to look: sets WAKE_ATTN_* flags in our own wake word, and wakes the peer if it
 * sleeps on this lane. What is to be looked at has been published before.
 */
void ring_tx_raise_attention(struct ring_tx *tx, uint32_t flags);
void ring_rx_raise_attention(struct ring_rx *rx, uint32_t flags);

/*
 * A process that shared this end has died, at any point: it may have drained a bell that others slept on, or published without
 * ringing. Rings for all who could sleep on because of that, on either side; none where nothing is pending. No lock needed.
 */
void ring_tx_stir(struct ring_tx *tx);
void ring_rx_stir(struct ring_rx *rx);

/* The peer's flags, cleared: take them first, then look, so that a later request is not lost. One load if there are none. */
uint32_t ring_tx_take_attention(struct ring_tx *tx);
uint32_t ring_rx_take_attention(struct ring_rx *rx);
/* The halves of it, for who must note what was asked before another thread can find the flag gone. */
uint32_t ring_tx_attention(const struct ring_tx *tx);
uint32_t ring_rx_attention(const struct ring_rx *rx);
void ring_tx_clear_attention(struct ring_tx *tx, uint32_t flags);
void ring_rx_clear_attention(struct ring_rx *rx, uint32_t flags);
/* Taken, but what it asks cannot be done just now: set again. */
void ring_tx_keep_attention(struct ring_tx *tx, uint32_t flags);

#endif
