/* SPDX-License-Identifier: MIT */
/* The pages of an overflow ring: there once they are touched, gone when all was taken. */
#include <sched.h>

#include "overflow_fixture.h"

/* Without barriers nothing is trimmed. */
static size_t pages_of_overflow(const struct pair *pair)
{
	unsigned char there[OVER / 4096];
	size_t nr = 0;

	if (!barrier_available())
		skip();

	assert_int_equal(mincore(pair->attacher.rx.area[RING_OVERFLOW].data, OVER, there), 0);
	for (size_t i = 0; i < sizeof(there); i++)
		nr += there[i] & 1;
	return nr;
}

static int64_t now;

static void pages_go_back_when_everything_was_taken(void **state)
{
	struct pair *pair = moved(0, SMALL, OVER);
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;

	for (int i = 0; i < 5; i++) {
		assert_int_equal(pages_of_overflow(pair), OVER / 4096);
		assert_int_equal(take(pair, SMALL + OVER - 1), SMALL + OVER - 1);
		ring_rx_trim(rx, now += RING_TRIM_EVERY_NS);
		assert_int_equal(pages_of_overflow(pair), OVER / 4096);
		assert_int_equal(take(pair, 1), 1);
		assert_true(ring_rx_may_trim(rx));
		ring_rx_trim(rx, now += RING_TRIM_EVERY_NS);
		assert_false(ring_rx_may_trim(rx));
		assert_int_equal(pages_of_overflow(pair), 0);
		/* The sender, which has known nothing of it, goes on in the small ring, and then there again. */
		assert_int_equal(put(pair, SMALL), SMALL);
		assert_true(sends_to(pair, RING_SMALL));
		assert_int_equal(pages_of_overflow(pair), 0);
		assert_true(ring_tx_overflow(tx));
		assert_int_equal(put(pair, OVER), OVER);
	}
	pair_close(pair);
}

/* A stream that is drained again and again does not pay for its pages each time. */
static void pages_go_back_only_now_and_then(void **state)
{
	struct pair *pair = moved(0, SMALL, 5000);
	struct ring_rx *rx = &pair->attacher.rx;

	assert_int_equal(take(pair, SMALL + 5000), SMALL + 5000);
	ring_rx_trim(rx, now += RING_TRIM_EVERY_NS);
	assert_int_equal(pages_of_overflow(pair), 0);
	assert_int_equal(put(pair, SMALL), SMALL);
	assert_true(ring_tx_overflow(&pair->creator.tx));
	assert_int_equal(put(pair, 5000), 5000);
	assert_int_equal(take(pair, SMALL + 5000), SMALL + 5000);
	ring_rx_trim(rx, now + RING_TRIM_EVERY_NS - 1);
	assert_int_equal(pages_of_overflow(pair), 2);
	assert_true(ring_rx_may_trim(rx));
	ring_rx_trim(rx, now + RING_TRIM_EVERY_NS);
	assert_int_equal(pages_of_overflow(pair), 0);
	pair_close(pair);
}

static void pages_stay_that_the_sender_has_in_hand(void **state)
{
	struct pair *pair = moved(0, SMALL, 5000);
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;
	uint64_t end;

	assert_int_equal(ring_tx_room(tx, 3000), 3000);
	assert_int_equal(take(pair, SMALL + OVER), SMALL + 5000);
	/* It is in the middle of a copy. */
	for (uint64_t i = 0; i < 1500; i++) {
		uint8_t byte = stream_byte(tx->tail_pos + i);

		ring_put(tx, tx->tail_pos + i, &byte, 1);
	}
	end = tx->tail_pos + 1500;
	ring_rx_trim(rx, now += RING_TRIM_EVERY_NS);
	assert_int_equal(pages_of_overflow(pair), 2);
	ring_publish(tx, end);
	assert_int_equal(take(pair, OVER), 1500);
	/* It has sent less than it had claimed. */
	ring_rx_trim(rx, now += RING_TRIM_EVERY_NS);
	assert_int_equal(pages_of_overflow(pair), 2);
	ring_tx_unclaim(tx);
	ring_rx_trim(rx, now += RING_TRIM_EVERY_NS);
	assert_int_equal(pages_of_overflow(pair), 0);
	assert_int_equal(put(pair, 100), 100);
	assert_true(sends_to(pair, RING_SMALL));
	assert_int_equal(take(pair, 100), 100);
	pair_close(pair);
}

/* A receiver in the middle of it: no room is told there, a sleeper is rung when it is over, and one that died is made good. */
static void a_ring_that_is_being_trimmed_is_full(void **state)
{
	for (int entered = 0; entered < 2; entered++) {
		struct pair *pair = pair_open(SMALL);
		struct ring_tx *tx = &pair->creator.tx;
		struct ring_rx *rx = &pair->attacher.rx;

		assert_int_equal(put(pair, SMALL), SMALL);
		if (entered)
			assert_true(ring_tx_overflow(tx));
		peer_publish_u32(&rx->ctl->rx_state.trimming, 1);
		assert_int_equal(ring_tx_spare(tx), 0);
		assert_false(ring_tx_overflow(tx));
		assert_int_equal(ring_tx_room(tx, 100), 0);
		assert_int_equal(ring_tx_room_now(tx), 0);
		assert_false(ring_tx_sleep_begin(tx, SIZE_MAX));
		ring_rx_recover(rx);
		assert_true(readable(tx->bells.bell_fd, 0));
		ring_tx_sleep_end(tx, true);
		assert_int_equal(ring_tx_spare(tx), entered ? 0 : OVER);
		assert_int_equal(ring_tx_overflow(tx), !entered);
		assert_int_equal(put(pair, OVER), OVER);
		assert_int_equal(take(pair, SMALL + OVER), SMALL + OVER);
		pair_close(pair);
	}
}

/* Two processes, one of which trims at every chance: each byte comes, and the pages are gone in the end. */
static void nothing_is_lost_between_a_sender_and_a_trimmer(void **state)
{
	struct pair *pair = pair_open(SMALL);
	struct ring_tx *tx = &pair->creator.tx;
	struct ring_rx *rx = &pair->attacher.rx;
	const uint64_t total = 40000000;
	unsigned seed = 5;
	pid_t child = fork();
	int status;

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (tx->tail_pos < total) {
			size_t len = (size_t)rand_r(&seed) % (rand_r(&seed) % 8 ? 3000 : OVER);

			if (len > total - tx->tail_pos)
				len = total - tx->tail_pos;
			if (put(pair, len) < len && !ring_tx_overflow(tx))
				sched_yield();
		}
		_exit(0);
	}
	assert_true(child > 0);
	while (rx->head_pos < total) {
		if (!take(pair, 1 + (size_t)rand_r(&seed) % (rand_r(&seed) % 8 ? OVER : 100)))
			ring_rx_trim(rx, now += RING_TRIM_EVERY_NS);
		if (rand_r(&seed) % 16 == 0)
			sched_yield();
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	ring_rx_trim(rx, now += RING_TRIM_EVERY_NS);
	assert_int_equal(pages_of_overflow(pair), 0);
	pair_close(pair);
}

#define STREAM_BYTES 30000000
#define WAIT_MS 20000

/* Sleeps where neither ring has room, as a blocking send does. */
static bool sends_asleep(struct pair *pair, size_t len)
{
	struct ring_tx *tx = &pair->creator.tx;

	while (len) {
		size_t sent = put(pair, len);
		bool rung;

		if (sent)
			ring_tx_notify(tx);
		len -= sent;
		if (sent || ring_tx_overflow(tx) || ring_tx_sleep_begin(tx, SIZE_MAX))
			continue;
		rung = readable(tx->bells.bell_fd, WAIT_MS);
		ring_tx_sleep_end(tx, rung);
		if (!rung)
			return false;
	}
	return true;
}

/*
 * Both sides sleep at every chance, the receiver often trims before it sleeps, and is in turns slow, so that both rings fill up, and fast, so that
 * the lane goes back: nobody sleeps for ever, and each byte comes.
 */
static void nobody_is_left_asleep_beside_a_trimmer(void **state)
{
	struct pair *pair = pair_open(SMALL);
	struct ring_rx *rx = &pair->attacher.rx;
	unsigned seed = 11;
	pid_t child = fork_bound();

	if (!child) {
		barrier_init();
		while (pair->creator.tx.tail_pos < STREAM_BYTES) {
			size_t len = 1 + (size_t)rand_r(&seed) % (rand_r(&seed) % 4 ? 2000 : SMALL + OVER);
			size_t left = STREAM_BYTES - pair->creator.tx.tail_pos;

			if (!sends_asleep(pair, len < left ? len : left))
				_exit(1);
		}
		_exit(0);
	}
	for (unsigned turn = 0; rx->head_pos < STREAM_BYTES; turn++) {
		bool slow = turn / 64 % 2, rung;

		if (slow)
			sched_yield();
		if (take(pair, slow ? 1 + (size_t)rand_r(&seed) % 700 : SMALL + OVER))
			continue;
		/* It rings, too, so not always. */
		if (rand_r(&seed) % 2)
			ring_rx_trim(rx, now += RING_TRIM_EVERY_NS);
		if (ring_rx_sleep_begin(rx))
			continue;
		rung = readable(rx->bells.bell_fd, WAIT_MS);
		ring_rx_sleep_end(rx, rung);
		assert_true(rung);
	}
	assert_int_equal(exit_status(child), 0);
	pair_close(pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_go_back_when_everything_was_taken),
		cmocka_unit_test(pages_go_back_only_now_and_then),
		cmocka_unit_test(pages_stay_that_the_sender_has_in_hand),
		cmocka_unit_test(a_ring_that_is_being_trimmed_is_full),
		cmocka_unit_test(nothing_is_lost_between_a_sender_and_a_trimmer),
		cmocka_unit_test(nobody_is_left_asleep_beside_a_trimmer),
	};

	alarm(50);
	barrier_init();
	return cmocka_run_group_tests_name("overflow_memory", tests, NULL, NULL);
}
