/* SPDX-License-Identifier: MIT */
/*
 * The overflow ring: what a lane does when its ring is full and the receiver does not read.
 *
 * The ring is small, so that it stays in the caches. A kernel's socket takes megabytes before it says "full", and there are programs
 * that rely on it: both ends write much before they read. So each lane has a second ring, sixteen times as large, whose pages exist only
 * once they are touched. A sender that finds the small ring full moves to the overflow ring at its tail, and moves back when
 * it finds everything taken. Positions go on; a byte's position and the last move tell in which of the rings it lies.
 *
 * A move is made under the lane's lock: the position into the sender's line (moved_at), then `last_move` in one store, which is what
 * counts if the holder dies, then what follows from it (ring_tx_place). The next published tail says by its top bits, a count of
 * moves modulo 4, that there was one. A way back needs no position: it is made where head and tail meet, so for a receiver that
 * reads of it that place is its own head. It may find a way there and back at once, in that order only, since no way back is made before
 * it has taken everything. So at most one place at which the rings change lies among the unread bytes, and it is where the bytes
 * pass from the small ring to the overflow ring.
 *
 * The pages of the overflow ring go back when a receiver that has taken everything is about to sleep. It says that it is trimming, and the
 * sender, before it writes there, says up to where it will: each looks at the other's word behind a fence, so one of them gives
 * way. A sender that has sent nothing since then finds everything taken, and goes on in the small ring.
 *
 * Not done: one large ring of which only a part is used while little is unread. The sender would have to tell of each place at which it
 * goes round early, which is the same message more often.
 */
#include <sys/mman.h>

#include "ringbuf/ring.h"
#include "ringbuf/sys.h"

#define GIFT_TRIES 10000 /* a trim is one system call */

static unsigned ring_of(uint64_t move)
{
	return move >> TAIL_POS_BITS & 1 ? RING_OVERFLOW : RING_SMALL;
}

/*
 * How far ahead of `pos` the last move lies: 0 if it is behind. What lies between is in the small ring, and never more than that; a
 * move that is 2^62 bytes behind looks the same, so it is asked only while one is on its way or the holder of a lane has died.
 */
static uint64_t ahead(uint64_t move, uint64_t pos, const struct ring_area *area)
{
	uint64_t distance = (move - pos) & TAIL_POS_MASK;

	return ring_of(move) == RING_OVERFLOW && distance <= area[RING_SMALL].mask + 1 ? distance : 0;
}

/*
 * ---- Sending ----
 */

void ring_tx_place(struct ring_tx *tx)
{
	const struct ring_area *area = &tx->area[ring_of(tx->last_move)];
	uint64_t untaken = ahead(tx->last_move, tx->head_seen, tx->area);

	tx->data = area->data;
	tx->mask = area->mask;
	tx->moves = tx->last_move & ~TAIL_POS_MASK;
	tx->moving = untaken != 0;
	/* Nothing of the overflow ring is the sender's before it has claimed it. */
	tx->end_pos = ring_of(tx->last_move) == RING_OVERFLOW ? tx->tail_pos : tx->head_seen + area->mask + 1;
}

void ring_tx_unclaim(struct ring_tx *tx)
{
	if (ring_of(tx->last_move) != RING_OVERFLOW)
		return;
	tx->end_pos = tx->tail_pos;
	peer_publish_u64(&tx->ctl->tx_state.claimed, tx->tail_pos);
}

/* Pairs with ring_rx_trim(). What is claimed is what will be sent: a claim that stands keeps the receiver from trimming. */
static void claim(struct ring_tx *tx, size_t want)
{
	uint64_t from = tx->head_seen + ahead(tx->last_move, tx->head_seen, tx->area);
	uint64_t room = from + tx->mask + 1 - tx->tail_pos;

	tx->end_pos = tx->tail_pos + (room < want ? room : want);
	peer_publish_u64(&tx->ctl->tx_state.claimed, tx->end_pos);
	fence_full();
	if (peer_read_u32(&tx->ctl->rx_state.trimming))
		ring_tx_unclaim(tx);
}

/* Pairs with ring_rx_moved(), by way of the next tail. */
static void tx_move(struct ring_tx *tx)
{
	uint64_t moves = (tx->last_move & ~TAIL_POS_MASK) + TAIL_POS_MASK + 1;

	peer_publish_u64(&tx->ctl->tx_state.moved_at, tx->tail_pos);
	store_unlocked(&tx->last_move, moves | (tx->tail_pos & TAIL_POS_MASK));
	ring_tx_place(tx);
}

bool ring_tx_overflow(struct ring_tx *tx)
{
	/* At the place of the way back everything is taken. Moves without a byte between them could come to four, which is as if to none. */
	if (!ring_tx_spare(tx) || !((tx->last_move ^ tx->tail_pos) & TAIL_POS_MASK))
		return false;
	tx_move(tx);
	return true;
}

/*
 * In the overflow ring the room that is told is never more than what was asked for: so the sender looks at the head at each message,
 * finds the moment at which it can go back, and does not go through the whole ring for nothing.
 */
ssize_t ring_tx_room_slow(struct ring_tx *tx, size_t want)
{
	if (unlikely(ring_tx_refresh(tx) < 0))
		return -EPROTO;
	if (ring_of(tx->last_move) == RING_OVERFLOW) {
		if (tx->head_seen == tx->tail_pos)
			tx_move(tx);
		else
			claim(tx, want);
	}
	return (ssize_t)(tx->end_pos - tx->tail_pos);
}

uint64_t ring_tx_room_now(const struct ring_tx *tx)
{
	uint64_t tail = load_unlocked(&tx->tail_pos), head = peer_read_u64(&tx->ctl->rx.head_pos), move, used, size;

	/* A tail behind a move is never seen without the move. */
	fence_acquire();
	move = load_unlocked(&tx->last_move);
	/* The end of it is told like room. */
	if (ring_of(move) == RING_OVERFLOW && peer_read_u32(&tx->ctl->rx_state.trimming))
		return 0;
	size = tx->area[ring_of(move)].mask + 1;
	used = tail - head - ahead(move, head, tx->area);
	return used > size ? size : size - used;
}

/* Whatever the sender has moved, what is unread and before the last move lies in the small ring. */
const void *ring_tx_peek(const struct ring_tx *tx, uint64_t pos, size_t *len)
{
	uint64_t before = ahead(tx->last_move, pos, tx->area);
	const struct ring_area *area = &tx->area[before ? RING_SMALL : ring_of(tx->last_move)];
	uint64_t straight = area->mask + 1 - (pos & area->mask);

	if (before && before < straight)
		straight = before;
	if (*len > straight)
		*len = straight;
	return area->data + (pos & area->mask);
}

/* Pairs with ring_rx_trim(), as claim() does: what is claimed is not trimmed any more. */
bool ring_tx_gift_begin(struct ring_tx *tx, uint64_t bytes)
{
	uint64_t size = tx->area[RING_OVERFLOW].mask + 1, unread;

	if (ring_tx_refresh(tx) < 0)
		return false;
	unread = tx->tail_pos - tx->head_seen;
	if (unread > size || bytes > size - unread)
		return false;
	peer_publish_u64(&tx->ctl->tx_state.claimed, tx->tail_pos + bytes);
	fence_full();
	for (int i = 0; peer_read_u32(&tx->ctl->rx_state.trimming); i++) {
		if (i == GIFT_TRIES)
			return false;
		sys_call0(SYS_sched_yield);
	}
	return true;
}

static void *gift(const struct ring_area *area, uint64_t pos, size_t *len)
{
	uint64_t straight = area->mask + 1 - (pos & area->mask);

	if (*len > straight)
		*len = straight;
	return area->data + (pos & area->mask);
}

void *ring_tx_gift(const struct ring_tx *tx, uint64_t pos, size_t *len)
{
	return gift(&tx->area[RING_OVERFLOW], pos, len);
}

const void *ring_rx_gift(const struct ring_rx *rx, uint64_t pos, size_t *len)
{
	return gift(&rx->area[RING_OVERFLOW], pos, len);
}

/*
 * ---- Receiving ----
 */

/* How many of the bytes from `pos` on were spilled. */
static uint64_t spilled(const struct ring_rx *rx, uint64_t pos)
{
	return unlikely(rx->bells.far) && (int64_t)(rx->spill_pos - pos) > 0 ? rx->spill_pos - pos : 0;
}

void ring_rx_place(struct ring_rx *rx)
{
	const struct ring_area *area;

	if (unlikely(spilled(rx, rx->head_pos))) {
		rx->moving = true;
		return;
	}
	rx->moving = ahead(rx->last_move, rx->head_pos, rx->area) != 0;
	area = &rx->area[rx->moving ? RING_SMALL : ring_of(rx->last_move)];
	rx->data = area->data;
	rx->mask = area->mask;
	rx->moves = rx->last_move & ~TAIL_POS_MASK;
}

/*
 * A tail with new bytes before it, after a move that this tail is the first to tell of or that still lies ahead. Nothing here is
 * believed: each part has to lie within what its ring can hold, and only unread bytes may change rings. The
 * sender cannot overwrite moved_at meanwhile: it would first have to go back, and we have not taken everything.
 */
int ring_rx_moved(struct ring_rx *rx, uint64_t tail, uint64_t moves)
{
	uint64_t small = rx->area[RING_SMALL].mask + 1, at = rx->head_pos, size;
	bool drained = rx->tail_seen == rx->head_pos;

	if (rx->moving)
		ring_rx_place(rx);
	if (unlikely(spilled(rx, rx->head_pos)))
		return moves == rx->moves && pos_within(tail, rx->tail_seen, rx->spill_pos + small) ? 0 : -EPROTO;
	if (moves == rx->moves) {
		size = rx->area[ring_of(moves)].mask + 1;
		at += ahead(rx->last_move, rx->head_pos, rx->area);
		return pos_within(tail, rx->tail_seen, at + size) ? 0 : -EPROTO;
	}
	if (ring_of(moves) == RING_OVERFLOW) {
		store_relaxed(&rx->overflowed, 1);
		at = peer_read_u64(&rx->ctl->tx_state.moved_at);
		if (!pos_within(at, rx->tail_seen, rx->head_pos + small))
			return -EPROTO;
	}
	size = rx->area[ring_of(moves)].mask + 1;
	/* Back, or there again after it: not before everything was taken. */
	if ((!drained && (ring_of(moves) == RING_SMALL || ring_of(rx->moves) == RING_OVERFLOW)) || !pos_within(tail, at, at + size))
		return -EPROTO;
	store_unlocked(&rx->last_move, moves | (at & TAIL_POS_MASK));
	ring_rx_place(rx);
	return 0;
}

/* Until the last move is behind the head: what is before it lies in the small ring, the rest in the overflow ring. */
const void *ring_peek_moving(const struct ring_rx *rx, uint64_t pos, size_t *len)
{
	uint64_t before = ahead(rx->last_move, pos, rx->area), spill = spilled(rx, pos);
	bool small = rx->bells.far ? !spill : before != 0;
	const struct ring_area *area = &rx->area[small ? RING_SMALL : RING_OVERFLOW];
	uint64_t straight = area->mask + 1 - (pos & area->mask);

	if (before && before < straight)
		straight = before;
	if (spill && spill < straight)
		straight = spill;
	if (*len > straight)
		*len = straight;
	return area->data + (pos & area->mask);
}

void ring_get_moving(const struct ring_rx *rx, uint64_t pos, void *buf, size_t len)
{
	uint8_t *to = buf;

	while (len) {
		size_t piece = len;
		const void *from = ring_peek_moving(rx, pos, &piece);

		memcpy(to, from, piece);
		to += piece;
		pos += piece;
		len -= piece;
	}
}

void ring_rx_trim(struct ring_rx *rx, int64_t now_ns)
{
	struct ring_area *area = &rx->area[RING_OVERFLOW];

	if (!ring_rx_may_trim(rx) || now_ns < rx->trim_after_ns)
		return;
	peer_publish_u32(&rx->ctl->rx_state.trimming, 1);
	/* Pairs with claim(). Afterwards a sender that means to write there sees the word, or we see how far it means to. */
	fence_full();
	if ((int64_t)(peer_read_u64(&rx->ctl->tx_state.claimed) - rx->head_pos) <= 0) {
		sys_madvise(area->data, area->mask + 1, MADV_REMOVE);
		store_relaxed(&rx->overflowed, 0);
		rx->trim_after_ns = now_ns + RING_TRIM_EVERY_NS;
	}
	peer_publish_u32(&rx->ctl->rx_state.trimming, 0);
	ring_rx_notify_slow(rx);
}

/* Three quarters of the small ring are unread, and there is room for them. */
bool ring_rx_may_spill(const struct ring_rx *rx)
{
	uint64_t head = load_unlocked(&rx->head_pos), small = rx->area[RING_SMALL].mask + 1, tail = ring_rx_published(rx);

	return rx->bells.far && tail - ring_rx_freed(rx) >= small - small / 4 && tail - head <= rx->area[RING_OVERFLOW].mask + 1;
}

/* The head that the engine tells is the place up to which the small ring is free (verbs_head()). */
void ring_rx_spill(struct ring_rx *rx)
{
	const struct ring_area *to = &rx->area[RING_OVERFLOW], *from = &rx->area[RING_SMALL];
	uint64_t pos, end;

	if (!ring_rx_may_spill(rx) || ring_rx_refresh(rx) < 0 || rx->tail_seen - rx->head_pos > to->mask + 1)
		return;
	end = rx->tail_seen;
	for (pos = rx->head_pos + spilled(rx, rx->head_pos); pos != end;) {
		uint64_t len = end - pos, left = from->mask + 1 - (pos & from->mask);

		if (len > left)
			len = left;
		if (len > to->mask + 1 - (pos & to->mask))
			len = to->mask + 1 - (pos & to->mask);
		memcpy(to->data + (pos & to->mask), from->data + (pos & from->mask), len);
		pos += len;
	}
	rx->express_len = 0;
	store_relaxed(&rx->overflowed, 1);
	store_unlocked(&rx->spill_pos, end);
	ring_rx_place(rx);
	ring_rx_notify_slow(rx);
}

/* A quarter was crossed, of the ring in which the bytes lay until now. */
uint32_t ring_rx_crossed(struct ring_rx *rx)
{
	if (unlikely(rx->moving))
		ring_rx_place(rx);
	return ring_rx_notify_slow(rx);
}
