/* SPDX-License-Identifier: MIT */
/* The retreat where the frame of a switch lies behind bytes that nobody has read: they are given back to who sent them. */
#include "tests/unit/retreat_fixture.h"

/* As few as a sender at its end would send twice are waited for: the frame does not come behind them, and who ends leaves nothing that cannot be handed on. */
static void few_bytes_are_read_before_the_frame_comes(void **state)
{
	struct bench b = bench_open();

	(void)state;
	switch_little = RETREAT_RESENT_AT_END;
	bench_link(&b);
	assert_sends(b.a, b.a_fd, "before");
	assert_int_equal(conn_recv(b.b, b.b_fd, (char[2]){ 0 }, 2, 0), 2);
	for (int i = 0; i < 5; i++)
		assert_sends(b.a, b.a_fd, "after");
	assert_false(conn_tx_on_ring(b.a));
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_finds(b.b_fd, "foreafterafterafterafterafter");
	assert_int_equal(recv(b.b_fd, &(char){ 0 }, 1, MSG_DONTWAIT), 0);
	end(&b);

	/* The call that has read the last of them lets it come. */
	b = bench_open();
	bench_link(&b);
	assert_sends(b.a, b.a_fd, "before");
	assert_int_equal(conn_recv(b.b, b.b_fd, (char[2]){ 0 }, 2, 0), 2);
	assert_receives(b.b, b.b_fd, "fore");
	assert_sends(b.a, b.a_fd, "after");
	assert_true(conn_tx_on_ring(b.a));
	assert_receives(b.b, b.b_fd, "after");
	end(&b);
	switch_little = 0;
}

/* What a has sent is "before", of which b has read two bytes, then the frame; "after" lies in the ring. */
static struct bench buried(void)
{
	struct bench b = bench_open();

	bench_link(&b);
	setsockopt(b.a_fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
	assert_sends(b.a, b.a_fd, "before");
	assert_int_equal(conn_recv(b.b, b.b_fd, (char[2]){ 0 }, 2, 0), 2);
	assert_sends(b.a, b.a_fd, "after");
	assert_true(conn_tx_on_ring(b.a));
	return b;
}

static void bytes_in_front_of_the_frame_are_sent_again_first(void **state)
{
	struct bench b = buried();

	(void)state;
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_finds_nothing(b.b_fd);
	assert_sends(b.a, b.a_fd, ", and more");
	assert_finds(b.b_fd, "foreafter, and more");
	assert_back(b.a);
	assert_int_equal(send(b.b_fd, "answer", 6, 0), 6);
	assert_receives(b.a, b.a_fd, "answer");
	end(&b);

	/* Its end comes behind them. */
	b = buried();
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	bench_close_a(&b);
	assert_finds(b.b_fd, "foreafter");
	assert_int_equal(recv(b.b_fd, &(char){ 0 }, 1, MSG_DONTWAIT), 0);
	bench_close_b(&b);
}

/* Nobody could send them again. */
static void bytes_in_front_of_the_frame_stay_with_a_peer_that_ended(void **state)
{
	struct bench b = buried();

	(void)state;
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	assert_false(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_receives(b.b, b.b_fd, "foreafter");
	assert_int_equal(conn_recv(b.b, b.b_fd, (char[8]){ 0 }, 8, 0), 0);
	end(&b);
}

static void who_goes_on_reads_what_lies_in_front_of_the_frame(void **state)
{
	struct bench b = buried();

	(void)state;
	assert_false(retreat_back_unlocked(b.b, b.b_fd, REASON_PEEK_OFFSET));
	assert_receives(b.b, b.b_fd, "foreafter");
	assert_sends(b.a, b.a_fd, "more");
	assert_receives(b.b, b.b_fd, "more");
	assert_sends(b.b, b.b_fd, "answer");
	assert_receives(b.a, b.a_fd, "answer");
	assert_back(b.b);
	end(&b);
}

static void lie_about_what_was_given_back_resets(void **state)
{
	struct bench b = buried();

	(void)state;
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	peer_publish_u64(&b.a->link.tx.ctl->rx_state.given, UINT64_C(1) << 40);
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, 0), -ECONNRESET);
	end(&b);
}

/* More in front of the frame than a socket takes at once. */
static void full_socket_keeps_the_order_of_what_was_given_back(void **state)
{
	static uint8_t got[1 << 16];
	struct bench b = bench_open();
	uint64_t sent = 0, received = 1;
	int small = 4096;
	ssize_t n;

	(void)state;
	bench_link(&b);
	setsockopt(b.a_fd, SOL_SOCKET, SO_SNDBUF, &(int){ 1 << 20 }, sizeof(int));
	for (int i = 0; i < 120; i++) {
		for (uint64_t at = 0; at < 1000; at++)
			got[at] = byte_at(sent + at);
		n = conn_send(b.a, b.a_fd, got, 1000, 0);
		sent += n > 0 ? (uint64_t)n : 0;
		if (i == 50)
			assert_int_equal(conn_recv(b.b, b.b_fd, got, 1, 0), 1);
	}
	assert_true(conn_tx_on_ring(b.a));
	setsockopt(b.a_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	while (received < sent) {
		n = recv(b.b_fd, got, sizeof(got), MSG_DONTWAIT);
		for (ssize_t i = 0; i < n; i++, received++)
			assert_int_equal(got[i], byte_at(received));
		if (n <= 0)
			retreat_serve(b.a, b.a_fd);
	}
	assert_back(b.a);
	end(&b);
}

static void piece_of_who_was_killed_is_not_sent_twice(void **state)
{
	struct bench b = buried();

	(void)state;
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_true(retreat_leave(b.a, b.a_fd));
	killed_in_the_middle(&b, PIECE_GIVEN, "fo", 2);
	conn_tx_recover(b.a);
	assert_sends(b.a, b.a_fd, ", and more");
	assert_finds(b.b_fd, "foreafter, and more");
	end(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(few_bytes_are_read_before_the_frame_comes),
		cmocka_unit_test(bytes_in_front_of_the_frame_are_sent_again_first),
		cmocka_unit_test(bytes_in_front_of_the_frame_stay_with_a_peer_that_ended),
		cmocka_unit_test(who_goes_on_reads_what_lies_in_front_of_the_frame),
		cmocka_unit_test(lie_about_what_was_given_back_resets),
		cmocka_unit_test(full_socket_keeps_the_order_of_what_was_given_back),
		cmocka_unit_test(piece_of_who_was_killed_is_not_sent_twice),
	};

	switch_little = 0;
	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
