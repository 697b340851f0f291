/* SPDX-License-Identifier: MIT */
#include "overflow_fixture.h"

#define MOVES(nr) ((uint64_t)(nr) << TAIL_POS_BITS)

static const struct {
	const char *name;
	uint64_t pos;
} starts[] = {
	{ "zero", 0 },
	{ "middle", 1234 },
	{ "ring_wrap", SMALL - 5 },
	{ "overflow_wrap", OVER - SMALL - 5 },
	{ "2^31", (UINT64_C(1) << 31) - 5 },
	{ "2^32", (UINT64_C(1) << 32) - 5 },
	{ "2^32, moved across", (UINT64_C(1) << 32) - SMALL - 5 },
	{ "2^62", (UINT64_C(1) << 62) - 5 },
	{ "2^62, moved across", (UINT64_C(1) << 62) - SMALL - 5 },
	{ "2^63", (UINT64_C(1) << 63) - 5 },
	{ "2^64", UINT64_C(0) - 5 },
};
#define NR_STARTS (sizeof(starts) / sizeof(starts[0]))

static bool reads_from(const struct pair *pair, int which)
{
	return pair->attacher.rx.data == pair->attacher.rx.area[which].data;
}

static void holds_both_rings_full_from_every_start(void **state)
{
	for (size_t i = 0; i < NR_STARTS; i++) {
		struct pair *pair = pair_open(SMALL);
		struct ring_tx *tx = &pair->creator.tx;

		print_message("start %s\n", starts[i].name);
		pair_start_at(pair, starts[i].pos);
		assert_int_equal(put(pair, SMALL + 1), SMALL);
		assert_int_equal(ring_tx_spare(tx), OVER);
		assert_true(ring_tx_overflow(tx));
		assert_false(ring_tx_overflow(tx));
		assert_int_equal(ring_tx_spare(tx), 0);
		assert_int_equal(ring_tx_room_now(tx), OVER);
		assert_int_equal(put(pair, SMALL + OVER), OVER);
		assert_int_equal(ring_tx_room_now(tx), 0);
		assert_int_equal(ring_tx_room(tx, 1), 0);
		assert_int_equal(ring_tx_queued(tx), SMALL + OVER);
		assert_int_equal(ring_rx_unread(&pair->attacher.rx), SMALL + OVER);
		assert_int_equal(ring_rx_avail(&pair->attacher.rx), SMALL + OVER);
		/* Half of what lies in the small ring makes no room in the other one. */
		assert_int_equal(take(pair, SMALL / 2), SMALL / 2);
		assert_int_equal(ring_tx_room(tx, 1), 0);
		assert_int_equal(take(pair, SMALL), SMALL);
		assert_int_equal(ring_tx_room(tx, OVER), SMALL / 2);
		assert_int_equal(put(pair, SMALL), SMALL / 2);
		assert_int_equal(take(pair, 2 * (SMALL + OVER)), OVER);
		pair_close(pair);
	}
}

/* Behind what is unread, and round the end of the ring; not while its pages are being given back. */
static void gives_back_through_the_room_that_is_left(void **state)
{
	for (size_t i = 0; i < NR_STARTS; i++) {
		struct pair *pair = pair_open(SMALL);
		struct ring_tx *tx = &pair->creator.tx;
		uint64_t tail;

		pair_start_at(pair, starts[i].pos);
		assert_int_equal(put(pair, SMALL), SMALL);
		assert_true(ring_tx_overflow(tx));
		assert_int_equal(put(pair, 100), 100);
		tail = tx->tail_pos;
		assert_false(ring_tx_gift_begin(tx, OVER - SMALL - 99));
		peer_publish_u32(&tx->ctl->rx_state.trimming, 1);
		assert_false(ring_tx_gift_begin(tx, 1));
		peer_publish_u32(&tx->ctl->rx_state.trimming, 0);
		assert_true(ring_tx_gift_begin(tx, OVER - SMALL - 100));
		for (uint64_t done = 0, len; done < OVER - SMALL - 100; done += len) {
			size_t straight = OVER;
			uint8_t *at = ring_tx_gift(tx, tail + done, &straight);
			const uint8_t *seen = ring_rx_gift(&pair->attacher.rx, tail + done, &straight);

			len = straight < OVER - SMALL - 100 - done ? straight : OVER - SMALL - 100 - done;
			memset(at, 'g', len);
			assert_int_equal(seen - pair->attacher.rx.area[RING_OVERFLOW].data, at - tx->area[RING_OVERFLOW].data);
		}
		/* All that is unread is as it was. */
		assert_int_equal(take(pair, 2 * SMALL + 100), SMALL + 100);
		assert_true(ring_tx_gift_begin(tx, OVER));
		assert_false(ring_tx_gift_begin(tx, OVER + 1));
		pair_close(pair);
	}
}

static void goes_back_when_everything_was_taken(void **state)
{
	struct pair *pair = moved(0, SMALL, 100);

	assert_int_equal(take(pair, SMALL + 99), SMALL + 99);
	/* Room is known: no look, no move. One that looks finds a byte unread. */
	assert_int_equal(put(pair, 1), 1);
	assert_true(ring_tx_room(&pair->creator.tx, OVER) > 0);
	assert_true(sends_to(pair, RING_OVERFLOW));
	assert_int_equal(take(pair, 100), 2);
	assert_int_equal(ring_tx_room(&pair->creator.tx, OVER), SMALL);
	assert_true(sends_to(pair, RING_SMALL));
	assert_true(reads_from(pair, RING_OVERFLOW));
	assert_int_equal(put(pair, 10), 10);
	assert_int_equal(take(pair, 100), 10);
	assert_true(reads_from(pair, RING_SMALL));
	pair_close(pair);
}

/* Small messages that are all taken must not go through the whole overflow ring before somebody looks. */
static void does_not_stay_longer_than_it_must(void **state)
{
	struct pair *pair = pair_open(1 << 16);
	size_t sent = 0;

	assert_int_equal(put(pair, 8), 8);
	assert_true(ring_tx_overflow(&pair->creator.tx));
	while (sends_to(pair, RING_OVERFLOW)) {
		assert_int_equal(put(pair, 8), 8);
		take(pair, 100);
		sent += 8;
		assert_true(sent <= 2 * RING_STEP_BYTES);
	}
	pair_close(pair);
}

/* The receiver has looked last before the way back, and finds another stay in the overflow ring. */
static void there_and_back_and_there_again_at_one_look(void **state)
{
	for (size_t i = 0; i < NR_STARTS; i++) {
		struct pair *pair = moved(starts[i].pos, 300, 500);
		struct ring_tx *tx = &pair->creator.tx;

		for (unsigned stay = 0; stay < 6; stay++) {
			assert_int_equal(take(pair, SMALL + OVER), 800);
			assert_int_equal(ring_tx_room(tx, OVER), SMALL);
			assert_int_equal(put(pair, 300), 300);
			assert_true(ring_tx_overflow(tx));
			assert_int_equal(put(pair, 500), 500);
		}
		assert_int_equal(take(pair, SMALL + OVER), 800);
		assert_int_equal(ring_tx_room(tx, OVER), SMALL);
		/* There for nothing: four of these moves would look like none. */
		assert_false(ring_tx_overflow(tx));
		assert_int_equal(put(pair, 7), 7);
		assert_int_equal(take(pair, 100), 7);
		assert_true(reads_from(pair, RING_SMALL));
		pair_close(pair);
	}
}

static void reads_and_peeks_across_the_move(void **state)
{
	static uint8_t bytes[SMALL + OVER];

	for (size_t before = 1; before <= 41; before += 5) {
		for (size_t len = 1; len <= 80; len++) {
			struct pair *pair = moved(SMALL - 20, before, 60);
			struct ring_rx *rx = &pair->attacher.rx;
			uint64_t start = rx->head_pos;
			size_t seen = 0;

			assert_int_equal(ring_rx_avail(rx), before + 60);
			ring_get(rx, start, bytes, before + 60);
			for (size_t i = 0; i < before + 60; i++)
				assert_int_equal(bytes[i], stream_byte(start + i));
			while (seen < before + 60) {
				size_t piece = len < before + 60 - seen ? len : before + 60 - seen;
				const uint8_t *at = ring_peek(rx, start + seen, &piece);

				assert_true(piece > 0);
				for (size_t i = 0; i < piece; i++)
					assert_int_equal(at[i], stream_byte(start + seen + i));
				seen += piece;
			}
			for (size_t got = 0; got < before + 60;)
				got += take(pair, len);
			assert_int_equal(take(pair, len), 0);
			pair_close(pair);
		}
	}
}

static void answers_travel_beside_the_tail_in_either_ring(void **state)
{
	struct pair *pair = pair_open(SMALL);
	struct ring_link *asks = &pair->attacher, *answers = &pair->creator;
	char in[16];

	for (int i = 0; i < 4; i++) {
		assert_int_equal(ring_write(&asks->tx, "?", 1), 1);
		assert_int_equal(ring_read(&answers->rx, in, 9), 1);
		if (i == 1)
			assert_true(ring_tx_overflow(&answers->tx));
		assert_int_equal(ring_write(&answers->tx, "answer", 6), 6);
		assert_int_equal(ring_rx_avail(&asks->rx), 6);
		assert_int_equal(asks->rx.express_len, 6);
		assert_int_equal(ring_read(&asks->rx, in, 16), 6);
		assert_memory_equal(in, "answer", 6);
	}
	pair_close(pair);
}

static void room_as_anybody_sees_it_is_the_room_that_there_is(void **state)
{
	struct pair *pair = pair_open(SMALL);
	struct ring_tx *tx = &pair->creator.tx;
	unsigned seed = 77;

	for (int i = 0; i < 20000; i++) {
		uint64_t room, written = 0;

		switch (rand_r(&seed) % 8) {
		case 0:
			ring_tx_overflow(tx);
			break;
		case 1:
			take(pair, SMALL + OVER);
			ring_tx_room(tx, OVER);
			break;
		case 2:
			room = ring_tx_room_now(tx);
			written = put(pair, SMALL + OVER);
			/* The write itself goes back where everything was taken. */
			assert_true(written == room || (written == SMALL && sends_to(pair, RING_SMALL)));
			break;
		case 3:
			take(pair, (size_t)rand_r(&seed) % (SMALL + OVER));
			break;
		case 4:
			put(pair, (size_t)rand_r(&seed) % SMALL);
			break;
		default:
			take(pair, (size_t)rand_r(&seed) % 100);
			put(pair, (size_t)rand_r(&seed) % 100);
		}
	}
	pair_close(pair);
}

/* ---- Sleeping ---- */

static void a_sender_asleep_is_rung_within_a_quarter_of_its_ring(void **state)
{
	for (size_t step = 1; step <= OVER; step += step < 2000 ? 613 : 7001) {
		struct pair *pair = moved(17, SMALL, OVER);
		struct ring_tx *tx = &pair->creator.tx;
		size_t taken = 0;

		assert_int_equal(ring_tx_low_water(tx, SIZE_MAX), OVER / 4);
		for (;;) {
			bool rung = false;

			if (ring_tx_sleep_begin(tx, SIZE_MAX))
				break;
			while (!rung && taken < SMALL + OVER) {
				taken += take(pair, step);
				rung = readable(tx->bells.bell_fd, 0);
			}
			assert_true(rung);
			ring_tx_sleep_end(tx, true);
		}
		assert_true(ring_tx_room_now(tx) >= OVER / 4);
		pair_close(pair);
	}
}

/* Back in the small ring, while the receiver still goes by the quarters of the other one. */
static void a_sender_asleep_after_the_way_back_is_rung_too(void **state)
{
	struct pair *pair = moved(0, SMALL, 3 * OVER / 4);
	struct ring_tx *tx = &pair->creator.tx;
	size_t taken = 0;

	while (taken < SMALL + 3 * OVER / 4)
		taken += take(pair, 1000);
	assert_int_equal(ring_tx_room(tx, OVER), SMALL);
	assert_int_equal(put(pair, SMALL), SMALL);
	assert_false(ring_tx_sleep_begin(tx, SIZE_MAX));
	assert_int_equal(take(pair, SMALL / 4), SMALL / 4);
	assert_true(readable(tx->bells.bell_fd, 0));
	pair_close(pair);
}

static void a_move_by_itself_is_nothing_that_has_come(void **state)
{
	struct pair *pair = moved(0, 100, 0);
	struct ring_rx *rx = &pair->attacher.rx;

	assert_int_equal(take(pair, 100), 100);
	ring_tx_recover(&pair->creator.tx);
	bell_drain(rx->bells.bell_fd);
	assert_int_equal(ring_rx_unread(rx), 0);
	assert_false(ring_rx_sleep_begin(rx));
	assert_int_equal(put(pair, 5), 5);
	ring_tx_notify(&pair->creator.tx);
	assert_true(readable(rx->bells.bell_fd, 0));
	ring_rx_sleep_end(rx, true);
	assert_int_equal(take(pair, 100), 5);
	pair_close(pair);
}

/* ---- Deaths ---- */

static void takes_over_from_a_holder_that_died_in_a_move(void **state)
{
	enum { PLACE_TOLD, MOVED, FILLED, TAIL_KNOWN, NR };

	for (int died = PLACE_TOLD; died < NR; died++) {
		for (size_t i = 0; i < NR_STARTS; i++) {
			struct pair *pair = pair_open(SMALL);
			struct ring_tx *tx = &pair->creator.tx, before;

			pair_start_at(pair, starts[i].pos);
			assert_int_equal(put(pair, SMALL), SMALL);
			before = *tx;
			assert_true(ring_tx_overflow(tx));
			if (died == PLACE_TOLD)
				tx->last_move = before.last_move;
			if (died <= MOVED) {
				/* What follows from last_move had not been stored yet. */
				tx->data = before.data;
				tx->mask = before.mask;
				tx->moves = before.moves;
				tx->end_pos = before.end_pos;
				tx->moving = before.moving;
			}
			if (died >= FILLED) {
				uint64_t tail = tx->tail_pos;
				uint64_t word = load_relaxed(&tx->front->tail_pos.peer_word);

				assert_int_equal(put(pair, 50), 50);
				store_relaxed(&tx->front->tail_pos.peer_word, word);
				if (died == FILLED)
					tx->tail_pos = tail;
			}
			if (died == FILLED)
				assert_int_equal(take(pair, 10), 10);
			ring_tx_recover(tx);
			if (died == PLACE_TOLD)
				assert_true(ring_tx_overflow(tx));
			assert_int_equal(put(pair, 100), 100);
			assert_true(sends_to(pair, RING_OVERFLOW));
			assert_int_equal(take(pair, SMALL + OVER),
					 SMALL + 100 + (died == TAIL_KNOWN ? 50 : 0) - (died == FILLED ? 10 : 0));
			pair_close(pair);
		}
	}
}

static void takes_over_from_a_receiver_that_died_in_a_move(void **state)
{
	for (size_t taken = 0; taken <= 600; taken += 50) {
		struct pair *pair = moved(SMALL - 100, 300, 300);
		struct ring_rx *rx = &pair->attacher.rx, before = *rx;

		assert_int_equal(take(pair, taken ? taken : 1), taken ? taken : 1);
		/* last_move is stored, and what follows from it is what it was before. */
		rx->data = before.data;
		rx->mask = before.mask;
		rx->moves = before.moves;
		rx->moving = before.moving;
		ring_rx_recover(rx);
		assert_int_equal(take(pair, SMALL + OVER), 600 - (taken ? taken : 1));
		assert_int_equal(put(pair, 20), 20);
		assert_int_equal(take(pair, SMALL + OVER), 20);
		pair_close(pair);
	}
}

/* ---- Lies. 100 bytes sent, 40 of them taken, all of them known. ---- */

static const struct {
	const char *name;
	int64_t at, tail; /* relative to the start */
	unsigned moves;
	bool good;
} claims[] = {
	{ "moved where it was, one byte", 100, 101, 1, true },
	{ "moved where it was, a full ring", 100, 100 + OVER, 1, true },
	{ "a byte more than the overflow ring", 100, 101 + OVER, 1, false },
	{ "moved later", 200, 300, 1, true },
	{ "with the small ring full", 40 + SMALL, 41 + SMALL, 1, true },
	{ "both full", 40 + SMALL, 40 + SMALL + OVER, 1, true },
	{ "a byte more than both", 40 + SMALL, 41 + SMALL + OVER, 1, false },
	{ "with more than the small ring has", 41 + SMALL, 50 + SMALL, 1, false },
	{ "before what was seen", 99, 200, 1, false },
	{ "before what was taken", 0, 200, 1, false },
	{ "at the tail", 200, 200, 1, true },
	{ "behind the tail", 201, 200, 1, false },
	{ "2^32 off", 100 + (INT64_C(1) << 32), 200, 1, false },
	{ "2^62 off", 100 + (INT64_C(1) << 62), 200, 1, false },
	{ "2^63 off", INT64_MIN + 100, 200, 1, false },
	{ "far away, with its tail", INT64_C(1) << 40, (INT64_C(1) << 40) + 1, 1, false },
	{ "the tail goes back", 100, 99, 1, false },
	{ "back without having been there", 100, 200, 2, false },
	{ "back without having been there, far away", 100, INT64_C(1) << 40, 2, false },
	{ "three at once", 100, 200, 3, true }, /* one and three look alike, and both are within bounds */
};

static bool is_as_before(const struct ring_rx *rx, const struct ring_rx *before)
{
	return rx->tail_seen == before->tail_seen && rx->head_pos == before->head_pos && rx->last_move == before->last_move &&
	       rx->data == before->data && rx->mask == before->mask && rx->moves == before->moves && rx->moving == before->moving;
}

static void refuses_moves_that_cannot_be(void **state)
{
	static uint8_t bytes[SMALL + OVER];

	for (size_t i = 0; i < NR_STARTS; i++) {
		for (size_t j = 0; j < sizeof(claims) / sizeof(claims[0]); j++) {
			struct pair *pair = pair_open(SMALL);
			struct ring_rx *rx = &pair->attacher.rx, before;
			uint64_t start = starts[i].pos, tail = start + (uint64_t)claims[j].tail;

			pair_start_at(pair, start);
			assert_int_equal(put(pair, 100), 100);
			assert_int_equal(ring_rx_avail(rx), 100);
			assert_int_equal(take(pair, 40), 40);
			before = *rx;
			peer_publish_u64(&rx->ctl->tx_state.moved_at, start + (uint64_t)claims[j].at);
			peer_publish_u64(&rx->front->tail_pos, (tail & TAIL_POS_MASK) | MOVES(claims[j].moves));
			if (ring_rx_refresh(rx) != (claims[j].good ? 0 : -EPROTO))
				fail_msg("%s, %s", starts[i].name, claims[j].name);
			if (claims[j].good)
				assert_int_equal(ring_read(rx, bytes, sizeof(bytes)), claims[j].tail - 40);
			else
				assert_true(is_as_before(rx, &before));
			pair_close(pair);
		}
	}
}

/* In the overflow ring, before and behind the move, with bytes unread and without. */
static void refuses_a_way_back_before_everything_was_taken(void **state)
{
	static const struct {
		size_t taken;
		unsigned moves;
		bool good;
	} rows[] = {
		{ 50, 1, true }, { 50, 2, false }, { 50, 3, false }, { 50, 0, false },
		{ 150, 1, true }, { 150, 2, false }, { 150, 3, false }, { 150, 0, false },
		{ 200, 1, true }, { 200, 2, true }, { 200, 3, true }, { 200, 0, true },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pair *pair = moved(0, 100, 100);
		struct ring_rx *rx = &pair->attacher.rx, before;

		assert_int_equal(take(pair, rows[i].taken), rows[i].taken);
		before = *rx;
		peer_publish_u64(&rx->ctl->tx_state.moved_at, 200);
		peer_publish_u64(&rx->front->tail_pos, 300 | MOVES(rows[i].moves));
		assert_int_equal(ring_rx_refresh(rx), rows[i].good ? 0 : -EPROTO);
		if (!rows[i].good)
			assert_true(rx->tail_seen == before.tail_seen && rx->last_move == before.last_move);
		pair_close(pair);
	}
}

static void heads_that_lie_are_refused_in_either_ring(void **state)
{
	struct pair *pair = moved(0, SMALL, 100);
	struct ring_tx *tx = &pair->creator.tx;
	static const uint64_t heads[] = { SMALL + 101, UINT64_MAX, UINT64_C(1) << 62, (UINT64_C(1) << 62) + 5 };

	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
		peer_publish_u64(&tx->ctl->rx.head_pos, heads[i]);
		assert_int_equal(ring_tx_room(tx, OVER), -EPROTO);
		assert_int_equal(ring_tx_queued(tx), -EPROTO);
		assert_true(ring_tx_room_now(tx) <= OVER);
		assert_true(sends_to(pair, RING_OVERFLOW));
	}
	pair_close(pair);
}

static void a_lane_without_an_overflow_ring_does_without(void **state)
{
	struct pair *pair = pair_open(SMALL);
	struct ring_tx tx;
	struct ring_rx rx;

	ring_tx_init(&tx, pair->creator.tx.front, pair->creator.tx.ctl, pair->creator.tx.data, NULL, SMALL);
	ring_rx_init(&rx, tx.front, tx.ctl, tx.data, NULL, SMALL);
	assert_int_equal(ring_tx_spare(&tx), 0);
	assert_false(ring_tx_overflow(&tx));
	assert_int_equal(ring_tx_room(&tx, OVER), SMALL);
	assert_int_equal(ring_rx_bytes(&rx), SMALL);
	for (unsigned moves = 1; moves < 4; moves += 2) {
		peer_publish_u64(&tx.ctl->tx_state.moved_at, 0);
		peer_publish_u64(&tx.front->tail_pos, 1 | MOVES(moves));
		assert_int_equal(ring_rx_refresh(&rx), -EPROTO);
	}
	pair_close(pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(holds_both_rings_full_from_every_start),
		cmocka_unit_test(gives_back_through_the_room_that_is_left),
		cmocka_unit_test(goes_back_when_everything_was_taken),
		cmocka_unit_test(does_not_stay_longer_than_it_must),
		cmocka_unit_test(there_and_back_and_there_again_at_one_look),
		cmocka_unit_test(reads_and_peeks_across_the_move),
		cmocka_unit_test(answers_travel_beside_the_tail_in_either_ring),
		cmocka_unit_test(room_as_anybody_sees_it_is_the_room_that_there_is),
		cmocka_unit_test(a_sender_asleep_is_rung_within_a_quarter_of_its_ring),
		cmocka_unit_test(a_sender_asleep_after_the_way_back_is_rung_too),
		cmocka_unit_test(a_move_by_itself_is_nothing_that_has_come),
		cmocka_unit_test(takes_over_from_a_holder_that_died_in_a_move),
		cmocka_unit_test(takes_over_from_a_receiver_that_died_in_a_move),
		cmocka_unit_test(refuses_moves_that_cannot_be),
		cmocka_unit_test(refuses_a_way_back_before_everything_was_taken),
		cmocka_unit_test(heads_that_lie_are_refused_in_either_ring),
		cmocka_unit_test(a_lane_without_an_overflow_ring_does_without),
	};

	alarm(50);
	return cmocka_run_group_tests_name("overflow", tests, NULL, NULL);
}
