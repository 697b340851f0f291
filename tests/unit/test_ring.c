/* SPDX-License-Identifier: MIT */
#include <sched.h>

#include "ring_fixture.h"

static const struct {
	const char *name;
	uint64_t pos;
} starts[] = {
	{ "zero", 0 },
	{ "ring_wrap", FIXTURE_RING_BYTES - 5 },
	{ "2^31", (UINT64_C(1) << 31) - 5 },
	{ "2^32", (UINT64_C(1) << 32) - 5 },
	{ "2^62", (UINT64_C(1) << 62) - 5 },
	{ "2^63", (UINT64_C(1) << 63) - 5 },
	{ "2^64", UINT64_C(0) - 5 },
};
#define NR_STARTS (sizeof(starts) / sizeof(starts[0]))

static void fill(uint8_t *buf, size_t len, unsigned seed)
{
	size_t i;

	for (i = 0; i < len; i++)
		buf[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

static void copies_every_small_length_and_nothing_else(void **state)
{
	uint8_t from[80], to[80], expect[80];
	size_t len;

	fill(from, sizeof(from), 3);
	for (len = 0; len <= 64; len++) {
		memset(to, 0xee, sizeof(to));
		memset(expect, 0xee, sizeof(expect));
		memcpy(expect + 8, from + 8, len);
		ring_copy(to + 8, from + 8, len);
		assert_memory_equal(to, expect, sizeof(to));
	}
}

static void carries_every_length_from_every_start(void **state)
{
	static uint8_t out[FIXTURE_RING_BYTES], in[FIXTURE_RING_BYTES];
	size_t i, len;

	for (i = 0; i < NR_STARTS; i++) {
		struct pair *pair = pair_open(FIXTURE_RING_BYTES);
		struct ring_tx *tx = &pair->creator.tx;
		struct ring_rx *rx = &pair->attacher.rx;

		print_message("start %s\n", starts[i].name);
		pair_start_at(pair, starts[i].pos);
		for (len = 1; len <= FIXTURE_RING_BYTES; len += len < 80 ? 1 : 251) {
			fill(out, len, (unsigned)len);
			memset(in, 0, len);
			assert_int_equal(ring_write(tx, out, len), len);
			assert_int_equal(ring_rx_avail(rx), len);
			assert_int_equal(ring_tx_queued(tx), len);
			assert_int_equal(ring_read(rx, in, len), len);
			assert_memory_equal(in, out, len);
			assert_int_equal(ring_read(rx, in, 1), 0);
			assert_int_equal(ring_tx_queued(tx), 0);
		}
		pair_close(pair);
	}
}

static void takes_what_fits_and_says_full(void **state)
{
	static uint8_t out[2 * FIXTURE_RING_BYTES], in[2 * FIXTURE_RING_BYTES];
	size_t i;

	for (i = 0; i < NR_STARTS; i++) {
		struct pair *pair = pair_open(FIXTURE_RING_BYTES);
		struct ring_tx *tx = &pair->creator.tx;
		struct ring_rx *rx = &pair->attacher.rx;

		pair_start_at(pair, starts[i].pos);
		fill(out, sizeof(out), 1);
		assert_int_equal(ring_tx_room(tx, 1), FIXTURE_RING_BYTES);
		assert_int_equal(ring_write(tx, out, sizeof(out)), FIXTURE_RING_BYTES);
		assert_int_equal(ring_tx_room(tx, 1), 0);
		assert_int_equal(ring_write(tx, out, 1), 0);
		assert_int_equal(ring_read(rx, in, 100), 100);
		assert_int_equal(ring_write(tx, out + FIXTURE_RING_BYTES, 200), 100);
		assert_int_equal(ring_read(rx, in + 100, FIXTURE_RING_BYTES), FIXTURE_RING_BYTES);
		assert_memory_equal(in, out, FIXTURE_RING_BYTES + 100);
		pair_close(pair);
	}
}

static void publishes_nothing_before_it_is_told_to(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;
	uint64_t pos = ring_put(tx, tx->tail_pos, "abc", 3);
	char in[8];

	assert_int_equal(ring_rx_avail(rx), 0);
	pos = ring_put(tx, pos, "defg", 4);
	assert_int_equal(ring_rx_avail(rx), 0);
	ring_publish(tx, pos);
	assert_int_equal(ring_rx_avail(rx), 7);
	ring_get(rx, rx->head_pos, in, 7);
	assert_memory_equal(in, "abcdefg", 7);
	assert_int_equal(ring_rx_avail(rx), 7);
	pair_close(pair);
}

static void peeks_in_one_piece_up_to_the_wrap(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;
	size_t len = 12;

	pair_start_at(pair, FIXTURE_RING_BYTES - 5);
	assert_int_equal(ring_write(&pair->creator.tx, "hello, world", 12), 12);
	assert_int_equal(ring_rx_avail(rx), 12);
	assert_memory_equal(ring_peek(rx, rx->head_pos, &len), "hello", 5);
	assert_int_equal(len, 5);
	len = 7;
	assert_memory_equal(ring_peek(rx, rx->head_pos + 5, &len), ", world", 7);
	assert_int_equal(len, 7);
	pair_close(pair);
}

/* A question, then answers of every length around the express limit, and a second one on top of the first. */
static void answers_arrive_whole_whether_express_or_not(void **state)
{
	size_t i, len, second;

	for (i = 0; i < NR_STARTS; i++) {
		struct pair *pair = pair_open(FIXTURE_RING_BYTES);
		struct ring_link *asks = &pair->attacher, *answers = &pair->creator;
		uint8_t out[64], in[64];

		pair_start_at(pair, starts[i].pos);
		for (len = 1; len <= LANE_EXPRESS_BYTES + 2; len++) {
			for (second = 0; second <= LANE_EXPRESS_BYTES + 2; second++) {
				fill(out, sizeof(out), (unsigned)(len * 31 + second));
				assert_int_equal(ring_write(&asks->tx, "?", 1), 1);
				assert_int_equal(ring_read(&answers->rx, in, 9), 1);
				assert_int_equal(ring_write(&answers->tx, out, len), len);
				if (second & 1)
					assert_int_equal(ring_rx_avail(&asks->rx), len);
				assert_int_equal(ring_write(&answers->tx, out + len, second), second);
				memset(in, 0, sizeof(in));
				assert_int_equal(ring_rx_avail_min(&asks->rx, len + second), len + second);
				assert_int_equal(ring_read(&asks->rx, in, 1), 1);
				assert_int_equal(ring_read(&asks->rx, in + 1, sizeof(in) - 1), len + second - 1);
				assert_memory_equal(in, out, len + second);
			}
		}
		pair_close(pair);
	}
}

/* An edge-triggered program stops at a short read: it must not have gone by a tail that was seen a while ago. */
static void a_short_read_has_drained_the_ring(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;
	char in[16];

	ring_write(&pair->creator.tx, "1234", 4);
	assert_int_equal(ring_read(rx, in, 1), 1);
	ring_write(&pair->creator.tx, "5678", 4);
	assert_int_equal(ring_read(rx, in + 1, 15), 7);
	assert_memory_equal(in, "12345678", 8);
	pair_close(pair);
}

/* The words beside the tail are the peer's to write: whatever stands there, lengths and positions stay right. */
static void takes_no_length_from_the_express_words(void **state)
{
	static const uint64_t marks[] = { 0, UINT64_MAX, EXPRESS_MARK(3, 3), EXPRESS_MARK(3, 31), EXPRESS_MARK(4, 16) };
	size_t i;

	for (i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
		struct pair *pair = pair_open(FIXTURE_RING_BYTES);
		struct ring_rx *rx = &pair->attacher.rx;
		uint8_t in[64];

		assert_int_equal(ring_write(&pair->creator.tx, "abc", 3), 3);
		peer_publish_u64(&rx->front->express_mark, marks[i]);
		assert_int_equal(ring_read(rx, in, sizeof(in)), 3);
		assert_int_equal(ring_read(rx, in, sizeof(in)), 0);
		assert_true(rx->head_pos == 3);
		pair_close(pair);
	}
}

static void forgets_the_express_words_of_a_dead_holder(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;
	uint8_t in[8];

	/* It had written the mark and other bytes than those that its successor sends to the same position. */
	ring_express(tx, 4, "dead", 4);
	ring_tx_recover(tx);
	ring_publish(tx, ring_put(tx, tx->tail_pos, "live", 4));
	assert_int_equal(ring_read(&pair->attacher.rx, in, 8), 4);
	assert_memory_equal(in, "live", 4);
	pair_close(pair);
}

static void looks_again_only_for_more_than_is_known(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	ring_write(&pair->creator.tx, "1234", 4);
	assert_int_equal(ring_rx_avail(rx), 4);
	ring_write(&pair->creator.tx, "5678", 4);
	assert_int_equal(ring_rx_avail(rx), 4);
	assert_int_equal(ring_rx_avail_min(rx, 4), 4);
	assert_int_equal(ring_rx_avail_min(rx, 5), 8);
	pair_close(pair);
}

/* 100 bytes sent, 40 of them taken: what may the other side claim? */
static const struct {
	const char *name;
	int64_t claim; /* relative to the start */
	bool head_good, tail_good;
} claims[] = {
	{ "same", 40, true, false },
	{ "all_taken", 100, true, true },
	{ "one_too_many_taken", 101, false, true },
	{ "gone_back_by_one", 39, false, false },
	{ "start", 0, false, false },
	{ "full_ring", 40 + FIXTURE_RING_BYTES, false, true },
	{ "over_full_ring", 41 + FIXTURE_RING_BYTES, false, false },
	{ "2^31", INT64_C(1) << 31, false, false },
	{ "2^32", INT64_C(1) << 32, false, false },
	{ "minus_2^32", -(INT64_C(1) << 32), false, false },
	{ "2^63-1", INT64_MAX, false, false },
	{ "minus_2^63", INT64_MIN, false, false },
	{ "minus_one", -1, false, false },
};

static void refuses_positions_that_cannot_be(void **state)
{
	size_t i, j;

	for (i = 0; i < NR_STARTS; i++) {
		for (j = 0; j < sizeof(claims) / sizeof(claims[0]); j++) {
			struct pair *pair = pair_open(FIXTURE_RING_BYTES);
			struct ring_tx *tx = &pair->creator.tx;
			struct ring_rx *rx = &pair->attacher.rx;
			uint64_t start = starts[i].pos, claim = start + (uint64_t)claims[j].claim;
			uint8_t buf[100] = { 0 };

			pair_start_at(pair, start);
			assert_int_equal(ring_write(tx, buf, 100), 100);
			assert_int_equal(ring_read(rx, buf, 40), 40);
			assert_int_equal(ring_tx_queued(tx), 60);

			peer_publish_u64(&tx->ctl->rx.head_pos, claim);
			if (claims[j].head_good) {
				assert_int_equal(ring_tx_refresh(tx), 0);
				assert_true(tx->head_seen == claim);
			} else {
				assert_int_equal(ring_tx_refresh(tx), -EPROTO);
				assert_int_equal(ring_tx_queued(tx), -EPROTO);
				assert_true(tx->head_seen == start + 40);
				assert_int_equal(ring_tx_room(tx, FIXTURE_RING_BYTES), -EPROTO);
			}

			peer_publish_u64(&rx->front->tail_pos, claim & TAIL_POS_MASK);
			if (claims[j].tail_good) {
				assert_int_equal(ring_rx_refresh(rx), 0);
				assert_true(rx->tail_seen == claim);
			} else {
				assert_int_equal(ring_rx_refresh(rx), -EPROTO);
				assert_true(rx->tail_seen == start + 100);
			}
			pair_close(pair);
		}
	}
}

static void never_leaves_the_ring_whatever_the_peer_writes(void **state)
{
	static uint8_t big[3 * FIXTURE_RING_BYTES];
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;
	unsigned seed = 12345;
	int i;

	/* The sanitizers see an access outside; here the amounts are enough. */
	for (i = 0; i < 20000; i++) {
		uint64_t claim = (uint64_t)rand_r(&seed) << 33 ^ (uint64_t)rand_r(&seed);
		ssize_t ret;

		if (i & 1)
			claim = tx->tail_pos + claim % (2 * FIXTURE_RING_BYTES) - FIXTURE_RING_BYTES;
		peer_publish_u64(&tx->ctl->rx.head_pos, claim);
		ret = ring_write(tx, big, (size_t)rand_r(&seed) % sizeof(big));
		assert_true(ret == -EPROTO || (ret >= 0 && ret <= FIXTURE_RING_BYTES));
		peer_publish_u64(&rx->front->tail_pos, claim);
		ret = ring_read(rx, big, (size_t)rand_r(&seed) % sizeof(big));
		assert_true(ret == -EPROTO || (ret >= 0 && ret <= (ssize_t)ring_rx_bytes(rx)));
	}
	pair_close(pair);
}

static void publishes_again_what_a_dead_holder_left(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;
	char in[8];

	/* It died between its two stores. */
	ring_write(tx, "abcd", 4);
	peer_publish_u64(&tx->front->tail_pos, 0);
	assert_int_equal(ring_rx_avail(rx), 0);
	ring_tx_recover(tx);
	assert_int_equal(ring_read(rx, in, 4), 4);
	assert_true(readable(pair->attacher.rx.bells.bell_fd, 0));
	peer_publish_u64(&rx->ctl->rx.head_pos, 0);
	assert_int_equal(ring_tx_queued(tx), 4);
	ring_rx_recover(rx);
	assert_int_equal(ring_tx_queued(tx), 0);
	assert_true(readable(pair->creator.tx.bells.bell_fd, 0));
	pair_close(pair);
}

/* Byte i of the stream, so that a lost, doubled or swapped byte shows at once. */
static uint8_t stream_byte(uint64_t i)
{
	return (uint8_t)((i * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}

#define STREAM_BYTES (UINT64_C(24) << 20)

/* Where it overflows, most often at once, else after a wait that may have been worth it. */
static void stream_out(struct ring_tx *tx, unsigned seed, bool overflows)
{
	static uint8_t buf[1 << 16];
	uint64_t sent = 0;

	while (sent < STREAM_BYTES) {
		size_t len = 1 + (size_t)rand_r(&seed) % (rand_r(&seed) & 3 ? 64 : sizeof(buf)), i;

		if (len > STREAM_BYTES - sent)
			len = STREAM_BYTES - sent;
		for (i = 0; i < len; i++)
			buf[i] = stream_byte(sent + i);
		for (i = 0; i < len;) {
			ssize_t ret = ring_write(tx, buf + i, len - i);

			if (ret < 0)
				_exit(1);
			if (!ret && (!overflows || !(rand_r(&seed) & 3) || !ring_tx_overflow(tx)))
				sched_yield();
			i += (size_t)ret;
		}
		sent += len;
	}
}

static void stream_in(struct ring_rx *rx, unsigned seed)
{
	static uint8_t buf[1 << 16];
	uint64_t got = 0;

	while (got < STREAM_BYTES) {
		ssize_t ret = ring_read(rx, buf, 1 + (size_t)rand_r(&seed) % sizeof(buf)), i;

		if (ret < 0)
			_exit(2);
		if (!ret)
			sched_yield();
		for (i = 0; i < ret; i++)
			if (buf[i] != stream_byte(got + (uint64_t)i))
				_exit(3);
		got += (uint64_t)ret;
	}
}

static void carry(uint32_t ring_bytes, uint64_t start, bool overflows)
{
	struct pair *pair = pair_open(ring_bytes);
	pid_t sender, receiver;

	pair_start_at(pair, start);
	sender = fork_bound();
	if (!sender) {
		stream_out(&pair->creator.tx, 1, overflows);
		_exit(0);
	}
	receiver = fork_bound();
	if (!receiver) {
		stream_in(&pair->attacher.rx, 2);
		_exit(0);
	}
	assert_int_equal(exit_status(receiver), 0);
	assert_int_equal(exit_status(sender), 0);
	assert_int_equal(pair->creator.tx.last_move != (start & TAIL_POS_MASK), overflows);
	pair_close(pair);
}

static void carries_a_stream_between_processes_whole(void **state)
{
	carry(1 << 16, (UINT64_C(1) << 32) - (UINT64_C(8) << 20), false);
}

static void carries_it_whole_through_both_rings(void **state)
{
	carry(FIXTURE_RING_BYTES, (UINT64_C(1) << 62) - (UINT64_C(8) << 20), true);
}

/*
 * Both ways at once: short questions and answers, mixed with runs of several, so that express messages are overtaken while
 * they are read. Every byte is known to both ends.
 */
#define TALKS 200000

static bool talk(struct ring_link *link, bool asks)
{
	uint64_t out = 0, in = 0;
	unsigned seed = 5;
	uint8_t buf[96];
	int i, j, turn;

	for (i = 0; i < TALKS; i++) {
		int messages = rand_r(&seed) % 8 ? 1 : rand_r(&seed) % 6;
		size_t len = 1 + (size_t)rand_r(&seed) % 20;

		for (turn = 0; turn < 2; turn++) {
			for (j = 0; j < messages; j++) {
				size_t k, got = 0;

				if ((turn == 0) == asks) {
					for (k = 0; k < len; k++)
						buf[k] = stream_byte(out++);
					while (ring_write(&link->tx, buf, len) == 0)
						sched_yield();
					continue;
				}
				while (got < len) {
					ssize_t ret = ring_read(&link->rx, buf + got, len - got);

					if (ret < 0)
						return false;
					if (!ret)
						sched_yield();
					got += (size_t)ret;
				}
				for (k = 0; k < len; k++)
					if (buf[k] != stream_byte(in++))
						return false;
			}
		}
	}
	return true;
}

static void carries_a_conversation_between_processes_whole(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	pid_t answers = fork_bound();

	if (!answers)
		_exit(talk(&pair->attacher, false) ? 0 : 1);
	assert_true(talk(&pair->creator, true));
	assert_int_equal(exit_status(answers), 0);
	pair_close(pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_every_small_length_and_nothing_else),
		cmocka_unit_test(carries_every_length_from_every_start),
		cmocka_unit_test(takes_what_fits_and_says_full),
		cmocka_unit_test(publishes_nothing_before_it_is_told_to),
		cmocka_unit_test(peeks_in_one_piece_up_to_the_wrap),
		cmocka_unit_test(answers_arrive_whole_whether_express_or_not),
		cmocka_unit_test(a_short_read_has_drained_the_ring),
		cmocka_unit_test(takes_no_length_from_the_express_words),
		cmocka_unit_test(forgets_the_express_words_of_a_dead_holder),
		cmocka_unit_test(looks_again_only_for_more_than_is_known),
		cmocka_unit_test(refuses_positions_that_cannot_be),
		cmocka_unit_test(never_leaves_the_ring_whatever_the_peer_writes),
		cmocka_unit_test(publishes_again_what_a_dead_holder_left),
		cmocka_unit_test(carries_a_stream_between_processes_whole),
		cmocka_unit_test(carries_it_whole_through_both_rings),
		cmocka_unit_test(carries_a_conversation_between_processes_whole),
	};

	alarm(50);
	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
