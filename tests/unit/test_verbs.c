/* SPDX-License-Identifier: MIT */
/* What the engine puts on the wire and how often, and that every byte arrives. test_verbs_lies.c has what a peer may say that is not so. */
#include "verbs_fixture.h"

static void carries_bytes_both_ways(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	assert_string_equal(p->a.ops->name, "verbs");
	assert_int_equal(far_put(&p->a, 100), 100);
	assert_int_equal(far_take(&p->b, 1000), 100);
	assert_int_equal(far_put(&p->b, 5), 5);
	assert_int_equal(far_take(&p->a, 1000), 5);
	assert_int_equal(far_take(&p->a, 1000), 0);
	far_close(p);
}

static void random_sizes_over_many_laps(void **state)
{
	static const bool rows[][2] = { { false, false }, { true, false }, { false, true }, { true, true } };

	for (size_t row = 0; row < 4; row++) {
		struct far_pair *p;
		size_t sent = 0, got = 0;

		fake_reset();
		fake.iwarp = rows[row][0];
		p = far_open(FAR_RING_BYTES);
		fake.by_hand = rows[row][1];
		srandom(4711);
		while (got < 100 * FAR_RING_BYTES) {
			sent += far_put(&p->a, (size_t)random() % 3000);
			if (random() % 2)
				fake_run(qp_of(&p->a), (int)(random() % 4));
			if (random() % 3)
				got += far_take(&p->b, (size_t)random() % 3000);
			if (random() % 8 == 0) {
				fake_settle();
				far_put(&p->b, (size_t)random() % 40);
			}
			if (random() % 8 == 0)
				far_take(&p->a, 4096);
			assert_int_equal(verbs->pump(&p->a, 0), 0);
		}
		while (got < sent) {
			verbs->pump(&p->a, VERBS_LEAVE);
			fake_settle();
			got += far_take(&p->b, 4096);
		}
		assert_int_equal(fake.rnr, 0);
		assert_int_equal(fake.outside, 0);
		far_close(p);
	}
}

static void quiet_ping_pong_is_one_request_and_one_doorbell_a_message(void **state)
{
	struct far_pair *p = far_open(RING_BYTES_DEFAULT);
	uint64_t wr = COUNT(&p->a, wr), bells = COUNT(&p->a, doorbells), sent = COUNT(&p->a, send_cqes);
	uint64_t posts = COUNT(&p->a, recv_posts), recvs = COUNT(&p->a, recvs);

	for (int i = 0; i < 10000; i++) {
		far_put(&p->a, 8);
		assert_int_equal(far_take(&p->b, 64), 8);
		far_put(&p->b, 8);
		assert_int_equal(far_take(&p->a, 64), 8);
	}
	assert_int_equal(COUNT(&p->a, wr) - wr, 10000);
	assert_int_equal(COUNT(&p->a, doorbells) - bells, 10000);
	assert_true((COUNT(&p->a, send_cqes) - sent) * 16 <= 10000);
	assert_true((COUNT(&p->a, recv_posts) - posts) * 8 <= COUNT(&p->a, recvs) - recvs);
	assert_int_equal(COUNT(&p->a, fetches), 0);
	assert_int_equal(COUNT(&p->a, credits), 0);
	assert_int_equal(COUNT(&p->b, credits), 0);
	assert_int_equal(COUNT(&p->a, arms), 0);
	far_close(p);
}

static void saturated_small_messages_share_requests(void **state)
{
	struct far_pair *p = far_open(RING_BYTES_DEFAULT);
	uint64_t wr = COUNT(&p->a, wr);
	size_t got = 0;
	int sent = 0;

	fake.by_hand = true;
	/* The wire is as slow as forty calls. */
	while (sent < 40000) {
		if (far_put(&p->a, 8) == 8)
			sent++;
		if (sent % 40 == 0) {
			fake_settle();
			got += far_take(&p->b, 65536);
		}
	}
	verbs->pump(&p->a, VERBS_LEAVE);
	fake_settle();
	while (got < 8 * 40000) {
		got += far_take(&p->b, 65536);
		fake_settle();
	}
	assert_true((COUNT(&p->a, wr) - wr) * 10 <= 4 * 40000);
	assert_int_equal(fake.rnr, 0);
	far_close(p);
}

static void stream_is_large_requests_and_two_credits_a_ring(void **state)
{
	struct far_pair *p = far_open(RING_BYTES_DEFAULT);
	uint64_t wr = COUNT(&p->a, wr);
	uint64_t bytes = 0, laps;

	while (bytes < 100 * (uint64_t)RING_BYTES_DEFAULT) {
		bytes += far_put(&p->a, 65536);
		while (far_take(&p->b, 65536))
			;
	}
	laps = bytes / RING_BYTES_DEFAULT + 1;
	assert_true(COUNT(&p->a, wr) - wr <= bytes / 16384 + laps);
	assert_true(COUNT(&p->b, credits) <= 2 * laps);
	assert_true(COUNT(&p->b, credits) >= laps - 2);
	far_close(p);
}

static void who_sleeps_holds_nothing(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	fake.by_hand = true;
	for (int i = 0; i < 20; i++)
		far_put(&p->a, 8);
	assert_false(p->a.ops->rx_sleep_begin(&p->a));
	fake_settle();
	assert_int_equal(far_take(&p->b, 4096), 160);
	assert_int_equal(COUNT(&p->b, fetches), 0);
	link_rx_sleep_end(&p->a, false);
	far_close(p);
}

static void a_full_send_queue_waits_and_loses_nothing(void **state)
{
	struct far_pair *p = far_open(1 << 20);
	size_t sent = 0, got = 0;

	fake.by_hand = true;
	fake.hold_acks = true;
	/* Large enough that the gate lets each through: a request each. */
	while (far_put(&p->a, 16384))
		sent += 16384;
	for (int i = 0; i < 100; i++) {
		fake_settle();
		got += far_take(&p->b, 65536);
		if (i % 10 == 9) {
			fake_ack(qp_of(&p->a));
			fake_ack(qp_of(&p->b));
		}
		verbs->pump(&p->a, 0);
		if (sent < 8 << 20)
			sent += far_put(&p->a, 16384);
	}
	fake.hold_acks = false;
	for (int i = 0; i < 1000 && got < sent; i++) {
		fake_ack(qp_of(&p->a));
		fake_ack(qp_of(&p->b));
		verbs->pump(&p->a, VERBS_LEAVE);
		fake_settle();
		got += far_take(&p->b, 65536);
	}
	assert_int_equal(got, sent);
	assert_int_equal(fake.rnr, 0);
	far_close(p);
}

static void a_receiver_that_computes_is_not_overrun(void **state)
{
	struct far_pair *p = far_open(1 << 20);
	size_t sent = 0, got = 0;

	/* Completions come at once, so each small message may be a request of its own; nobody posts receive requests. */
	for (int i = 0; i < 4000; i++)
		sent += far_put(&p->a, 8);
	assert_int_equal(fake.rnr, 0);
	while (got < sent) {
		size_t n = far_take(&p->b, 4096);

		got += n;
		if (n)
			continue;
		/* The sender never calls again: what is left is fetched. */
		if (p->b.ops->rx_sleep_begin(&p->b))
			continue;
		assert_true(readable(verbs->wait_fd(&p->b)));
		verbs->pump(&p->b, VERBS_RUNG);
		link_rx_sleep_end(&p->b, false);
	}
	assert_int_equal(fake.rnr, 0);
	far_close(p);
}

/* Whose program computes, or sleeps: nothing but its device has to be there. */
static void who_leaves_a_busy_receiver_leaves_it_everything(void **state)
{
	struct far_pair *p = far_open(RING_BYTES_DEFAULT);
	size_t n, sent = 0, got = 0;

	for (int i = 0; i < 1000; i++) {
		sent += far_put(&p->a, 8);
		verbs->pump(&p->a, VERBS_ARM);
	}
	while ((n = far_put(&p->a, 8)))
		sent += n;
	assert_int_equal(sent, RING_BYTES_DEFAULT);
	assert_int_equal(verbs->flush(&p->a, 10), 0);
	verbs->stop(&p->a);
	while ((n = far_take(&p->b, 4096)))
		got += n;
	assert_int_equal(got, sent);
	assert_int_equal(fake.rnr, 0);
	far_close(p);
}

static void a_sender_waits_for_room_and_is_woken(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	struct ring_link *a = &p->a;

	assert_int_equal(far_put(a, 5000), FAR_RING_BYTES);
	assert_false(a->ops->tx_sleep_begin(a, 1));
	assert_false(readable(verbs->wait_fd(a)));
	/* Less than half a ring is not reported, half of it is. */
	far_take(&p->b, 1000);
	assert_false(readable(verbs->wait_fd(a)));
	far_take(&p->b, 1100);
	assert_true(readable(verbs->wait_fd(a)));
	verbs->pump(a, VERBS_RUNG);
	assert_true(readable(link_tx_fd(a)));
	link_tx_sleep_end(a, true);
	assert_true(a->ops->room(a, 1) >= FAR_RING_BYTES / 4);
	far_close(p);
}

static void whoever_pumps_wakes_the_other_sleepers(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	struct ring_link *b = &p->b;

	/* Two sleepers; the channel's event is taken by the one, the other hears its bell. */
	assert_false(b->ops->rx_sleep_begin(b));
	assert_false(b->ops->rx_sleep_begin(b));
	far_put(&p->a, 1);
	assert_true(readable(verbs->wait_fd(b)));
	assert_false(readable(link_rx_fd(b)));
	verbs->pump(b, VERBS_RUNG);
	assert_false(readable(verbs->wait_fd(b)));
	assert_true(readable(link_rx_fd(b)));
	link_rx_sleep_end(b, true);
	far_take(b, 1);
	/* The queue was armed again at once: the second one sleeps on. */
	far_put(&p->a, 1);
	assert_true(readable(verbs->wait_fd(b)));
	link_rx_sleep_end(b, true);
	far_close(p);
}

static void words_travel(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	struct ring_link *a = &p->a, *b = &p->b;
	uint64_t at = 0;

	assert_false(b->ops->rx_sleep_begin(b));
	lane_announce(a->tx.ctl, 7, 123456789);
	ring_tx_raise_attention(&a->tx, WAKE_ATTN_WORDS);
	assert_true(readable(verbs->wait_fd(b)));
	verbs->pump(b, VERBS_RUNG);
	assert_true(readable(link_rx_fd(b)));
	link_rx_sleep_end(b, true);
	assert_int_equal(ring_rx_take_attention(&b->rx), WAKE_ATTN_WORDS);
	assert_int_equal(ring_rx_take_attention(&b->rx), 0);
	assert_int_equal(lane_announced(b->rx.ctl, &at), 7);
	assert_int_equal(at, 123456789);
	assert_false(lane_voided(b->rx.ctl, 7));
	/* The answer; this end's own word is clear once it was sent. */
	lane_ack(b->rx.ctl, 7);
	ring_rx_raise_attention(&b->rx, WAKE_ATTN_WORDS);
	verbs->pump(a, 0);
	assert_true(lane_acked(a->tx.ctl, 7));
	assert_int_equal(ring_tx_take_attention(&a->tx), WAKE_ATTN_WORDS);
	assert_int_equal(peer_read_u32(&b->rx.ctl->rx_state.wake) & WAKE_ATTN_MASK, 0);
	/* A void goes with the next pump, and is known to be there when the flush is over. */
	lane_void(a->tx.ctl, 7);
	assert_int_equal(verbs->flush(a, 1000), 0);
	verbs->pump(b, 0);
	assert_true(lane_voided(b->rx.ctl, 7));
	far_close(p);
}

static void flush_waits_for_the_last_acknowledgement(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	fake.by_hand = true;
	far_put(&p->a, 100);
	assert_int_equal(verbs->flush(&p->a, 1), -ETIMEDOUT);
	fake_settle();
	assert_int_equal(verbs->flush(&p->a, 1), 0);
	assert_int_equal(far_take(&p->b, 4096), 100);
	far_close(p);
}

/* Its device answers every probe. */
/* It neither acknowledges nor gives up, as one that has lost its own timer. */
static void a_device_that_says_nothing_is_given_up(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	int r = 0;

	engine_of(&p->a)->patience_ms = 10;
	fake.by_hand = true;
	assert_int_equal(far_put(&p->a, 100), 100);
	while (!r)
		r = verbs->pump(&p->a, VERBS_PROBE);
	assert_int_equal(r, -EIO);
	far_close(p);
}

/* Whatever time has passed between two questions, and though nothing is acknowledged that nobody has asked for. */
static void one_that_answers_is_not(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	engine_of(&p->a)->patience_ms = 0;
	for (int i = 0; i < 30; i++) {
		assert_int_equal(verbs->pump(&p->a, VERBS_PROBE), 0);
		fake.by_hand = true;
		assert_int_equal(far_put(&p->a, 100), 100);
		assert_int_equal(verbs->pump(&p->a, VERBS_PROBE), 0);
		fake.by_hand = false;
		fake_settle();
		assert_int_equal(far_take(&p->b, 100), 100);
	}
	far_close(p);
}

static void flush_ends_though_the_receiver_takes_no_more(void **state)
{
	struct far_pair *p = far_open(1 << 24);

	while (far_put(&p->a, 65536) == 65536)
		;
	assert_int_equal(verbs->flush(&p->a, 10), -ETIMEDOUT);
	far_close(p);
}

static void a_stop_takes_stock_of_what_had_come(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	far_put(&p->a, 100);
	verbs->stop(&p->b);
	assert_int_equal(verbs->pump(&p->b, 0), -ESHUTDOWN);
	assert_int_equal(ring_rx_avail(&p->b.rx), 100);
	/* What comes too late lands nowhere, and the sender finds out. */
	far_put(&p->a, 50);
	assert_int_equal(verbs->pump(&p->a, 0), -EIO);
	assert_int_equal(verbs->pump(&p->b, VERBS_LEAVE), -ESHUTDOWN);
	assert_int_equal(far_take(&p->b, 4096), 100);
	assert_int_equal(far_take(&p->b, 4096), 0);
	far_close(p);
}

static void a_child_has_no_engine_and_reads_what_came(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);
	int status;
	pid_t pid;

	far_put(&p->a, 10);
	verbs->pump(&p->b, 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		uint8_t buf[16];
		bool ok = verbs->pump(&p->b, 0) == -ESRCH && verbs->wait_fd(&p->b) == -1 && !verbs->counts(&p->b) &&
			  ring_read(&p->b.rx, buf, sizeof(buf)) == 10 && buf[9] == byte_at(9);

		ring_write(&p->b.tx, buf, 1);
		ring_tx_notify(&p->b.tx);
		_exit(ok ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* What the child published goes out with the parent's next call. */
	verbs->pump(&p->b, 0);
	verbs->pump(&p->a, 0);
	assert_int_equal(ring_rx_avail(&p->a.rx), 1);
	far_close(p);
}

static void means_to_go(struct ring_link *link)
{
	peer_publish_u32(&link->rx.ctl->rx_state.asked, ASKED_GONE);
}

static bool has_heard_of_going(struct ring_link *link)
{
	return lane_asked(link->tx.ctl) == ASKED_GONE;
}

/* Who has said nothing yet itself hears it, whatever it is about to say. */
static void of_two_that_go_the_first_is_heard(void **state)
{
	for (int accepted = 0; accepted < 2; accepted++) {
		struct far_pair *p = far_open(FAR_RING_BYTES);
		struct ring_link *first = accepted ? &p->a : &p->b, *second = accepted ? &p->b : &p->a;

		means_to_go(first);
		means_to_go(second);
		assert_int_equal(verbs->flush(first, 1000), 0);
		verbs->stop(first);
		assert_int_equal(verbs->flush(second, 1000), -ESHUTDOWN);
		assert_true(has_heard_of_going(second));
		assert_false(has_heard_of_going(first));
		far_close(p);
	}
}

/* Of two that are about to, one does not. */
static void of_two_that_have_said_that_they_go_neither_is_heard(void **state)
{
	struct far_pair *p = far_open(FAR_RING_BYTES);

	fake.by_hand = true;
	means_to_go(&p->a);
	means_to_go(&p->b);
	verbs->pump(&p->b, VERBS_LEAVE);
	verbs->pump(&p->a, VERBS_LEAVE);
	fake_settle();
	assert_int_equal(verbs->pump(&p->a, 0), -EPROTO);
	assert_int_equal(verbs->pump(&p->b, 0), -EPROTO);
	assert_false(has_heard_of_going(&p->a) || has_heard_of_going(&p->b));
	far_close(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(carries_bytes_both_ways, fresh),
		cmocka_unit_test_setup(random_sizes_over_many_laps, fresh),
		cmocka_unit_test_setup(quiet_ping_pong_is_one_request_and_one_doorbell_a_message, fresh),
		cmocka_unit_test_setup(saturated_small_messages_share_requests, fresh),
		cmocka_unit_test_setup(stream_is_large_requests_and_two_credits_a_ring, fresh),
		cmocka_unit_test_setup(who_sleeps_holds_nothing, fresh),
		cmocka_unit_test_setup(a_full_send_queue_waits_and_loses_nothing, fresh),
		cmocka_unit_test_setup(a_receiver_that_computes_is_not_overrun, fresh),
		cmocka_unit_test_setup(who_leaves_a_busy_receiver_leaves_it_everything, fresh),
		cmocka_unit_test_setup(a_sender_waits_for_room_and_is_woken, fresh),
		cmocka_unit_test_setup(whoever_pumps_wakes_the_other_sleepers, fresh),
		cmocka_unit_test_setup(words_travel, fresh),
		cmocka_unit_test_setup(flush_waits_for_the_last_acknowledgement, fresh),
		cmocka_unit_test_setup(a_device_that_says_nothing_is_given_up, fresh),
		cmocka_unit_test_setup(one_that_answers_is_not, fresh),
		cmocka_unit_test_setup(flush_ends_though_the_receiver_takes_no_more, fresh),
		cmocka_unit_test_setup(a_stop_takes_stock_of_what_had_come, fresh),
		cmocka_unit_test_setup(a_child_has_no_engine_and_reads_what_came, fresh),
		cmocka_unit_test_setup(of_two_that_go_the_first_is_heard, fresh),
		cmocka_unit_test_setup(of_two_that_have_said_that_they_go_neither_is_heard, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
