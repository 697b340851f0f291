/* SPDX-License-Identifier: MIT */
/* A lane whose bytes are those of one known stream, in either of its rings. */
#ifndef RINGWAY_TESTS_OVERFLOW_FIXTURE_H
#define RINGWAY_TESTS_OVERFLOW_FIXTURE_H

#include "ring_fixture.h"

#define SMALL FIXTURE_RING_BYTES
#define OVER OVERFLOW_BYTES(FIXTURE_RING_BYTES)

/* Byte i of the stream, so that a lost, doubled or swapped byte shows at once. */
static inline uint8_t stream_byte(uint64_t i)
{
	return (uint8_t)((i * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}

/* Writes the bytes of the stream that belong to the sender's positions; what fitted. */
static inline size_t put(struct pair *pair, size_t len)
{
	static uint8_t bytes[SMALL + OVER];
	size_t done = 0;
	ssize_t n = 1;

	for (size_t i = 0; i < len; i++)
		bytes[i] = stream_byte(pair->creator.tx.tail_pos + i);
	while (done < len && n > 0) {
		n = ring_write(&pair->creator.tx, bytes + done, len - done);
		assert_true(n >= 0);
		done += (size_t)n;
	}
	return done;
}

/* Reads up to `len` bytes and checks each; how many there were. */
static inline size_t take(struct pair *pair, size_t len)
{
	static uint8_t bytes[2 * (SMALL + OVER)];
	uint64_t pos = pair->attacher.rx.head_pos;
	ssize_t n = ring_read(&pair->attacher.rx, bytes, len);

	assert_true(n >= 0);
	for (ssize_t i = 0; i < n; i++)
		assert_int_equal(bytes[i], stream_byte(pos + (uint64_t)i));
	return (size_t)n;
}

static inline bool sends_to(const struct pair *pair, int which)
{
	return pair->creator.tx.data == pair->creator.tx.area[which].data;
}

/* `before` bytes in the small ring, then so many in the other one. */
static inline struct pair *moved(uint64_t start, size_t before, size_t after)
{
	struct pair *pair = pair_open(SMALL);

	pair_start_at(pair, start);
	assert_int_equal(put(pair, before), before);
	assert_int_equal(ring_tx_overflow(&pair->creator.tx), before != 0);
	assert_int_equal(put(pair, after), after);
	return pair;
}

#endif
