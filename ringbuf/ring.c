/* SPDX-License-Identifier: MIT */
/* The ring's cold half: starting at position 0, taking over from a dead holder, reading the peer's position. */
#include "ringbuf/ring.h"

static void bells_init(struct ring_bells *bells)
{
	memset(bells, 0, sizeof(*bells));
	bells->bell_fd = -1;
}

void ring_tx_init(struct ring_tx *tx, struct lane_ctl *ctl, void *data, uint32_t ring_bytes)
{
	memset(tx, 0, sizeof(*tx));
	tx->data = data;
	tx->ctl = ctl;
	tx->mask = ring_bytes - 1;
	bells_init(&tx->bells);
}

void ring_rx_init(struct ring_rx *rx, struct lane_ctl *ctl, const void *data, uint32_t ring_bytes)
{
	memset(rx, 0, sizeof(*rx));
	rx->data = data;
	rx->ctl = ctl;
	rx->mask = ring_bytes - 1;
	bells_init(&rx->bells);
}

/*
 * The order bytes, private position, published position leaves one state to mend: the private position is ahead, and
 * the bytes before it are complete. Published words are never read back, since the peer could have written them.
 */
void ring_tx_recover(struct ring_tx *tx)
{
	peer_publish_u64(&tx->ctl->tx.tail_pos, tx->tail_pos);
	bell_ring(tx->bells.bell_fd, &tx->bells.peer);
}

void ring_rx_recover(struct ring_rx *rx)
{
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
	return 0;
}

/* Pairs with ring_publish(): the bytes before the tail are there. A tail may not go back, nor pass a full ring. */
int ring_rx_refresh(struct ring_rx *rx)
{
	uint64_t tail = peer_read_u64(&rx->ctl->tx.tail_pos);

	if (unlikely(!pos_within(tail, rx->tail_seen, rx->head_pos + rx->mask + 1)))
		return -EPROTO;
	rx->tail_seen = tail;
	return 0;
}
