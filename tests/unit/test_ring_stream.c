/* SPDX-License-Identifier: MIT */
/* What the ring does for streams of short messages: its short way, and the distance that a reader keeps. */
#include "ring_fixture.h"
#include "ringbuf/ring_short.h"

static void fill(uint8_t *buf, size_t len, unsigned seed)
{
	size_t i;

	for (i = 0; i < len; i++)
		buf[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

static void carries_short_messages_as_long_ones_are(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;
	uint8_t sent[32], got[32];
	unsigned short_writes = 0, short_reads = 0;

	(void)state;
	if (barrier_init() < 0)
		skip();
	/* More than a lap of each length: at the end of the ring, at a quarter, and before the receiver polls they do nothing. */
	for (unsigned i = 0; i < 20000; i++) {
		size_t len = 1 + i % 17;

		fill(sent, sizeof(sent), i);
		memset(got, 0, sizeof(got));
		if (ring_write_short(tx, sent, len)) {
			assert_true(len <= RING_SHORT_BYTES);
			short_writes++;
		} else {
			assert_int_equal(ring_write(tx, sent, len), len);
		}
		/* Not known yet: nobody has looked. */
		assert_false(ring_read_short(rx, got, len));
		assert_int_equal(ring_rx_avail(rx), len);
		assert_false(ring_read_short(rx, got, len + 1));
		if (ring_read_short(rx, got, len))
			short_reads++;
		else
			assert_int_equal(ring_read(rx, got, len), len);
		assert_memory_equal(got, sent, len);
		assert_int_equal(got[len], 0);
		assert_int_equal(ring_tx_queued(tx), 0);
	}
	assert_true(short_writes > 15000 && short_reads > 15000);
	pair_close(pair);
}

static void short_message_needs_room_and_a_receiver_that_polls(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;
	uint8_t bytes[FIXTURE_RING_BYTES] = { 0 };

	(void)state;
	if (barrier_init() < 0)
		skip();
	assert_false(ring_write_short(tx, bytes, 8));
	for (int i = 0; i < RING_POLLING_AFTER; i++) {
		assert_int_equal(ring_write(tx, bytes, 8), 8);
		assert_int_equal(ring_read(rx, bytes, 8), 8);
	}
	assert_true(ring_write_short(tx, bytes, 8));
	assert_false(ring_write_short(tx, bytes, 0));
	assert_false(ring_write_short(tx, bytes, RING_SHORT_BYTES + 1));
	/* What it asks for is to be seen first. */
	ring_rx_raise_attention(rx, WAKE_ATTN_WORDS);
	assert_false(ring_write_short(tx, bytes, 8));
	assert_int_equal(ring_tx_take_attention(tx), WAKE_ATTN_WORDS);
	assert_true(ring_write_short(tx, bytes, 8));
	/* In full rings. */
	while (ring_write(tx, bytes, 8) > 0)
		;
	assert_false(ring_write_short(tx, bytes, 1));
	/* An answer goes with the tail. */
	assert_int_equal(ring_read(rx, bytes, sizeof(bytes)), sizeof(bytes));
	assert_int_equal(ring_tx_queued(tx), 0);
	ring_tie(tx, &pair->creator.rx);
	assert_int_equal(ring_write(&pair->attacher.tx, bytes, 8), 8);
	assert_int_equal(ring_read(&pair->creator.rx, bytes, 8), 8);
	assert_false(ring_write_short(tx, bytes, 8));
	/* Nobody polls who is about to sleep. */
	assert_int_equal(ring_write(tx, bytes, 8), 8);
	assert_true(ring_write_short(tx, bytes, 8));
	assert_int_equal(ring_read(rx, bytes, 16), 16);
	assert_false(ring_rx_sleep_begin(rx));
	assert_false(ring_write_short(tx, bytes, 8));
	ring_rx_sleep_end(rx, false);
	pair_close(pair);
}

/* What one look of ring_rx_avail_soon() finds, read. */
static ssize_t look(struct pair *pair, size_t arrives)
{
	static uint8_t bytes[FIXTURE_RING_BYTES];
	ssize_t avail;

	assert_int_equal(ring_write(&pair->creator.tx, bytes, arrives), arrives);
	avail = ring_rx_avail_soon(&pair->attacher.rx);
	assert_int_equal(ring_read(&pair->attacher.rx, bytes, arrives), arrives);
	return avail;
}

static void stays_behind_a_stream_only_while_that_catches_much(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	(void)state;
	ring_tie(&pair->attacher.tx, rx);
	/* One by one: never longer than between any two looks. */
	for (int i = 0; i < 10; i++)
		assert_int_equal(look(pair, 8), 8);
	assert_int_equal(rx->pauses, RING_RELAX);
	/* Much at each look: longer, up to a limit. */
	for (int i = 0; i < 20; i++)
		assert_int_equal(look(pair, 4000), 4000);
	assert_int_equal(rx->pauses, RING_BEHIND_PAUSES);
	/* What has answered does not wait longer. */
	assert_int_equal(ring_write(&pair->attacher.tx, "answer", 6), 6);
	assert_int_equal(look(pair, 8), 8);
	assert_int_equal(rx->pauses, RING_BEHIND_PAUSES);
	/* A long pause for little is the last. */
	assert_int_equal(look(pair, 8), 8);
	assert_int_equal(rx->pauses, RING_RELAX);
	pair_close(pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(carries_short_messages_as_long_ones_are),
		cmocka_unit_test(short_message_needs_room_and_a_receiver_that_polls),
		cmocka_unit_test(stays_behind_a_stream_only_while_that_catches_much),
	};

	alarm(50);
	return cmocka_run_group_tests_name("ring_stream", tests, NULL, NULL);
}
