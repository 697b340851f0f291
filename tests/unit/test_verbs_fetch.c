/* SPDX-License-Identifier: MIT */
/* Bytes that a sender holds back and its receiver fetches, and what may be told of them when. */
#include "verbs_fixture.h"

static void fetch_a_burst(void)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	size_t got;

	fake.by_hand = true;
	for (int i = 0; i < 20; i++)
		assert_int_equal(far_put(&p->a, 8), 8);
	/* Four are out, the rest is held; the sender's program is gone for good. */
	assert_int_equal(COUNT(&p->a, messages), 1 + WINDOW);
	fake_settle();
	got = far_take(&p->b, 4096);
	assert_int_equal(got, 8 * WINDOW);
	/* The receiver goes to sleep. */
	while (!p->b.ops->rx_sleep_begin(&p->b)) {
		assert_true(got < 160);
		fake_settle();
		assert_true(readable(verbs->wait_fd(&p->b)));
		verbs->pump(&p->b, VERBS_RUNG);
		link_rx_sleep_end(&p->b, false);
		got += far_take(&p->b, 4096);
		if (got == 160)
			break;
	}
	assert_int_equal(got, 160);
	assert_int_equal(COUNT(&p->b, fetches), 1);
	/* It comes back: nothing is counted twice. */
	assert_int_equal(far_put(&p->a, 3), 3);
	verbs->pump(&p->a, VERBS_LEAVE);
	fake_settle();
	assert_int_equal(far_take(&p->b, 4096), 3);
	assert_int_equal(far_take(&p->b, 4096), 0);
	far_close(p);
}

static void a_burst_is_fetched_from_a_sender_that_never_calls_again(void **state)
{
	fetch_a_burst();
	fake_reset();
	fake.iwarp = true;
	fetch_a_burst();
	assert_int_equal(fake.outside, 0);
}

/* What is being fetched arrives a lap late: nothing may lie in its place by then that is not the same. */
static void what_is_being_read_is_not_overwritten(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	size_t got = 0, sent = 160;

	fake.by_hand = true;
	fake.late_reads = true;
	for (int i = 0; i < 20; i++)
		far_put(&p->a, 8);
	fake_settle();
	got = far_take(&p->b, 4096);
	assert_int_equal(got, 8 * WINDOW);
	verbs->pump(&p->b, VERBS_ARM);
	fake_settle();
	verbs->pump(&p->b, VERBS_RUNG);
	fake_settle();
	/* The READ is on its way back. The sender returns, and as many bytes move as may. */
	for (int i = 0; i < 100; i++) {
		sent += far_put(&p->a, 500);
		verbs->pump(&p->a, VERBS_LEAVE);
		fake_settle();
		got += far_take(&p->b, 300);
		fake_settle();
	}
	assert_int_equal(sent, 8 * WINDOW + FAR_RING_BYTES);
	fake_land(qp_of(&p->b));
	for (int i = 0; i < 100; i++) {
		got += far_take(&p->b, 300);
		fake_settle();
		sent += far_put(&p->a, 500);
		verbs->pump(&p->a, VERBS_LEAVE);
		fake_settle();
	}
	assert_true(got > 3 * FAR_RING_BYTES);
	far_close(p);
}

/* Twenty messages are sent; what was announced is taken, and its number returned. The rest is fetched, as far as reads have landed. */
static size_t take_some_and_fetch(struct far_pair *p)
{
	size_t got;

	for (int i = 0; i < 20; i++)
		far_put(&p->a, 8);
	fake_settle();
	got = far_take(&p->b, 4096);
	verbs->pump(&p->b, VERBS_ARM);
	fake_settle();
	verbs->pump(&p->b, VERBS_RUNG);
	fake_settle();
	return got;
}

/* Bytes that were fetched are written once more when the sender returns: not over newer ones. */
static void what_was_fetched_is_not_granted_before_it_is_announced(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	size_t got;

	fake.by_hand = true;
	got = take_some_and_fetch(p);
	got += far_take(&p->b, 4096);
	assert_int_equal(got, 160);
	/* Something goes back, and tells no more than what was announced. */
	far_put(&p->b, 8);
	fake_settle();
	far_take(&p->a, 8);
	assert_int_equal(p->a.ops->queued(&p->a), 160 - 8 * WINDOW);
	assert_int_equal(ring_tx_room(&p->a.tx, FAR_RING_BYTES), FAR_RING_BYTES - (160 - 8 * WINDOW));
	far_close(p);
}

/* Of what is fetched and not announced no head can be told as it is; who takes it all may be gone for good. */
static void who_has_fetched_all_and_gone_leaves_no_sender_asleep(void **state)
{
	static const uint32_t rings[] = { FAR_RING_BYTES, 65536, 1 << 20, 8 << 20 };

	for (size_t i = 0; i < sizeof(rings) / sizeof(*rings); i++) {
		struct far_pair *p = far_open(rings[i]);
		size_t sent = 0, got = 0, n;

		/* While the receiver computes small messages use up all of its requests, then the ring is filled. */
		for (n = 1; n; sent += n)
			n = far_put(&p->a, sent < 200 ? 1 : 50000);
		assert_int_equal(sent, rings[i]);
		for (int looks = 0; got < sent && looks < 1000; looks++) {
			n = far_take(&p->b, 65536);
			got += n;
			if (!n && p->b.ops->rx_sleep_begin(&p->b))
				continue;
			if (!n)
				link_rx_sleep_end(&p->b, false);
			/* The sender is asleep: its program calls nothing. */
		}
		assert_int_equal(got, sent);
		assert_true(COUNT(&p->b, fetches) > 0);
		for (int wake = 0; wake < 4 && !p->a.ops->tx_sleep_begin(&p->a, SIZE_MAX); wake++) {
			link_tx_sleep_end(&p->a, false);
			assert_true(readable(verbs->wait_fd(&p->a)));
			verbs->pump(&p->a, VERBS_RUNG);
		}
		assert_true(ring_tx_room_now(&p->a.tx) >= ring_tx_low_water(&p->a.tx, SIZE_MAX));
		/* Nothing was lost by it. */
		for (int lap = 0; lap < 40 || got < sent; lap++) {
			if (lap < 40)
				sent += far_put(&p->a, 3000);
			else
				verbs->pump(&p->a, VERBS_LEAVE);
			got += far_take(&p->b, 65536);
		}
		assert_int_equal(fake.rnr, 0);
		far_close(p);
	}
}

/* It has taken what was announced meanwhile, and goes: the sender hears of it when the READ has landed. */
static void a_head_behind_what_is_being_read_is_told_after_it(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	size_t got, sent = 160, n;

	fake.by_hand = true;
	fake.late_reads = true;
	got = take_some_and_fetch(p);
	for (n = 1; n; sent += n) {
		n = far_put(&p->a, 500);
		verbs->pump(&p->a, VERBS_LEAVE);
		fake_settle();
	}
	while ((n = far_take(&p->b, 300)))
		got += n;
	assert_int_equal(got, sent);
	fake_settle();
	verbs->pump(&p->a, VERBS_ARM);
	assert_true(ring_tx_room_now(&p->a.tx) <= 8 * WINDOW);
	/* The receiver is not asked any more. */
	fake_land(qp_of(&p->b));
	fake_settle();
	assert_true(readable(verbs->wait_fd(&p->a)));
	verbs->pump(&p->a, VERBS_RUNG);
	assert_true(ring_tx_room_now(&p->a.tx) >= ring_tx_low_water(&p->a.tx, SIZE_MAX));
	far_close(p);
}

static void who_only_looks_fetches_too(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	size_t got = 0;

	fake.by_hand = true;
	for (int i = 0; i < 20; i++)
		far_put(&p->a, 8);
	for (int i = 0; i < 1000 && got < 160; i++) {
		fake_settle();
		got += far_take(&p->b, 4096);
	}
	assert_int_equal(got, 160);
	far_close(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_burst_is_fetched_from_a_sender_that_never_calls_again, fresh),
		cmocka_unit_test_setup(what_is_being_read_is_not_overwritten, fresh),
		cmocka_unit_test_setup(what_was_fetched_is_not_granted_before_it_is_announced, fresh),
		cmocka_unit_test_setup(who_has_fetched_all_and_gone_leaves_no_sender_asleep, fresh),
		cmocka_unit_test_setup(a_head_behind_what_is_being_read_is_told_after_it, fresh),
		cmocka_unit_test_setup(who_only_looks_fetches_too, fresh),
	};

	return cmocka_run_group_tests_name("verbs_fetch", tests, NULL, NULL);
}
