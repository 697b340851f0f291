/* SPDX-License-Identifier: MIT */
/*
 * A peer that writes whatever it likes into the control words while we send and receive. Rings and control words are heap
 * blocks of their exact size here, so a sanitizer sees the first byte outside. Input: a program of steps.
 */
#include <string.h>

#include "ringbuf/lane.h"
#include "ringbuf/ring.h"
#include "ringbuf/wake.h"
#include "tests/fuzz/fuzz.h"

enum { RING = 4096, OVER = OVERFLOW_BYTES(RING), BOTH = RING + OVER };

enum step {
	SET_WORD,	/* any eight bytes of the control words become anything */
	SET_TAIL,	/* the tail that the receiver sees, relative to its head */
	SET_HEAD,	/* the head that the sender sees, relative to its tail */
	SET_EXPRESS,	/* the express line claims a position near the receiver's */
	SET_MOVE,	/* a tail with any moves in it, and a place of the move near the receiver's positions */
	READ,
	PEEK,
	WRITE,
	OVERFLOW,	/* the sender moves, as when its ring is full */
	SLEEP_RX,
	SLEEP_TX,
	LANES,
	NR_STEPS
};

struct end {
	struct ring_tx tx;
	struct ring_rx rx;
	struct lane_front *tx_front, *rx_front;
	struct lane_ctl *tx_ctl, *rx_ctl;
	uint8_t *tx_data, *rx_data, *tx_over, *rx_over;
};

static void end_open(struct end *e)
{
	e->tx_front = aligned_alloc(sizeof(*e->tx_front), sizeof(*e->tx_front));
	e->rx_front = aligned_alloc(sizeof(*e->rx_front), sizeof(*e->rx_front));
	e->tx_ctl = aligned_alloc(SEGMENT_LINE, sizeof(*e->tx_ctl));
	e->rx_ctl = aligned_alloc(SEGMENT_LINE, sizeof(*e->rx_ctl));
	e->tx_data = malloc(RING);
	e->rx_data = malloc(RING);
	e->tx_over = malloc(OVER);
	e->rx_over = malloc(OVER);
	fuzz_check(e->tx_front && e->rx_front && e->tx_ctl && e->rx_ctl && e->tx_data && e->rx_data && e->tx_over && e->rx_over);
	memset(e->tx_front, 0, sizeof(*e->tx_front));
	memset(e->rx_front, 0, sizeof(*e->rx_front));
	memset(e->tx_ctl, 0, sizeof(*e->tx_ctl));
	memset(e->rx_ctl, 0, sizeof(*e->rx_ctl));
	memset(e->rx_data, 7, RING);
	memset(e->rx_over, 9, OVER);
	ring_tx_init(&e->tx, e->tx_front, e->tx_ctl, e->tx_data, e->tx_over, RING);
	ring_rx_init(&e->rx, e->rx_front, e->rx_ctl, e->rx_data, e->rx_over, RING);
	ring_tie(&e->tx, &e->rx);
	e->tx.bells.bell_fd = -1;
	e->rx.bells.bell_fd = -1;
}

static void end_close(struct end *e)
{
	free(e->tx_front);
	free(e->rx_front);
	free(e->tx_ctl);
	free(e->rx_ctl);
	free(e->tx_data);
	free(e->rx_data);
	free(e->tx_over);
	free(e->rx_over);
}

static void check_read(struct end *e, size_t len)
{
	uint64_t head = e->rx.head_pos;
	uint8_t *buf = malloc(len ? len : 1);
	ssize_t n;

	fuzz_check(buf);
	n = ring_read(&e->rx, buf, len);
	fuzz_check(n == -EPROTO || (n >= 0 && (size_t)n <= len && n <= BOTH));
	fuzz_check(e->rx.head_pos == head + (uint64_t)(n > 0 ? n : 0));
	free(buf);
}

static void check_peek(struct end *e, size_t len)
{
	ssize_t n = ring_rx_avail_min(&e->rx, len);
	const void *from;
	size_t piece;
	uint8_t *buf;

	fuzz_check(n == -EPROTO || (n >= 0 && n <= BOTH));
	if (n <= 0)
		return;
	len = len < (size_t)n ? len : (size_t)n;
	buf = malloc(len ? len : 1);
	fuzz_check(buf);
	ring_get(&e->rx, e->rx.head_pos, buf, len);
	piece = len / 2;
	from = ring_peek(&e->rx, e->rx.head_pos + len / 2, &piece);
	fuzz_check(piece <= len / 2);
	memcpy(buf, from, piece);
	free(buf);
}

static void check_write(struct end *e, size_t len)
{
	uint64_t tail = e->tx.tail_pos;
	uint8_t *buf = calloc(1, len ? len : 1);
	ssize_t n, queued;

	fuzz_check(buf);
	n = ring_write(&e->tx, buf, len);
	fuzz_check(n == -EPROTO || (n >= 0 && (size_t)n <= len && n <= BOTH));
	fuzz_check(e->tx.tail_pos == tail + (uint64_t)(n > 0 ? n : 0));
	if (n > 0)
		ring_tx_notify(&e->tx);
	queued = ring_tx_queued(&e->tx);
	fuzz_check(queued == -EPROTO || (queued >= 0 && queued <= BOTH));
	free(buf);
}

static void check_lanes(struct end *e)
{
	uint64_t at;
	uint32_t seq = lane_announced(e->rx_ctl, &at);

	if (seq)
		lane_voided(e->rx_ctl, seq);
	lane_acked(e->tx_ctl, 1);
}

static void run_step(struct end *e, enum step step, uint64_t a, uint64_t b)
{
	uint8_t *words;

	switch (step) {
	case SET_WORD:
		words = (uint8_t *)(a & 1 ? e->rx_ctl : e->tx_ctl);
		if (a & 2)
			memcpy(words + a / 4 % (sizeof(struct lane_ctl) / 8) * 8, &b, 8);
		else
			memcpy((uint8_t *)e->rx_front + a / 4 % (sizeof(struct lane_front) / 8) * 8, &b, 8);
		break;
	case SET_TAIL:
		store_relaxed(&e->rx_front->tail_pos.peer_word, e->rx.head_pos + b);
		break;
	case SET_HEAD:
		store_relaxed(&e->tx_ctl->rx.head_pos.peer_word, e->tx.tail_pos - b);
		break;
	case SET_EXPRESS:
		store_relaxed(&e->rx_front->tail_pos.peer_word, e->rx.head_pos + (a & 63));
		store_relaxed(&e->rx_front->express_mark.peer_word, EXPRESS_MARK(e->rx.head_pos + (a & 63), b & 31));
		break;
	case SET_MOVE:
		store_relaxed(&e->rx_ctl->tx_state.moved_at.peer_word, e->rx.head_pos + a % (2 * RING));
		store_relaxed(&e->rx_front->tail_pos.peer_word, (e->rx.head_pos + b % (2 * BOTH)) ^ b >> 32 << TAIL_POS_BITS);
		break;
	case READ:
		check_read(e, a % (2 * BOTH));
		break;
	case PEEK:
		check_peek(e, a % (2 * BOTH));
		break;
	case WRITE:
		check_write(e, a % (2 * RING));
		break;
	case OVERFLOW:
		ring_tx_overflow(&e->tx);
		break;
	case SLEEP_RX:
		if (!ring_rx_sleep_begin(&e->rx))
			ring_rx_sleep_end(&e->rx, a & 1);
		break;
	case SLEEP_TX:
		if (!ring_tx_sleep_begin(&e->tx, a % RING))
			ring_tx_sleep_end(&e->tx, a & 1);
		break;
	default:
		check_lanes(e);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes in = { data, size };
	struct end e = { 0 };

	end_open(&e);
	while (in.left) {
		enum step step = (enum step)(fuzz_take(&in, 1) % NR_STEPS);
		uint64_t a = fuzz_take(&in, 2), b = fuzz_take(&in, 8);

		run_step(&e, step, a, b);
	}
	end_close(&e);
	return 0;
}

size_t fuzz_seed(unsigned int nr, uint8_t out[FUZZ_INPUT_MAX])
{
	static const struct { uint8_t step; uint16_t a; uint64_t b; } seeds[][8] = {
		{ { SET_TAIL, 0, 100 }, { READ, 50, 0 }, { PEEK, 50, 0 }, { READ, 50, 0 }, { READ, 50, 0 } },
		{ { WRITE, 4000, 0 }, { SET_HEAD, 0, 0 }, { WRITE, 4096, 0 }, { SET_HEAD, 0, 4096 }, { SLEEP_TX, 5, 0 } },
		{ { SET_EXPRESS, 8, 8 }, { READ, 8, 0 }, { SET_EXPRESS, 32, 32 }, { READ, 3, 0 }, { READ, 40, 0 } },
		{ { SET_TAIL, 0, 4096 }, { READ, 8000, 0 }, { SET_TAIL, 0, 4097 }, { READ, 1, 0 }, { SLEEP_RX, 1, 0 } },
		{ { SET_MOVE, 100, UINT64_C(1) << 32 | 5000 }, { PEEK, 2000, 0 }, { READ, 99, 0 }, { READ, 60000, 0 },
		  { SET_MOVE, 0, UINT64_C(2) << 32 | 60 }, { READ, 60, 0 } },
		{ { WRITE, 4096, 0 }, { OVERFLOW, 0, 0 }, { WRITE, 8000, 0 }, { SET_HEAD, 0, 4000 }, { WRITE, 8000, 0 },
		  { SET_HEAD, 0, 0 }, { WRITE, 8000, 0 }, { OVERFLOW, 0, 0 } },
		{ { SLEEP_RX, 0, 0 }, { SLEEP_TX, 1, 0 }, { LANES, 0, 0 }, { SET_WORD, 97, 1 }, { LANES, 0, 0 } },
	};
	size_t size = 0;

	if (nr >= sizeof(seeds) / sizeof(seeds[0]))
		return 0;
	for (int i = 0; i < 8; i++) {
		out[size] = seeds[nr][i].step;
		memcpy(out + size + 1, &seeds[nr][i].a, 2);
		memcpy(out + size + 3, &seeds[nr][i].b, 8);
		size += 11;
	}
	return size;
}
