/* SPDX-License-Identifier: MIT */
/* The ring's cold half: starting at position 0, taking over from a dead holder, reading the peer's position. */
#include "ringbuf/ring.h"
#include "ringbuf/sys.h"

static void bells_init(struct ring_bells *bells)
{
	memset(bells, 0, sizeof(*bells));
	bells->bell_fd = -1;
}

static int bell_make(struct ring_bells *bells)
{
	int r = bell_key(&bells->own.key);

	if (r < 0)
		return r;
	r = bell_create(bells->own.key, &bells->own.port);
	if (r < 0)
		return r;
	bells->bell_fd = r;
	return 0;
}

int ring_make_bells(struct ring_tx *tx, struct ring_rx *rx)
{
	int r = bell_make(&rx->bells);

	if (r < 0)
		return r;
	r = bell_make(&tx->bells);
	if (r < 0)
		sys_close(rx->bells.bell_fd);
	return r;
}

static void areas_init(struct ring_area area[NR_RINGS], void *data, void *overflow, uint32_t ring_bytes)
{
	area[RING_SMALL] = (struct ring_area){ data, ring_bytes - 1 };
	/* None has 0 bytes: there is no room to move to, and none that a peer could claim. */
	area[RING_OVERFLOW] = (struct ring_area){ overflow, overflow ? OVERFLOW_BYTES(ring_bytes) - UINT64_C(1) : UINT64_MAX };
}

void ring_tx_init(struct ring_tx *tx, struct lane_front *front, struct lane_ctl *ctl, void *data, void *overflow,
		  uint32_t ring_bytes)
{
	memset(tx, 0, sizeof(*tx));
	tx->front = front;
	tx->ctl = ctl;
	tx->other_pos = &tx->answered;
	areas_init(tx->area, data, overflow, ring_bytes);
	ring_tx_place(tx);
	bells_init(&tx->bells);
}

void ring_rx_init(struct ring_rx *rx, struct lane_front *front, struct lane_ctl *ctl, void *data, void *overflow,
		  uint32_t ring_bytes)
{
	memset(rx, 0, sizeof(*rx));
	rx->front = front;
	rx->ctl = ctl;
	rx->other_pos = &rx->answered;
	areas_init(rx->area, data, overflow, ring_bytes);
	ring_rx_place(rx);
	rx->pauses = RING_RELAX;
	bells_init(&rx->bells);
}

void ring_tie(struct ring_tx *tx, struct ring_rx *rx)
{
	tx->other_pos = &rx->head_pos;
	rx->other_pos = &tx->tail_pos;
}

/*
 * The order bytes, private position, published position leaves one state to mend: the private position is ahead, and
 * the bytes before it are complete. A move likewise: last_move is one store, and what follows from it may be missing. Published words are
 * never read back, since the peer could have written them.
 */
void ring_tx_recover(struct ring_tx *tx)
{
	ring_tx_place(tx);
	ring_tx_unclaim(tx);
	/* The dead may have left half an express message; a length of 0 marks none. */
	peer_publish_u64(&tx->front->express_mark, 0);
	ring_publish(tx, tx->tail_pos);
	bell_ring(tx->bells.bell_fd, &tx->bells.peer);
}

void ring_rx_recover(struct ring_rx *rx)
{
	ring_rx_place(rx);
	peer_publish_u32(&rx->ctl->rx_state.trimming, 0);
	peer_publish_u64(&rx->ctl->rx.head_pos, rx->head_pos);
	bell_ring(rx->bells.bell_fd, &rx->bells.peer);
}

/*
 * Pairs with ring_consume_to(): the receiver's copy out of the ring is done before our next copy into it. A head may not
 * go back, nor pass what we have published.
 */
int ring_tx_refresh(struct ring_tx *tx)
{
	uint64_t head = peer_read_u64(&tx->ctl->rx.head_pos);

	if (unlikely(!pos_within(head, tx->head_seen, tx->tail_pos)))
		return -EPROTO;
	tx->head_seen = head;
	if (unlikely(tx->moving || tx->moves >> TAIL_POS_BITS & 1))
		ring_tx_place(tx);
	else
		tx->end_pos = head + tx->mask + 1;
	return 0;
}

ssize_t ring_tx_room_soon(struct ring_tx *tx, size_t want)
{
	ssize_t room = ring_tx_room(tx, want), enough = (ssize_t)((tx->mask + 1) >> 2);
	uint64_t head;

	if (enough > RING_BEHIND_BYTES)
		enough = RING_BEHIND_BYTES;
	/* In the overflow ring no more room is told than was asked for. */
	for (int looks = RING_ROOM_LOOKS; looks && room >= 0 && room < enough; looks--) {
		if (tx->bells.far || tx->moves >> TAIL_POS_BITS & 1)
			break;
		head = tx->head_seen;
		cpu_relax_times(RING_ROOM_PAUSES);
		if (unlikely(ring_tx_refresh(tx) < 0))
			return -EPROTO;
		if (tx->head_seen == head)
			break;
		room = (ssize_t)ring_tx_known(tx);
	}
	return room;
}

/*
 * The unread bytes, if they are one short message that still lies beside its tail. Pairs with ring_express(): the mark is read
 * last, and names this tail only if no later message has begun to overwrite the words. A peer that writes nonsense here gives
 * us other bytes, which it could have put into the ring as well.
 */
static void rx_express(struct ring_rx *rx, uint64_t tail)
{
	struct lane_front *front = rx->front;
	uint64_t len = tail - rx->head_pos;

	rx->express_len = 0;
	if (len > LANE_EXPRESS_BYTES || peer_read_u64(&front->express_mark) != EXPRESS_MARK(tail, len))
		return;
	for (size_t i = 0; i < LANE_EXPRESS_WORDS; i++)
		rx->express[i] = load_relaxed(&front->express[i].peer_word);
	fence_acquire();
	if (load_relaxed(&front->express_mark.peer_word) != EXPRESS_MARK(tail, len))
		return;
	rx->express_pos = rx->head_pos;
	rx->express_len = (uint8_t)len;
}

/* Pairs with ring_publish(): the bytes before the tail are there. A tail may not go back, nor pass a full ring. */
int ring_rx_refresh(struct ring_rx *rx)
{
	uint64_t word = peer_read_u64(&rx->front->tail_pos);
	uint64_t tail = rx->tail_seen + ((word - rx->tail_seen) & TAIL_POS_MASK);

	/* Without a new byte there is nothing to learn, a move included: where it was made may have been overwritten by the next one. */
	if (tail == rx->tail_seen)
		return 0;
	if (unlikely((word & ~TAIL_POS_MASK) != rx->moves || rx->moving)) {
		if (ring_rx_moved(rx, tail, word & ~TAIL_POS_MASK) < 0)
			return -EPROTO;
	} else if (unlikely(!pos_within(tail, rx->tail_seen, rx->head_pos + rx->mask + 1))) {
		return -EPROTO;
	}
	rx->tail_seen = tail;
	rx->answered = load_unlocked(rx->other_pos);
	rx_express(rx, tail);
	return 0;
}

/* A pause that has caught much for its length makes the next one twice as long; one that has not is the last long one. */
static ssize_t rx_avail_behind(struct ring_rx *rx)
{
	uint32_t pauses = rx->pauses;
	ssize_t avail;

	cpu_relax_times(pauses);
	avail = ring_rx_avail(rx);
	if (avail < 4 * (ssize_t)pauses)
		rx->pauses = RING_RELAX;
	else if (pauses < RING_BEHIND_PAUSES && avail < RING_BEHIND_BYTES)
		rx->pauses = 2 * pauses;
	return avail;
}

ssize_t ring_rx_avail_soon(struct ring_rx *rx)
{
	ssize_t avail = (ssize_t)ring_rx_known(rx);

	if (avail)
		return avail;
	/* From a far peer nothing comes without a pump. */
	if (unlikely(rx->bells.far))
		return ring_rx_avail(rx);
	if (rx->caught && rx->caught < RING_BEHIND_BYTES && ring_rx_pauses(rx) > 1)
		avail = rx_avail_behind(rx);
	else
		avail = ring_rx_avail(rx);
	for (int left = RING_SOON; !avail && left > 0; left -= ring_rx_pauses(rx)) {
		ring_rx_relax(rx);
		avail = ring_rx_avail(rx);
	}
	rx->caught = avail < 0 ? 0 : avail > RING_BEHIND_BYTES ? RING_BEHIND_BYTES : (uint32_t)avail;
	return avail;
}
