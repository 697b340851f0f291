/* SPDX-License-Identifier: MIT */
/* A peer that says what is not so, a device that fails, a rendezvous that comes to nothing: the link ends, and nothing else happens. */
#include "verbs_fixture.h"

/* The link is dead for `why`, its sleepers are told, and nothing that was not sent is there to be read. */
static void assert_dead(struct ring_link *link, int why, uint64_t tail)
{
	assert_int_equal(verbs->pump(link, VERBS_EMPTY), why);
	assert_int_equal(verbs->pump(link, VERBS_LEAVE), why);
	assert_int_equal(peer_read_u64(&link->rx.front->tail_pos), tail);
	assert_true(ring_rx_attention(&link->rx) & WAKE_ATTN_WORDS);
	assert_true(ring_tx_attention(&link->tx) & WAKE_ATTN_WORDS);
	assert_int_equal(fake.outside, 0);
}

static void words_that_lie(void **state)
{
	static const struct {
		const char *what;
		uint32_t word;
		int result;
	} rows[] = {
		/* The honest word here has 100 bytes received, 16 batches, no credit. */
		{ "nothing new", 0x10000000, 0 },
		{ "as much as fits", 0x10000000 | (4096 - 100), 0 },
		{ "a byte more than fits", 0x10000000 | (4096 - 99), -EPROTO },
		{ "the longest length", 0x1000ffff, -EPROTO },
		{ "a credit for what was sent", 0x10010000, 0 },
		{ "a credit for what was not sent", 0x10020000, -EPROTO },
		{ "a credit that goes back", 0x10ff0000, -EPROTO },
		{ "a batch of requests too many", 0x11000000, -EPROTO },
		{ "requests that go back", 0x0f000000, -EPROTO },
		{ "held, reopened", 0xd0000000, 0 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct far_pair *p = far_open(FAR_RING_BYTES);
		struct ring_link *b = &p->b;

		far_put(&p->a, 100);
		far_put(b, 32);
		verbs->pump(b, 0);
		assert_int_equal(ring_rx_avail(&b->rx), 100);
		fake_say_word(qp_of(&p->a), rows[i].word);
		if (rows[i].result)
			assert_dead(b, rows[i].result, 100);
		else
			assert_int_equal(verbs->pump(b, 0), 0);
		far_close(p);
	}
}

static void messages_that_lie(void **state)
{
	static const struct {
		const char *what;
		uint8_t bytes[40];
		uint32_t len;
		int result;
	} rows[] = {
		{ "words", { 2, 0, 0, 0, 0, 0, 0, 0x10 }, 32, 0 },
		{ "a word", { 3, 0, 0, 0, 0, 0, 0, 0x10 }, 32, 0 },
		{ "no kind", { 0, 0, 0, 0, 0, 0, 0, 0x10 }, 32, -EPROTO },
		{ "an unknown kind", { 5, 0, 0, 0, 0, 0, 0, 0x10 }, 32, -EPROTO },
		{ "memory, again", { 1, 0, 0, 0, 0, 0, 0, 0x10 }, 32, -EPROTO },
		{ "who is about to go", { 2, 16, 0, 0, 0, 0, 0, 0x10 }, 32, 0 },
		{ "unknown attention", { 2, 32, 0, 0, 0, 0, 0, 0x10 }, 32, -EPROTO },
		{ "reserved bytes", { 2, 0, 1, 0, 0, 0, 0, 0x10 }, 32, -EPROTO },
		{ "who has gone", { 4, 0, 0, 0, 0, 0, 0, 0x10, 2 }, 32, -ESHUTDOWN },
		{ "who is away", { 4, 0, 0, 0, 0, 0, 0, 0x10, 3 }, 32, -ESHUTDOWN },
		{ "who has gone nowhere", { 4, 0, 0, 0, 0, 0, 0, 0x10, 1 }, 32, -EPROTO },
		{ "who has gone too far", { 4, 0, 0, 0, 0, 0, 0, 0x10, 4 }, 32, -EPROTO },
		{ "who has gone with what was not sent", { 4, 0, 0, 0, 0, 0, 0, 0x10, 2, [16] = 1 }, 32, -EPROTO },
		{ "who has gone, with attention", { 4, 1, 0, 0, 0, 0, 0, 0x10, 2 }, 32, -EPROTO },
		{ "who has left behind its end", { 4, 0, 0, 0, 0, 0, 0, 0x10, 2, [24] = 1 }, 32, -EPROTO },
		{ "who has left more than a ring in front of it", { 4, 0, 0, 0, 0, 0, 0, 0x10, 2, [24] = 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff }, 32, -EPROTO },
		{ "words with a length", { 2, 0, 0, 0, 1, 0, 0, 0x10 }, 32, -EPROTO },
		{ "a word with more behind it", { 3, 0, 0, 0, 0, 0, 0, 0x10, 1 }, 32, -EPROTO },
		{ "too short", { 2, 0, 0, 0, 0, 0, 0, 0x10 }, 31, -EPROTO },
		{ "empty", { 0 }, 0, -EPROTO },
		{ "a lie in its word", { 3, 0, 0, 0, 0, 0, 0x10, 0x10 }, 32, -EPROTO },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct far_pair *p = far_open(FAR_RING_BYTES);

		fake_say(qp_of(&p->a), rows[i].bytes, rows[i].len);
		if (rows[i].result)
			assert_dead(&p->b, rows[i].result, 0);
		else
			assert_int_equal(verbs->pump(&p->b, 0), 0);
		far_close(p);
	}
}

static void a_tail_that_lies_is_not_fetched(void **state)
{
	static const struct {
		uint64_t tail;
		int result;
	} rows[] = { { 0, 0 }, { 31, 0 }, { 33, 0 }, { FAR_RING_BYTES, 0 }, { FAR_RING_BYTES + 32, 0 },
		   { FAR_RING_BYTES + 33, -EPROTO }, { INT64_MAX, -EPROTO }, { UINT64_MAX, 0 } };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct far_pair *p = far_open(FAR_RING_BYTES);
		uint64_t end;

		for (int n = 0; n < WINDOW; n++)
			far_put(&p->a, 8);
		verbs->pump(&p->b, 0);
		/* Taken, and less than what is told by a credit. */
		ring_consume(&p->b.rx, 32);
		assert_true(engine_of(&p->b)->held);
		store_relaxed(&engine_of(&p->a)->shown->tail_pos, rows[i].tail);
		fake.by_hand = true;
		verbs->pump(&p->b, VERBS_ARM);
		fake_settle();
		verbs->pump(&p->b, VERBS_RUNG);
		fake_settle();
		/* The word that asked told the head: 32 bytes are granted anew. */
		end = rows[i].result || rows[i].tail < 32 || rows[i].tail == UINT64_MAX ? 32 : rows[i].tail;
		if (rows[i].result)
			assert_dead(&p->b, rows[i].result, end);
		else
			assert_int_equal(verbs->pump(&p->b, VERBS_RUNG), 0);
		assert_int_equal(peer_read_u64(&p->b.rx.front->tail_pos), end);
		fake.by_hand = false;
		far_close(p);
	}
}

static void a_failed_request_ends_both_ends_and_keeps_what_came(void **state)
{
	static const enum ibv_wc_status rows[] = { IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ACCESS_ERR,
						   IBV_WC_LOC_PROT_ERR, IBV_WC_FATAL_ERR };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct far_pair *p = far_open(FAR_RING_BYTES);

		far_put(&p->a, 100);
		fake_fail(qp_of(&p->a), rows[i]);
		far_put(&p->a, 50);
		assert_dead(&p->a, -EIO, 0);
		/* The one that had landed is there; the other one is still in the sender's ring. */
		assert_int_equal(verbs->pump(&p->b, 0), -ECONNRESET);
		assert_int_equal(ring_rx_avail(&p->b.rx), 100);
		assert_int_equal(p->a.tx.tail_pos, 150);
		assert_int_equal(p->a.ops->send(&p->a, "x", 1), 1);
		far_close(p);
	}
}

/* Whoever sends over a path that is cut: the device says so after the first try and all the others. */
static void a_dead_path_shows_within_a_second(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	uint64_t ns = (UINT64_C(4096) << fake.ack_timeout) * 7;

	assert_true(ns >= 875000000 && ns < 1000000000);
	far_close(p);
}

static void sleepers_hear_of_the_end(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	assert_int_equal(far_put(&p->b, FAR_RING_BYTES), FAR_RING_BYTES);
	assert_false(p->b.ops->rx_sleep_begin(&p->b));
	assert_false(p->b.ops->tx_sleep_begin(&p->b, 1));
	fake_fail(qp_of(&p->a), IBV_WC_RETRY_EXC_ERR);
	far_put(&p->a, 1);
	assert_true(readable(verbs->wait_fd(&p->b)));
	assert_int_equal(verbs->pump(&p->b, VERBS_RUNG), -ECONNRESET);
	assert_true(readable(link_rx_fd(&p->b)));
	assert_true(readable(link_tx_fd(&p->b)));
	far_close(p);
}

static void the_device_goes(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	far_put(&p->a, 1);
	fake.removed = true;
	far_put(&p->a, 1);
	assert_dead(&p->a, -EIO, 0);
	assert_int_equal(verbs->flush(&p->a, 1), -EIO);
	fake.removed = false;
	far_close(p);
}

static void a_device_that_waits_is_let_go(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	int before;

	far_put(&p->a, 30);
	verbs->pump(&p->b, VERBS_RUNG);
	assert_false(readable(verbs->wait_fd(&p->b)));
	before = fake_live();
	fake_remove(engine_of(&p->b)->id);
	assert_true(readable(verbs->wait_fd(&p->b)));
	assert_int_equal(verbs->pump(&p->b, VERBS_RUNG), -ENODEV);
	/* pd, channel, queue, queue pair, five registrations, id, events */
	assert_int_equal(before - fake_live(), 11);
	assert_int_equal(ring_rx_avail(&p->b.rx), 30);
	assert_false(readable(verbs->wait_fd(&p->b)));
	assert_int_equal(verbs->flush(&p->b, 1), -ENODEV);
	/* The other end hears of it. */
	assert_true(readable(verbs->wait_fd(&p->a)));
	assert_int_equal(verbs->pump(&p->a, VERBS_RUNG), -ECONNRESET);
	far_close(p);
}

static void the_peer_closes(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	far_put(&p->a, 77);
	assert_int_equal(verbs->flush(&p->a, 1000), 0);
	verbs->close(&p->a);
	assert_true(readable(verbs->wait_fd(&p->b)));
	assert_int_equal(verbs->pump(&p->b, VERBS_RUNG), -ECONNRESET);
	assert_int_equal(ring_rx_avail(&p->b.rx), 77);
	verbs->close(&p->b);
	munmap(p, sizeof(*p));
	assert_int_equal(fake_live(), 0);
}

static void keys_of_nothing(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	/* The peer's memory is not what it said: the device refuses, and both are done. */
	engine_of(&p->a)->peer_ring_key++;
	far_put(&p->a, 8);
	assert_int_equal(verbs->pump(&p->a, 0), -EIO);
	assert_int_equal(verbs->pump(&p->b, 0), -ECONNRESET);
	assert_int_equal(fake.outside, 1);
	far_close(p);
}

static void a_peer_cannot_reach_beyond_its_ring(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	struct verbs_link *b = engine_of(&p->b);

	/* What may be written from afar is the ring alone; what may be read is the other ring, and the tail. */
	assert_ptr_equal(b->rx_mr->addr, p->b.rx.data);
	assert_int_equal(b->rx_mr->length, FAR_RING_BYTES);
	assert_ptr_equal(b->tx_mr->addr, p->b.tx.data);
	assert_int_equal(b->tx_mr->length, FAR_RING_BYTES);
	engine_of(&p->a)->peer_ring += FAR_RING_BYTES - 4;
	far_put(&p->a, 8);
	assert_int_equal(verbs->pump(&p->a, 0), -EIO);
	far_close(p);
}

/* Whatever is said, in whatever order: nothing is granted twice, and a link that lives has told no more than fits. */
static void random_nonsense_never_passes_the_ring(void **state)
{
	srandom(815);
	for (int round = 0; round < 300; round++) {
		struct far_pair *p = far_open(FAR_RING_BYTES);
		struct verbs_link *b = engine_of(&p->b);
		uint64_t head = 0;

		fake.by_hand = true;
		for (int i = 0; i < 50 && !verbs->pump(&p->b, random() % 64); i++) {
			uint8_t bytes[MESSAGE_BYTES] = { 0 };
			uint32_t word = 0x10000000 | (uint32_t)random() % 3000;

			/* Mostly plausible, so that it gets far. */
			for (int n = 0; n < 3; n++)
				if (random() % 40 == 0)
					word ^= UINT32_C(1) << random() % 32;
			bytes[0] = (uint8_t)(2 + random() % 2);
			put_le(bytes + 4, word, 4);
			if (random() % 20 == 0)
				bytes[random() % MESSAGE_BYTES] ^= (uint8_t)random();
			if (random() % 2)
				fake_say_word(qp_of(&p->a), word);
			else
				fake_say(qp_of(&p->a), bytes, MESSAGE_BYTES);
			if (random() % 2)
				store_relaxed(&engine_of(&p->a)->shown->tail_pos, (uint64_t)random() % 12000);
			fake_settle();
			if (random() % 2) {
				ssize_t avail = ring_rx_avail_min(&p->b.rx, SIZE_MAX);

				assert_true(avail >= 0 && avail <= FAR_RING_BYTES);
				ring_consume(&p->b.rx, (size_t)(avail ? random() % avail : 0));
				head = p->b.rx.head_pos;
			}
			assert_true(verbs_tail(b) - (b->told_units << b->credit_shift) <= FAR_RING_BYTES);
			assert_true(b->head_units == 0 && head <= verbs_tail(b));
		}
		assert_int_equal(fake.outside, 0);
		fake.by_hand = false;
		far_close(p);
		fake_reset();
	}
}

static void rendezvous_that_come_to_nothing(void **state)
{
	struct sockaddr_in local = far_address(1000), peer = far_address(2000);
	struct verbs_attempt *dial, *offer;
	struct verbs_memory own;
	struct ring_link link = { 0 };

	/* Nobody listens. */
	assert_int_equal(verbs->dial(&dial, (struct sockaddr *)&peer, (struct sockaddr *)&local), VERBS_OK);
	assert_int_equal(verbs->step(dial), VERBS_ROUTED);
	assert_int_equal(verbs->equip(dial, &link, FAR_RING_BYTES, LANE_OF_CREATOR, &own), VERBS_OK);
	assert_int_equal(verbs->ask(dial, &own, sizeof(own)), VERBS_OK);
	assert_int_equal(verbs->step(dial), VERBS_FAILED);
	assert_int_equal(verbs->attempt_error(dial), VERBS_NO_LISTENER);
	assert_int_equal(verbs->step(dial), VERBS_FAILED);
	verbs->end(dial);
	assert_null(link.ops);
	assert_int_equal(fake_live(), 0);

	/* No device at either end. */
	fake.no_device = true;
	assert_int_equal(verbs->offer(&offer, (struct sockaddr *)&local), VERBS_NO_DEVICE);
	assert_int_equal(verbs->dial(&dial, (struct sockaddr *)&peer, (struct sockaddr *)&local), VERBS_OK);
	assert_int_equal(verbs->step(dial), VERBS_FAILED);
	assert_int_equal(verbs->attempt_error(dial), VERBS_NO_DEVICE);
	verbs->end(dial);
	assert_int_equal(fake_live(), 0);
	fake.no_device = false;

	/* None on the whole host, as once the only one has been taken away. The library's errno is not the program's. */
	fake.no_devices = true;
	errno = EAGAIN;
	assert_int_equal(verbs->offer(&offer, (struct sockaddr *)&local), VERBS_NO_DEVICE);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(verbs->dial(&dial, (struct sockaddr *)&peer, (struct sockaddr *)&local), VERBS_NO_DEVICE);
	assert_int_equal(errno, EAGAIN);
	fake.no_devices = false;

	/* Memory that cannot be pinned, whichever of the four it is. */
	for (unsigned nth = 0; nth < 4; nth++) {
		fake.fail_reg_mr = ENOMEM;
		fake.reg_mr_left = nth;
		assert_int_equal(verbs->dial(&dial, (struct sockaddr *)&peer, (struct sockaddr *)&local), VERBS_OK);
		assert_int_equal(verbs->step(dial), VERBS_ROUTED);
		assert_int_equal(verbs->equip(dial, &link, FAR_RING_BYTES, LANE_OF_CREATOR, &own), VERBS_MEMLOCK);
		verbs->end(dial);
		assert_int_equal(fake_live(), 0);
	}
	fake.fail_reg_mr = 0;

	/* Turned away; the offer stands and hears the next one. */
	assert_int_equal(verbs->offer(&offer, (struct sockaddr *)&local), VERBS_OK);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(verbs->dial(&dial, (struct sockaddr *)&peer, (struct sockaddr *)&local), VERBS_OK);
		assert_int_equal(verbs->step(dial), VERBS_ROUTED);
		assert_int_equal(verbs->equip(dial, &link, FAR_RING_BYTES, LANE_OF_CREATOR, &own), VERBS_OK);
		assert_int_equal(verbs->ask(dial, "nonsense", 8), VERBS_OK);
		assert_int_equal(verbs->step(offer), VERBS_ASKED);
		/* Once for want of room. */
		verbs->refuse(offer, i == 1);
		assert_int_equal(verbs->step(dial), VERBS_FAILED);
		assert_int_equal(verbs->attempt_error(dial), i == 1 ? VERBS_FULL : VERBS_REFUSED);
		verbs->end(dial);
	}
	assert_int_equal(verbs->step(offer), VERBS_WAIT);
	verbs->end(offer);
	assert_int_equal(fake_live(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(words_that_lie, fresh),
		cmocka_unit_test_setup(messages_that_lie, fresh),
		cmocka_unit_test_setup(a_tail_that_lies_is_not_fetched, fresh),
		cmocka_unit_test_setup(a_failed_request_ends_both_ends_and_keeps_what_came, fresh),
		cmocka_unit_test_setup(a_dead_path_shows_within_a_second, fresh),
		cmocka_unit_test_setup(sleepers_hear_of_the_end, fresh),
		cmocka_unit_test_setup(the_device_goes, fresh),
		cmocka_unit_test_setup(a_device_that_waits_is_let_go, fresh),
		cmocka_unit_test_setup(the_peer_closes, fresh),
		cmocka_unit_test_setup(keys_of_nothing, fresh),
		cmocka_unit_test_setup(a_peer_cannot_reach_beyond_its_ring, fresh),
		cmocka_unit_test_setup(random_nonsense_never_passes_the_ring, fresh),
		cmocka_unit_test_setup(rendezvous_that_come_to_nothing, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
