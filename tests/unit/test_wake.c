/* SPDX-License-Identifier: MIT */
#include "ring_fixture.h"

/* So many reads in a row that the receiver polls. */
static void make_polling(struct pair *pair)
{
	int i;

	barrier_init();
	for (i = 0; i < RING_POLLING_AFTER; i++) {
		send_bytes(pair, 1);
		take_bytes(pair, 1);
	}
}

static void rings_once_for_an_armed_receiver(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	assert_false(ring_rx_sleep_begin(rx));
	assert_int_equal(rx_word(pair), WAKE_ARMED | WAKE_SLEEPER);
	send_bytes(pair, 1);
	send_bytes(pair, 1);
	assert_int_equal(load_relaxed(&pair->creator.tx.counts.rings), 1);
	assert_true(readable(rx->bells.bell_fd, 0));
	ring_rx_sleep_end(rx, true);
	assert_int_equal(rx_word(pair), WAKE_AWAKE);
	pair_close(pair);
}

static void rings_nobody_who_is_awake(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);

	send_bytes(pair, 1);
	take_bytes(pair, 1);
	assert_int_equal(load_relaxed(&pair->creator.tx.counts.rings), 0);
	assert_false(readable(pair->attacher.rx.bells.bell_fd, 0));
	pair_close(pair);
}

static void does_not_sleep_on_what_is_there(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);

	send_bytes(pair, 1);
	assert_true(ring_rx_sleep_begin(&pair->attacher.rx));
	assert_int_equal(rx_word(pair), WAKE_AWAKE);
	send_bytes(pair, 1);
	assert_int_equal(load_relaxed(&pair->creator.tx.counts.rings), 0);
	pair_close(pair);
}

static void does_not_sleep_on_a_lie(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);

	peer_publish_u64(&pair->attacher.rx.front->tail_pos, UINT64_MAX);
	assert_true(ring_rx_sleep_begin(&pair->attacher.rx));
	assert_int_equal(ring_rx_avail(&pair->attacher.rx), -EPROTO);
	peer_publish_u64(&pair->creator.tx.ctl->rx.head_pos, 1);
	assert_true(ring_tx_sleep_begin(&pair->creator.tx, 1));
	pair_close(pair);
}

static void drains_only_what_may_have_been_rung(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;
	uint64_t drains = load_relaxed(&bell_counts.drains);

	/* Never armed: nothing to take. Beside another sleeper: a ring for that one may be on its way. */
	assert_false(ring_rx_sleep_begin(rx));
	assert_int_equal(load_relaxed(&bell_counts.drains), drains);
	assert_false(ring_rx_sleep_begin(rx));
	assert_int_equal(load_relaxed(&bell_counts.drains), ++drains);
	/* Rung: taken by the next sleep, which is then a real one. */
	send_bytes(pair, 1);
	ring_rx_sleep_end(rx, true);
	ring_rx_sleep_end(rx, true);
	take_bytes(pair, 1);
	assert_true(readable(rx->bells.bell_fd, 0));
	assert_false(ring_rx_sleep_begin(rx));
	assert_false(readable(rx->bells.bell_fd, 0));
	assert_int_equal(load_relaxed(&bell_counts.drains), drains + 1);
	ring_rx_sleep_end(rx, false);
	/* Armed, found something, nobody rang: the next sleep takes nothing. */
	pair_close(pair);

	pair = pair_open(FIXTURE_RING_BYTES);
	drains = load_relaxed(&bell_counts.drains);
	send_bytes(pair, 1);
	assert_true(ring_rx_sleep_begin(&pair->attacher.rx));
	take_bytes(pair, 1);
	assert_false(ring_rx_sleep_begin(&pair->attacher.rx));
	assert_int_equal(load_relaxed(&bell_counts.drains), drains);
	pair_close(pair);
}

/* A ring is sent a moment after ARMED was taken away, and another sleeper may have armed in between. */
static void a_late_ring_is_taken_by_the_next_who_arms(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	assert_false(ring_rx_sleep_begin(rx));
	assert_int_equal(bell_ring(pair->creator.tx.bells.bell_fd, &pair->creator.tx.bells.peer), 0);
	assert_false(ring_rx_sleep_begin(rx));
	assert_int_equal(rx_word(pair), WAKE_ARMED | 2 * WAKE_SLEEPER);
	assert_false(readable(rx->bells.bell_fd, 0));
	ring_rx_sleep_end(rx, false);
	ring_rx_sleep_end(rx, false);
	pair_close(pair);
}

static void a_bell_seen_readable_is_drained_though_armed_stands(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	/* A ring that came late, or for nothing. */
	assert_false(ring_rx_sleep_begin(rx));
	assert_false(ring_rx_sleep_begin(rx));
	bell_ring(pair->creator.tx.bells.bell_fd, &pair->creator.tx.bells.peer);
	assert_true(readable(rx->bells.bell_fd, 0));
	ring_rx_sleep_end(rx, true);
	assert_int_equal(rx_word(pair) & WAKE_STATE_MASK, WAKE_ARMED);
	assert_false(ring_rx_sleep_begin(rx));
	assert_false(readable(rx->bells.bell_fd, 0));
	pair_close(pair);
}

static void one_sleeper_does_not_disarm_another(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	assert_false(ring_rx_sleep_begin(rx));
	assert_false(ring_rx_sleep_begin(rx));
	assert_int_equal(rx_word(pair), WAKE_ARMED | 2 * WAKE_SLEEPER);
	ring_rx_sleep_end(rx, false);
	assert_int_equal(rx_word(pair), WAKE_ARMED | WAKE_SLEEPER);
	send_bytes(pair, 1);
	assert_true(readable(rx->bells.bell_fd, 0));
	/* A third one finds the byte and goes: the sleeper stays armed. */
	pair_close(pair);

	pair = pair_open(FIXTURE_RING_BYTES);
	rx = &pair->attacher.rx;
	assert_false(ring_rx_sleep_begin(rx));
	assert_int_equal(ring_write(&pair->creator.tx, "x", 1), 1);
	assert_true(ring_rx_sleep_begin(rx));
	assert_int_equal(rx_word(pair), WAKE_ARMED | WAKE_SLEEPER);
	ring_tx_notify(&pair->creator.tx);
	assert_true(readable(rx->bells.bell_fd, 0));
	pair_close(pair);
}

static void passes_on_a_ring_that_it_drained(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	assert_false(ring_rx_sleep_begin(rx));
	send_bytes(pair, 2);
	/* The sleeper is about to look at its bell; another thread takes the ring away and leaves with a part of the bytes. */
	assert_true(ring_rx_sleep_begin(rx));
	take_bytes(pair, 1);
	assert_true(readable(rx->bells.bell_fd, 0));
	pair_close(pair);
}

static void counts_sleepers_without_running_over(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;
	int i;

	for (i = 0; i < 70000; i++)
		assert_false(ring_rx_sleep_begin(rx));
	assert_int_equal(rx_word(pair), WAKE_ARMED | WAKE_SLEEPERS_MAX);
	for (i = 0; i < 70000; i++)
		ring_rx_sleep_end(rx, false);
	assert_int_equal(rx_word(pair), WAKE_AWAKE);
	pair_close(pair);
}

static void waits_past_what_lies_unread(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	send_bytes(pair, 3);
	assert_int_equal(ring_rx_avail(rx), 3);
	assert_false(ring_rx_sleep_begin_past(rx, rx->tail_seen));
	send_bytes(pair, 1);
	assert_true(readable(rx->bells.bell_fd, 0));
	ring_rx_sleep_end(rx, true);
	assert_true(ring_rx_sleep_begin_past(rx, rx->tail_seen));
	assert_int_equal(ring_rx_avail_min(rx, 4), 4);
	assert_false(ring_rx_sleep_begin_past(rx, rx->tail_seen));
	pair_close(pair);
}

/* Two threads: one waits for bytes, the other for bytes past those. The first is woken, and has not looked yet. */
static void waiting_past_leaves_the_ring_to_who_was_woken(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	assert_false(ring_rx_sleep_begin(rx));
	fetch_add(&rx->bells.nr_threads, 1);
	send_bytes(pair, 3);
	assert_true(readable(rx->bells.bell_fd, 0));
	assert_false(ring_rx_sleep_begin_past(rx, 3));
	assert_true(readable(rx->bells.bell_fd, 0));
	fetch_sub(&rx->bells.nr_threads, 1);
	/* Both look; the second has nothing to do yet, and now nobody needs the ring. */
	ring_rx_sleep_end(rx, true);
	ring_rx_sleep_end(rx, true);
	assert_int_equal(ring_rx_avail(rx), 3);
	assert_false(ring_rx_sleep_begin_past(rx, 3));
	assert_false(readable(rx->bells.bell_fd, 0));
	pair_close(pair);
}

/* The same of a sender that waits for room, and another that waits for attention only. */
static void waiting_for_attention_leaves_the_ring_to_who_was_woken(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;

	send_bytes(pair, FIXTURE_RING_BYTES);
	assert_false(ring_tx_sleep_begin(tx, 1));
	fetch_add(&tx->bells.nr_threads, 1);
	take_bytes(pair, FIXTURE_RING_BYTES);
	assert_true(readable(tx->bells.bell_fd, 0));
	assert_false(ring_tx_sleep_begin_words(tx));
	assert_true(readable(tx->bells.bell_fd, 0));
	fetch_sub(&tx->bells.nr_threads, 1);
	ring_tx_sleep_end(tx, true);
	ring_tx_sleep_end(tx, true);
	assert_false(ring_tx_sleep_begin_words(tx));
	assert_false(readable(tx->bells.bell_fd, 0));
	pair_close(pair);
}

static void a_sender_sleeps_until_a_quarter_is_free(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;

	send_bytes(pair, FIXTURE_RING_BYTES);
	assert_false(ring_tx_sleep_begin(tx, 1));
	take_bytes(pair, QUARTER - 1);
	assert_false(readable(tx->bells.bell_fd, 0));
	take_bytes(pair, 1);
	assert_true(readable(tx->bells.bell_fd, 0));
	assert_int_equal(load_relaxed(&pair->attacher.rx.counts.rings), 1);
	ring_tx_sleep_end(tx, true);
	assert_true(ring_tx_sleep_begin(tx, FIXTURE_RING_BYTES));
	assert_int_equal(tx_word(pair), WAKE_AWAKE);
	pair_close(pair);
}

static void a_sender_that_wants_little_does_not_sleep_on_little_room(void **state)
{
	static const struct {
		size_t free, want;
		bool found;
	} rows[] = {
		{ 0, 1, false },
		{ 1, 1, true },
		{ 7, 8, false },
		{ 8, 8, true },
		{ QUARTER - 1, QUARTER, false },
		{ QUARTER - 1, SIZE_MAX, false },
		{ QUARTER, SIZE_MAX, true },
		{ FIXTURE_RING_BYTES, SIZE_MAX, true },
	};
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pair *pair = pair_open(FIXTURE_RING_BYTES);

		send_bytes(pair, FIXTURE_RING_BYTES);
		if (rows[i].free)
			take_bytes(pair, rows[i].free);
		assert_int_equal(ring_tx_sleep_begin(&pair->creator.tx, rows[i].want), rows[i].found);
		pair_close(pair);
	}
}

/* Wherever the ring was filled up, draining it rings a sender that sleeps for any want. */
static void a_sleeping_sender_is_rung_before_the_ring_is_empty(void **state)
{
	uint64_t start;
	size_t step;

	for (start = 0; start < FIXTURE_RING_BYTES; start += 509) {
		for (step = 1; step <= FIXTURE_RING_BYTES / 2; step += 333) {
			struct pair *pair = pair_open(FIXTURE_RING_BYTES);
			struct ring_tx *tx = &pair->creator.tx;
			size_t taken = 0;

			pair_start_at(pair, start);
			send_bytes(pair, FIXTURE_RING_BYTES);
			while (!ring_tx_sleep_begin(tx, SIZE_MAX)) {
				while (!readable(tx->bells.bell_fd, 0)) {
					size_t len = step < FIXTURE_RING_BYTES - taken ? step : FIXTURE_RING_BYTES - taken;

					assert_true(len > 0);
					take_bytes(pair, len);
					taken += len;
				}
				ring_tx_sleep_end(tx, true);
			}
			assert_true(ring_tx_room(tx, SIZE_MAX) >= QUARTER);
			assert_true(taken <= 2 * QUARTER + step);
			pair_close(pair);
		}
	}
}

static void polls_after_many_reads_and_spares_the_sender_its_fence(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;
	uint32_t fences;
	int i;

	if (barrier_init() < 0) {
		print_message("membarrier is refused here\n");
		pair_close(pair);
		skip();
	}
	make_polling(pair);
	assert_int_equal(rx_word(pair), WAKE_POLLING);
	fences = load_relaxed(&tx->counts.fences);
	for (i = 0; i < 1000; i++) {
		assert_int_equal(send_bytes(pair, 1), 0);
		take_bytes(pair, 1);
	}
	assert_int_equal(load_relaxed(&tx->counts.fences), fences);
	assert_int_equal(load_relaxed(&tx->counts.rings), 0);
	assert_int_equal(load_relaxed(&pair->attacher.rx.counts.heavy), 0);
	/* Going to sleep pays for it, once. */
	assert_false(ring_rx_sleep_begin(&pair->attacher.rx));
	assert_int_equal(load_relaxed(&pair->attacher.rx.counts.heavy), 1);
	send_bytes(pair, 1);
	assert_int_equal(load_relaxed(&tx->counts.rings), 1);
	ring_rx_sleep_end(&pair->attacher.rx, true);
	assert_int_equal(rx_word(pair), WAKE_AWAKE);
	pair_close(pair);
}

static void does_not_poll_without_membarrier(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);

	make_polling(pair);
	ring_rx_leave_polling(&pair->attacher.rx);
	assert_int_equal(rx_word(pair), WAKE_AWAKE);
	barrier_disable();
	for (int i = 0; i < 2 * RING_POLLING_AFTER; i++) {
		send_bytes(pair, 1);
		take_bytes(pair, 1);
	}
	assert_int_equal(rx_word(pair), WAKE_AWAKE);
	barrier_init();
	pair_close(pair);
}

static void leaving_polling_pays_once_and_only_then(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	if (barrier_init() < 0) {
		pair_close(pair);
		skip();
	}
	make_polling(pair);
	ring_rx_leave_polling(rx);
	assert_int_equal(rx_word(pair), WAKE_AWAKE);
	assert_int_equal(load_relaxed(&rx->counts.heavy), 1);
	ring_rx_leave_polling(rx);
	assert_int_equal(load_relaxed(&rx->counts.heavy), 1);
	send_bytes(pair, 1);
	assert_int_equal(load_relaxed(&pair->creator.tx.counts.rings), 0);
	pair_close(pair);
}

static void does_not_poll_while_another_sleeps(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);

	barrier_init();
	assert_false(ring_rx_sleep_begin(&pair->attacher.rx));
	for (int i = 0; i < 4 * RING_POLLING_AFTER; i++) {
		send_bytes(pair, 1);
		take_bytes(pair, 1);
		assert_int_not_equal(rx_word(pair) & WAKE_STATE_MASK, WAKE_POLLING);
	}
	pair_close(pair);
}

static void an_unregistered_sender_fences_for_itself(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	uint32_t before, fences;

	make_polling(pair);
	before = load_relaxed(&barrier_state);
	store_relaxed(&barrier_state, 0);
	fences = load_relaxed(&pair->creator.tx.counts.fences);
	send_bytes(pair, 1);
	assert_int_equal(load_relaxed(&pair->creator.tx.counts.fences), fences + 1);
	store_relaxed(&barrier_state, before);
	pair_close(pair);
}

static void attention_wakes_and_is_taken_once(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;

	assert_false(ring_rx_sleep_begin(rx));
	ring_tx_raise_attention(tx, WAKE_ATTN_WORDS);
	assert_true(readable(rx->bells.bell_fd, 0));
	ring_rx_sleep_end(rx, true);
	assert_true(ring_rx_sleep_begin(rx));
	assert_int_equal(ring_rx_take_attention(rx), WAKE_ATTN_WORDS);
	assert_int_equal(ring_rx_take_attention(rx), 0);
	assert_false(ring_rx_sleep_begin(rx));
	ring_rx_sleep_end(rx, false);

	send_bytes(pair, FIXTURE_RING_BYTES);
	assert_false(ring_tx_sleep_begin(tx, 1));
	ring_rx_raise_attention(rx, WAKE_ATTN_KERNEL);
	assert_true(readable(tx->bells.bell_fd, 0));
	ring_tx_sleep_end(tx, true);
	assert_true(ring_tx_sleep_begin(tx, 1));
	assert_int_equal(ring_tx_take_attention(tx), WAKE_ATTN_KERNEL);
	assert_int_equal(ring_tx_take_attention(tx), 0);
	pair_close(pair);
}

static void attention_is_seen_by_a_send_while_polling(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);

	make_polling(pair);
	ring_rx_raise_attention(&pair->attacher.rx, WAKE_ATTN_WORDS);
	assert_int_equal(send_bytes(pair, 1), WAKE_ATTN_WORDS);
	assert_int_equal(send_bytes(pair, 1), WAKE_ATTN_WORDS);
	assert_int_equal(ring_tx_take_attention(&pair->creator.tx), WAKE_ATTN_WORDS);
	assert_int_equal(send_bytes(pair, 1), 0);
	pair_close(pair);
}

static void attention_survives_arming(void **state)
{
	struct pair *pair = pair_open(FIXTURE_RING_BYTES);
	struct ring_rx *rx = &pair->attacher.rx;

	ring_rx_raise_attention(rx, WAKE_ATTN_WORDS);
	assert_false(ring_rx_sleep_begin(rx));
	send_bytes(pair, 1);
	ring_rx_sleep_end(rx, true);
	assert_int_equal(rx_word(pair), WAKE_ATTN_WORDS);
	pair_close(pair);
}

/* Whatever the peer writes into our wake word, we only sleep or do not. */
static void survives_any_wake_word(void **state)
{
	static const uint32_t words[] = { 3, 0xffffffff, 0x7fffffff, 0xffff0001, 0x10001, 0x10002, 0xfffffff0, 0xc };
	size_t i;

	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		struct pair *pair = pair_open(FIXTURE_RING_BYTES);

		peer_publish_u32(&pair->attacher.rx.ctl->rx_state.wake, words[i]);
		peer_publish_u32(&pair->creator.tx.ctl->tx_state.wake, words[i]);
		send_bytes(pair, FIXTURE_RING_BYTES);
		ring_rx_sleep_begin(&pair->attacher.rx);
		ring_rx_sleep_end(&pair->attacher.rx, true);
		ring_tx_sleep_begin(&pair->creator.tx, 1);
		ring_tx_sleep_end(&pair->creator.tx, true);
		ring_rx_leave_polling(&pair->attacher.rx);
		ring_rx_take_attention(&pair->attacher.rx);
		ring_tx_take_attention(&pair->creator.tx);
		take_bytes(pair, FIXTURE_RING_BYTES);
		pair_close(pair);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rings_once_for_an_armed_receiver),
		cmocka_unit_test(rings_nobody_who_is_awake),
		cmocka_unit_test(a_late_ring_is_taken_by_the_next_who_arms),
		cmocka_unit_test(does_not_sleep_on_what_is_there),
		cmocka_unit_test(does_not_sleep_on_a_lie),
		cmocka_unit_test(drains_only_what_may_have_been_rung),
		cmocka_unit_test(a_bell_seen_readable_is_drained_though_armed_stands),
		cmocka_unit_test(one_sleeper_does_not_disarm_another),
		cmocka_unit_test(passes_on_a_ring_that_it_drained),
		cmocka_unit_test(counts_sleepers_without_running_over),
		cmocka_unit_test(waits_past_what_lies_unread),
		cmocka_unit_test(waiting_past_leaves_the_ring_to_who_was_woken),
		cmocka_unit_test(waiting_for_attention_leaves_the_ring_to_who_was_woken),
		cmocka_unit_test(a_sender_sleeps_until_a_quarter_is_free),
		cmocka_unit_test(a_sender_that_wants_little_does_not_sleep_on_little_room),
		cmocka_unit_test(a_sleeping_sender_is_rung_before_the_ring_is_empty),
		cmocka_unit_test(polls_after_many_reads_and_spares_the_sender_its_fence),
		cmocka_unit_test(does_not_poll_without_membarrier),
		cmocka_unit_test(leaving_polling_pays_once_and_only_then),
		cmocka_unit_test(does_not_poll_while_another_sleeps),
		cmocka_unit_test(an_unregistered_sender_fences_for_itself),
		cmocka_unit_test(attention_wakes_and_is_taken_once),
		cmocka_unit_test(attention_is_seen_by_a_send_while_polling),
		cmocka_unit_test(attention_survives_arming),
		cmocka_unit_test(survives_any_wake_word),
	};

	alarm(50);
	return cmocka_run_group_tests_name("wake", tests, NULL, NULL);
}
