/* SPDX-License-Identifier: MIT */
/*
 * The byte ring: single producer, single consumer, free-running 64-bit positions, tail - head <= size. What is inlined
 * here runs for every message; ring.c holds creation and what runs once a lap, overflow.c the second ring that takes what the first
 * has no room for, wake.h the sleeping.
 *
 * struct ring_tx and struct ring_rx are the private halves. The peer cannot reach them, but the shim keeps them in memory
 * shared with forked children, so they hold no pointer that differs between relatives (segments are mapped before the
 * fork) and their words are written in an order that survives the death of the writer: bytes, own position, published position.
 * Whoever calls holds the lane's lock; only wake.h's functions may be called without it.
 */
#ifndef RINGWAY_RINGBUF_RING_H
#define RINGWAY_RINGBUF_RING_H

#include <errno.h>
#include <string.h>
#include <sys/types.h>

#include "ringbuf/barrier.h"
#include "ringbuf/doorbell.h"
#include "ringbuf/layout.h"

/* A large copy is published in steps, so that the other side works on the first part while the rest is copied. */
#define RING_STEP_BYTES (UINT32_C(1) << 14)
/* After so many reads in a row without sleeping a receiver promises a membarrier, see WAKE_POLLING. */
#define RING_POLLING_AFTER 64
/* Pauses between two looks of a receiver that does not wait for an answer. */
#define RING_RELAX 16
/* Between two times that a lane's overflow ring is trimmed. */
#define RING_TRIM_EVERY_NS INT64_C(50000000)
/* Pauses that ring_rx_avail_soon() spends on looks at an empty ring. */
#define RING_SOON 32
/*
 * A stream is best taken from this far behind. A reader's processor fetches lines ahead of it; nearer to the sender it takes away
 * those that are about to be written, and each has to move once more. So many pauses at a time are spent on getting there.
 */
#define RING_BEHIND_BYTES 4096
#define RING_BEHIND_PAUSES 512
/* Looks of ring_tx_room_soon(), and the pauses before each. */
#define RING_ROOM_LOOKS 8
#define RING_ROOM_PAUSES 64

struct ring_tx;
struct ring_rx;

/*
 * What plays the peer's part where the peer shares no memory with us: called after a publication, and when a quarter of the ring was
 * crossed, in place of the look at the peer's wake word. Returns what ring_tx_notify_slow() does.
 */
struct ring_far {
	uint32_t (*published)(struct ring_tx *tx);
	uint32_t (*consumed)(struct ring_rx *rx);
};

/* What both halves need to wake the peer and to be woken. */
struct ring_bells {
	const struct ring_far *far; /* NULL: the peer shares our memory */
	void *engine;               /* far's */
	struct bell_address peer; /* the bell that wakes the peer's side of this lane */
	struct bell_address own;  /* of bell_fd */
	int bell_fd;              /* wakes us; -1 = none */
	_Atomic uint32_t bell_due; /* BELL_*: may bell_fd be readable? */
	_Atomic uint32_t nr_threads; /* asleep on it now, counted by themselves once they are armed; sets are not among them */
};

enum { BELL_CLEAR, BELL_MAYBE };

/* Counted where it happens, for tests and benchmarks; under the lane's lock but for wakes. */
struct ring_counts {
	_Atomic uint32_t rings;  /* bells rung at the peer */
	_Atomic uint32_t fences; /* fences paid after a publication */
	_Atomic uint32_t heavy;  /* membarriers issued */
	_Atomic uint32_t sleeps; /* times that arming found nothing to do */
};

/* A lane's two rings. */
enum { RING_SMALL, RING_OVERFLOW, NR_RINGS };

struct ring_area {
	uint8_t *data;
	uint64_t mask; /* size - 1 */
};

struct ring_tx {
	uint8_t *data;      /* of the ring into which bytes go now */
	struct lane_front *front;
	struct lane_ctl *ctl;
	uint64_t mask;      /* its size - 1 */
	uint64_t tail_pos;  /* the truth; front->tail_pos is for the peer */
	uint64_t end_pos;   /* how far the tail may go, as far as is known; in the overflow ring, as was claimed */
	uint64_t moves;     /* the top bits of a published tail */
	uint64_t head_seen; /* the last head that was read and found good */
	uint64_t answered;  /* *other_pos at the last send: has anything been received since? */
	const uint64_t *other_pos; /* the head_pos of the same end's ring_rx, in the same record */
	uint64_t last_move; /* its position below the moves: the truth, from which data, mask, moves and moving follow */
	struct ring_area area[NR_RINGS];
	bool moving;        /* the peer has not taken the bytes before the last move, as far as is known */
	struct ring_bells bells;
	struct ring_counts counts;
};

struct ring_rx {
	const uint8_t *data; /* of the ring in which the bytes from head_pos on lie */
	struct lane_front *front;
	struct lane_ctl *ctl;
	uint64_t mask;
	uint64_t head_pos;  /* the truth; ctl->rx.head_pos is for the peer */
	uint64_t tail_seen; /* the last tail that was read and found good */
	uint64_t moves;     /* the top bits of that tail */
	uint64_t answered;  /* *other_pos when something last came: has anything been sent since? */
	const uint64_t *other_pos; /* the tail_pos of the same end's ring_tx */
	uint32_t caught;    /* by the last ring_rx_avail_soon() that looked */
	uint32_t pauses;    /* before its next look at a stream */
	uint64_t express_pos; /* express[] holds the express_len bytes from here on, valid while that is head_pos */
	uint8_t express_len;
	bool moving;        /* bytes before the last move are unread, the others lie in the other ring */
	uint64_t spill_pos; /* far peer: the unread bytes before it lie in the overflow ring, see ring_rx_spill() */
	_Atomic uint32_t overflowed; /* bytes have come through the overflow ring since it was last trimmed */
	int64_t trim_after_ns;
	_Atomic uint32_t streak; /* reads since the last sleep, up to RING_POLLING_AFTER */
	uint64_t express[LANE_EXPRESS_WORDS];
	uint64_t last_move; /* as the sender's: the truth, from which data, mask, moves and moving follow */
	struct ring_area area[NR_RINGS];
	struct ring_bells bells;
	struct ring_counts counts;
};

/*
 * Both start at position 0. `data` is the lane's ring, `ring_bytes` a power of two, `overflow` a ring of OVERFLOW_BYTES(ring_bytes),
 * or NULL for a lane without one. A pair that serves one end may be tied with ring_tie(), so that each can tell an answer from a stream.
 */
void ring_tx_init(struct ring_tx *tx, struct lane_front *front, struct lane_ctl *ctl, void *data, void *overflow,
		  uint32_t ring_bytes);
void ring_rx_init(struct ring_rx *rx, struct lane_front *front, struct lane_ctl *ctl, void *data, void *overflow,
		  uint32_t ring_bytes);

void ring_tie(struct ring_tx *tx, struct ring_rx *rx);
/* The bells of an end's two lanes, both or none: 0 or -errno. */
int ring_make_bells(struct ring_tx *tx, struct ring_rx *rx);

/*
 * After a holder of the lane died in the middle: publishes our truth again and rings the peer's bell, whatever its wake word
 * says: the dead may have taken ARMED away and not rung.
 */
void ring_tx_recover(struct ring_tx *tx);
void ring_rx_recover(struct ring_rx *rx);

/* Reads the peer's position: 0, or -EPROTO where it lies (then nothing was changed). */
int ring_tx_refresh(struct ring_tx *tx);
int ring_rx_refresh(struct ring_rx *rx);

/*
 * wake.c: what follows a publication when the peer's wake word is not plain POLLING. The peer's WAKE_ATTN_* flags, and RING_UNHEARD
 * if the peer sleeps and its bell could not be rung: it is still armed, so the next publication tries again, but a caller that knows another
 * way to wake it should take that.
 */
#define RING_UNHEARD UINT32_C(16)	/* a bit that no wake word has, and never stored in one */
uint32_t ring_tx_notify_slow(struct ring_tx *tx);
uint32_t ring_rx_notify_slow(struct ring_rx *rx);
void ring_rx_enter_polling(struct ring_rx *rx);

/* overflow.c. What the inlines below call where one of the two rings is full, or bytes lie in both. */
ssize_t ring_tx_room_slow(struct ring_tx *tx, size_t want);
void ring_get_moving(const struct ring_rx *rx, uint64_t pos, void *buf, size_t len);
const void *ring_peek_moving(const struct ring_rx *rx, uint64_t pos, size_t *len);
uint32_t ring_rx_crossed(struct ring_rx *rx);
/* ... and what ring.c does: the reading of a tail that tells of a move, and the fields that follow from last_move. */
int ring_rx_moved(struct ring_rx *rx, uint64_t tail, uint64_t moves);
void ring_tx_place(struct ring_tx *tx);
void ring_rx_place(struct ring_rx *rx);

/* Size of the ring into which bytes go now. */
static inline uint64_t ring_tx_bytes(const struct ring_tx *tx)
{
	return tx->mask + 1;
}

/* The most bytes that can be unread. */
static inline uint64_t ring_rx_bytes(const struct ring_rx *rx)
{
	return rx->area[RING_SMALL].mask + rx->area[RING_OVERFLOW].mask + 2;
}

/* The most that can come without a read: a far sender has no overflow ring. */
static inline uint64_t ring_rx_comes(const struct ring_rx *rx)
{
	return rx->bells.far ? rx->area[RING_SMALL].mask + 1 : ring_rx_bytes(rx);
}

/* From a far peer: how far its ring is free, since what was before it was taken, or spilled. */
static inline uint64_t ring_rx_freed(const struct ring_rx *rx)
{
	uint64_t head = load_unlocked(&rx->head_pos), spilled = load_unlocked(&rx->spill_pos);

	return (int64_t)(spilled - head) > 0 ? spilled : head;
}

/* Bytes that ring_tx_overflow() would make room for: 0 if the lane is in its overflow ring, or that is being trimmed. */
static inline uint64_t ring_tx_spare(const struct ring_tx *tx)
{
	if (load_unlocked(&tx->last_move) >> TAIL_POS_BITS & 1 || peer_read_u32(&tx->ctl->rx_state.trimming))
		return 0;
	return tx->area[RING_OVERFLOW].mask + 1;
}

/*
 * From the next byte on the lane goes through its overflow ring, which is empty. False, and nothing done, if it does so already, or if no
 * byte has been sent since it came back. It comes back by itself, in a ring_tx_room() that finds everything taken.
 */
bool ring_tx_overflow(struct ring_tx *tx);

/* The sender's own bytes at `pos`, between head and tail, that lie in one piece: to be sent another way. */
const void *ring_tx_peek(const struct ring_tx *tx, uint64_t pos, size_t *len);

/*
 * Bytes that go back to the receiver of this lane, and are none of the lane's: they lie in its overflow ring, behind what is unread. For a sender that puts
 * nothing more into its rings. False: there is no room for so many. ring_tx_gift() says where a piece of them goes, ring_rx_gift() where it lies, each
 * as far as it lies straight.
 */
bool ring_tx_gift_begin(struct ring_tx *tx, uint64_t bytes);
void *ring_tx_gift(const struct ring_tx *tx, uint64_t pos, size_t *len);
const void *ring_rx_gift(const struct ring_rx *rx, uint64_t pos, size_t *len);

/* Of the room that was told, no more will be used. Only where less was sent than was asked for. */
void ring_tx_unclaim(struct ring_tx *tx);

/*
 * The lane's lock is held: gives the pages of the overflow ring back if everything was taken and the sender has none of it in hand. For a
 * receiver that is about to sleep. The next overflow has to pay for its pages again, so it is done only now and then by the
 * caller's clock. ring_rx_may_trim() needs no lock.
 */
void ring_rx_trim(struct ring_rx *rx, int64_t now_ns);

/*
 * Room in the ring into which bytes go now, as anybody may ask at any time: a value that may be stale at once, never one that is out of
 * bounds. A peer that lies makes it the whole ring.
 */
uint64_t ring_tx_room_now(const struct ring_tx *tx);

/* Position of the published tail, modulo 2^62, for who holds no lock: it differs when something has come. */
static inline uint64_t ring_rx_published(const struct ring_rx *rx)
{
	return peer_read_u64(&rx->front->tail_pos) & TAIL_POS_MASK;
}

/* Bytes before it that are unread, or anything else up to 2^62 where the peer lies. */
static inline uint64_t ring_rx_unread(const struct ring_rx *rx)
{
	return (ring_rx_published(rx) - load_unlocked(&rx->head_pos)) & TAIL_POS_MASK;
}

/*
 * From a far peer, lane's lock held: moves what is unread into the overflow ring, so that the peer may go on. For an end that reads nothing because it is
 * itself waiting for room, as its peer may be. Nothing where that is full, or too little is unread to be worth it.
 */
void ring_rx_spill(struct ring_rx *rx);
bool ring_rx_may_spill(const struct ring_rx *rx);

static inline bool ring_rx_may_trim(const struct ring_rx *rx)
{
	/* Without barriers the process may be caged, by a filter that kills for what it does not know. */
	return unlikely(load_relaxed(&((struct ring_rx *)rx)->overflowed)) && !ring_rx_unread(rx) && barrier_available();
}

/* At most 16 bytes: two overlapping moves instead of a call. */
static inline void ring_copy_short(uint8_t *to, const uint8_t *from, size_t len)
{
	if (len >= 8) {
		uint64_t first, last;

		memcpy(&first, from, 8);
		memcpy(&last, from + len - 8, 8);
		memcpy(to, &first, 8);
		memcpy(to + len - 8, &last, 8);
	} else if (len >= 4) {
		uint32_t first, last;

		memcpy(&first, from, 4);
		memcpy(&last, from + len - 4, 4);
		memcpy(to, &first, 4);
		memcpy(to + len - 4, &last, 4);
	} else if (len) {
		uint8_t first = from[0], middle = from[len / 2], last = from[len - 1];

		to[0] = first;
		to[len / 2] = middle;
		to[len - 1] = last;
	}
}

static inline void ring_copy(void *to, const void *from, size_t len)
{
	if (likely(len <= 16))
		ring_copy_short(to, from, len);
	else
		memcpy(to, from, len);
}

/*
 * ---- Sending ----
 */

/* Free bytes in the ring into which bytes go now, as far as the last look at the peer's line has told. */
static inline uint64_t ring_tx_known(const struct ring_tx *tx)
{
	return tx->end_pos - tx->tail_pos;
}

/*
 * Free bytes in the ring into which bytes go now (which this may change). Reads the peer's line only if fewer than `want` are known to
 * be free; the result may be smaller or larger than `want`. -EPROTO where the peer's head lies.
 */
static inline ssize_t ring_tx_room(struct ring_tx *tx, size_t want)
{
	uint64_t room = ring_tx_known(tx);

	if (likely(room >= want))
		return (ssize_t)room;
	return ring_tx_room_slow(tx, want);
}

/*
 * The same for a sender that may wait: where the ring is nearly full, and while the peer takes, some microseconds for enough room to go on for a
 * while, since each look takes the line away to which the peer stores its head.
 */
ssize_t ring_tx_room_soon(struct ring_tx *tx, size_t want);

/* Bytes that the peer has not taken yet, as far as it says (SIOCOUTQ). */
static inline ssize_t ring_tx_queued(struct ring_tx *tx)
{
	if (unlikely(ring_tx_refresh(tx) < 0))
		return -EPROTO;
	return (ssize_t)(tx->tail_pos - tx->head_seen);
}

/* Copies to `pos`, which lies in the free part that ring_tx_room() reported. Not published. The next position. */
static inline uint64_t ring_put(struct ring_tx *tx, uint64_t pos, const void *buf, size_t len)
{
	uint64_t off = pos & tx->mask;
	uint64_t straight = tx->mask + 1 - off;

	if (likely(len <= straight)) {
		ring_copy(tx->data + off, buf, len);
	} else {
		memcpy(tx->data + off, buf, straight);
		memcpy(tx->data, (const uint8_t *)buf + straight, len - straight);
	}
	return pos + len;
}

/*
 * Is this send the first one since something was received? Then the peer is most likely polling for it. In a stream it is not:
 * there it has older bytes to take, and the fewer stores go to the line that it polls, the better.
 */
static inline bool ring_tx_is_answer(struct ring_tx *tx)
{
	uint64_t other = load_unlocked(tx->other_pos);

	if (other == tx->answered)
		return false;
	tx->answered = other;
	return true;
}

/*
 * Puts a short message beside the tail that is about to be published, so that a receiver that waits for it finds both in the
 * one line that it polls. The bytes are in the ring as well; this is only a copy that arrives sooner. The mark goes
 * first and the tail last, so a receiver that finds them equal has seen no byte of a later message (rx_express()).
 */
static inline void ring_express(struct ring_tx *tx, uint64_t end, const void *buf, size_t len)
{
	struct lane_front *front = tx->front;
	uint64_t words[LANE_EXPRESS_WORDS] = { 0 };

	store_relaxed(&front->express_mark.peer_word, EXPRESS_MARK(end, len));
	fence_release();
	ring_copy_short((uint8_t *)words, buf, len);
	for (size_t i = 0; i < LANE_EXPRESS_WORDS; i++)
		store_relaxed(&front->express[i].peer_word, words[i]);
}

/* Everything before `pos` is the peer's from now on. Pairs with ring_rx_refresh(). Follow it with ring_tx_notify(). */
static inline void ring_publish(struct ring_tx *tx, uint64_t pos)
{
	store_unlocked(&tx->tail_pos, pos);
	peer_publish_u64(&tx->front->tail_pos, (pos & TAIL_POS_MASK) | tx->moves);
}

/*
 * Wakes the receiver if it sleeps. One load where it polls: the fence between our publication and that load is the
 * receiver's membarrier (ring_rx_sleep_begin). The peer's WAKE_ATTN_* flags, most often 0, which stay set until
 * ring_tx_take_attention(); RING_UNHEARD.
 */
static inline uint32_t ring_tx_notify(struct ring_tx *tx)
{
	fence_compiler();
	if (likely(load_relaxed(&tx->ctl->rx_state.wake.peer_word) == WAKE_POLLING && barrier_registered()))
		return 0;
	return ring_tx_notify_slow(tx);
}

/*
 * Sends as much of `buf` as there is room for: bytes taken, 0 when full, -EPROTO. Published; the caller still has to notify
 * the receiver. Of a large copy the first step is notified here, so that a sleeper wakes while the rest is copied.
 */
static inline ssize_t ring_write(struct ring_tx *tx, const void *buf, size_t len)
{
	ssize_t room = ring_tx_room(tx, len);
	size_t done = 0;

	if (unlikely(room < 0))
		return room;
	if (len > (size_t)room)
		len = (size_t)room;
	if (likely(len <= RING_STEP_BYTES)) {
		uint64_t end = ring_put(tx, tx->tail_pos, buf, len);

		if (len <= LANE_EXPRESS_BYTES && ring_tx_is_answer(tx))
			ring_express(tx, end, buf, len);
		if (likely(len))
			ring_publish(tx, end);
		return (ssize_t)len;
	}
	while (done < len) {
		size_t step = len - done < RING_STEP_BYTES ? len - done : RING_STEP_BYTES;

		ring_publish(tx, ring_put(tx, tx->tail_pos, (const uint8_t *)buf + done, step));
		if (!done)
			ring_tx_notify(tx);
		done += step;
	}
	return (ssize_t)len;
}

/*
 * ---- Receiving ----
 */

/* Bytes to read, as far as the last look at the peer's line has told. */
static inline uint64_t ring_rx_known(const struct ring_rx *rx)
{
	return rx->tail_seen - rx->head_pos;
}

/*
 * Bytes to read. Reads the peer's line only if none are known; 0 = empty now, -EPROTO where the peer's tail lies.
 */
static inline ssize_t ring_rx_avail(struct ring_rx *rx)
{
	uint64_t avail = ring_rx_known(rx);

	if (likely(avail))
		return (ssize_t)avail;
	if (unlikely(ring_rx_refresh(rx) < 0))
		return -EPROTO;
	return (ssize_t)ring_rx_known(rx);
}

/* As far as is known. */
static inline bool ring_rx_is_drained(const struct ring_rx *rx)
{
	return rx->tail_seen == rx->head_pos;
}

/* The same, but looks at the peer's line anyway unless `want` bytes are known (MSG_WAITALL, FIONREAD). */
static inline ssize_t ring_rx_avail_min(struct ring_rx *rx, size_t want)
{
	uint64_t avail = ring_rx_known(rx);

	if (avail >= want)
		return (ssize_t)avail;
	if (unlikely(ring_rx_refresh(rx) < 0))
		return -EPROTO;
	return (ssize_t)ring_rx_known(rx);
}

/* Copies from `pos`, which lies in the part that ring_rx_avail() reported. Nothing is consumed. The next position. */
static inline uint64_t ring_get(const struct ring_rx *rx, uint64_t pos, void *buf, size_t len)
{
	uint64_t off = pos & rx->mask;
	uint64_t straight = rx->mask + 1 - off;

	if (unlikely(rx->moving))
		ring_get_moving(rx, pos, buf, len);
	else if (pos == rx->express_pos && len <= rx->express_len)
		ring_copy_short(buf, (const uint8_t *)rx->express, len);
	else if (likely(len <= straight)) {
		ring_copy(buf, rx->data + off, len);
	} else {
		memcpy(buf, rx->data + off, straight);
		memcpy((uint8_t *)buf + straight, rx->data, len - straight);
	}
	return pos + len;
}

/* The bytes at `pos` that lie in one piece: for who passes them on without a copy of its own. */
static inline const void *ring_peek(const struct ring_rx *rx, uint64_t pos, size_t *len)
{
	uint64_t off = pos & rx->mask;
	uint64_t straight = rx->mask + 1 - off;

	if (unlikely(rx->moving))
		return ring_peek_moving(rx, pos, len);
	if (*len > straight)
		*len = straight;
	return rx->data + off;
}

/*
 * Everything before `pos` is free from now on. Pairs with ring_tx_refresh(). A sender that sleeps for room is woken when
 * a quarter of the ring is crossed, not at each byte: it cannot have filled the ring without three crossings
 * still to come, so the fence and the look are paid four times a lap.
 */
static inline void ring_consume_to(struct ring_rx *rx, uint64_t pos)
{
	uint64_t crossed = (rx->head_pos ^ pos) & ~(rx->mask >> 2);

	store_unlocked(&rx->head_pos, pos);
	peer_publish_u64(&rx->ctl->rx.head_pos, pos);
	if (unlikely(crossed))
		ring_rx_crossed(rx);
	if (unlikely(load_relaxed(&rx->streak) < RING_POLLING_AFTER)) {
		count_add(&rx->streak, 1);
		if (load_relaxed(&rx->streak) == RING_POLLING_AFTER)
			ring_rx_enter_polling(rx);
	}
}

static inline void ring_consume(struct ring_rx *rx, size_t len)
{
	ring_consume_to(rx, rx->head_pos + len);
}

/*
 * Pauses between two looks at an empty ring. An end that has sent since something came expects an answer and looks again at once.
 * One that only receives lets a few messages gather: each look takes the line away from the sender, who needs it for
 * the next one.
 */
static inline int ring_rx_pauses(const struct ring_rx *rx)
{
	return load_unlocked(rx->other_pos) != rx->answered ? 1 : RING_RELAX;
}

static inline void ring_rx_relax(const struct ring_rx *rx)
{
	cpu_relax_times((uint32_t)ring_rx_pauses(rx));
}

/*
 * ring_rx_avail() for who would rather wait a moment, too short to ask a clock: a round trip between two CPUs; and in a stream, before
 * it looks, until more has come that is worth it.
 */
ssize_t ring_rx_avail_soon(struct ring_rx *rx);

/* Takes up to `len` bytes: their number, 0 when empty, -EPROTO. Fewer than `len` mean that the ring is drained by now. */
static inline ssize_t ring_read(struct ring_rx *rx, void *buf, size_t len)
{
	ssize_t avail = ring_rx_avail_min(rx, len);
	size_t done = 0;

	if (unlikely(avail < 0))
		return avail;
	if (len > (size_t)avail)
		len = (size_t)avail;
	if (likely(len <= RING_STEP_BYTES)) {
		if (likely(len))
			ring_consume_to(rx, ring_get(rx, rx->head_pos, buf, len));
		return (ssize_t)len;
	}
	while (done < len) {
		size_t step = len - done < RING_STEP_BYTES ? len - done : RING_STEP_BYTES;

		ring_consume_to(rx, ring_get(rx, rx->head_pos, (uint8_t *)buf + done, step));
		done += step;
	}
	return (ssize_t)len;
}

#endif
