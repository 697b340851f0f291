/* SPDX-License-Identifier: MIT */
/* The retreat of a connection, each step of RETREAT.md against the states that it can meet. */
#include "tests/unit/retreat_fixture.h"

#include <sys/ioctl.h>

#include "shim/conn_probe.h"

/* All that a takes, of a known sequence. */
static uint64_t fill(struct bench *b)
{
	static uint8_t piece[1 << 14];
	uint64_t sent = 0;
	ssize_t n;

	do {
		for (size_t i = 0; i < sizeof(piece); i++)
			piece[i] = byte_at(sent + i);
		n = conn_send(b->a, b->a_fd, piece, sizeof(piece), 0);
		sent += n > 0 ? (uint64_t)n : 0;
	} while (n > 0);
	assert_int_equal(n, -EAGAIN);
	return sent;
}

static void who_goes_hands_on_a_quiet_connection(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_back(b.b);
	assert_sends(b.a, b.a_fd, "to the successor");
	assert_true(conn_rx_on_ring(b.a) && !conn_tx_on_ring(b.a));
	assert_finds(b.b_fd, "to the successor");
	assert_int_equal(send(b.b_fd, "answer", 6, 0), 6);
	assert_receives(b.a, b.a_fd, "answer");
	assert_back(b.a);
	end(&b);
}

static void what_was_not_read_comes_over_tcp_before_anything_else(void **state)
{
	struct bench b = bench_on_rings();
	char got[8];

	(void)state;
	assert_sends(b.a, b.a_fd, "read, not read, ");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 6, 0), 6);
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_finds_nothing(b.b_fd);
	assert_sends(b.a, b.a_fd, "and then");
	assert_finds(b.b_fd, "not read, and then");
	end(&b);
}

/* Receives and waits, and sends nothing. */
static void who_only_receives_answers_too(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_sends(b.a, b.a_fd, "not read");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_nothing(b.a, b.a_fd);
	assert_finds(b.b_fd, "not read");
	end(&b);

	b = bench_on_rings();
	assert_sends(b.a, b.a_fd, "not read");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_true(conn_hold(b.a, b.a_fd));
	conn_ready(b.a, b.a_fd, POLLIN, 0);
	conn_drop(b.a);
	assert_finds(b.b_fd, "not read");
	end(&b);
}

static void who_has_the_ring_drains_it_and_discards_what_came_twice(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_sends(b.b, b.b_fd, "in the ring, ");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_int_equal(send(b.b_fd, "by the successor", 16, 0), 16);
	assert_receives(b.a, b.a_fd, "in the ring, by the successor");
	assert_nothing(b.a, b.a_fd);
	assert_back(b.a);
	end(&b);
}

static void readiness_does_not_take_the_overlap_for_data(void **state)
{
	struct bench b = bench_on_rings();
	char got[16];

	(void)state;
	assert_sends(b.b, b.b_fd, "in the ring");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_true(conn_hold(b.a, b.a_fd));
	assert_int_equal(conn_ready(b.a, b.a_fd, POLLIN, POLLIN) & POLLIN, POLLIN);
	assert_int_equal(conn_recv(b.a, b.a_fd, got, 10, 0), 10);
	/* The last byte is taken without a look at the socket, as by a reader that knew of it before the sender left. */
	ring_consume(&b.a->link.rx, 1);
	assert_int_equal(conn_ready(b.a, b.a_fd, POLLIN, POLLIN) & POLLIN, 0);
	assert_back(b.a);
	assert_int_equal(send(b.b_fd, "more", 4, 0), 4);
	assert_int_equal(conn_ready(b.a, b.a_fd, POLLIN, POLLIN) & POLLIN, POLLIN);
	conn_drop(b.a);
	assert_receives(b.a, b.a_fd, "more");
	end(&b);
}

static void both_go_one_after_the_other(void **state)
{
	struct bench b = bench_on_rings();
	char got[4];

	(void)state;
	assert_sends(b.a, b.a_fd, "one not read");
	assert_sends(b.b, b.b_fd, "two not read");
	assert_int_equal(conn_recv(b.a, b.a_fd, got, 4, 0), 4);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 4, 0), 4);
	assert_true(retreat_go_unlocked(b.a, b.a_fd, REASON_EXEC));
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_finds(b.a_fd, "not read");
	assert_finds(b.b_fd, "not read");
	end(&b);
}

static void probes_are_taken_before_the_overlap(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_int_equal(conn_lock_both(b.b), 0);
	assert_int_equal(conn_write_probe(b.b, b.b_fd), 0);
	assert_int_equal(conn_write_probe(b.b, b.b_fd), 0);
	conn_unlock_both(b.b);
	assert_sends(b.b, b.b_fd, "in the ring, ");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_int_equal(send(b.b_fd, "more", 4, 0), 4);
	assert_receives(b.a, b.a_fd, "in the ring, more");
	end(&b);
}

static void who_goes_takes_the_probes_out_and_gets_no_more(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_int_equal(conn_lock_both(b.a), 0);
	assert_int_equal(conn_write_probe(b.a, b.a_fd), 0);
	conn_unlock_both(b.a);
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_finds_nothing(b.b_fd);
	assert_int_equal(conn_lock_both(b.a), 0);
	conn_write_probe(b.a, b.a_fd);
	conn_unlock_both(b.a);
	assert_finds_nothing(b.b_fd);
	end(&b);
}

static void frame_is_not_written_to_who_has_gone(void **state)
{
	struct bench b = bench_open();

	(void)state;
	bench_link(&b);
	assert_nothing(b.b, b.b_fd); /* acknowledges */
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_sends(b.a, b.a_fd, "data");
	assert_finds(b.b_fd, "data");
	assert_back(b.a);
	end(&b);
}

static void switch_whose_frame_has_come_is_carried_out_first(void **state)
{
	struct bench b = bench_open();

	(void)state;
	bench_link(&b);
	assert_nothing(b.b, b.b_fd);
	assert_sends(b.a, b.a_fd, "over the ring");
	assert_true(conn_tx_on_ring(b.a));
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_finds_nothing(b.b_fd);
	assert_nothing(b.a, b.a_fd);
	assert_finds(b.b_fd, "over the ring");
	end(&b);
}

static void end_in_front_of_the_retreat_leaves_the_last_bytes_in_the_socket(void **state)
{
	struct bench b = bench_on_rings();
	char got[4];

	(void)state;
	assert_sends(b.a, b.a_fd, "not read");
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 4, 0), 4);
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_finds(b.b_fd, "read");
	assert_int_equal(recv(b.b_fd, got, sizeof(got), MSG_DONTWAIT), 0);
	end(&b);
}

/* Who is that far behind drains the ring; in its socket the bytes would be there for nothing. */
static void end_of_a_long_stream_leaves_its_bytes_in_the_ring(void **state)
{
	struct bench b = bench_on_rings();
	uint64_t sent = fill(&b), done = 0;
	int unread = -1;
	uint8_t got;

	(void)state;
	assert_true(sent > 64 << 10);
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	assert_int_equal(ioctl(b.b_fd, FIONREAD, &unread), 0);
	assert_int_equal(unread, 0);
	for (; conn_recv(b.b, b.b_fd, &got, 1, 0) == 1; done++)
		assert_int_equal(got, byte_at(done));
	assert_int_equal(done, sent);
	end(&b);
}

static void end_is_told_once_however_often_the_last_bytes_came(void **state)
{
	struct bench b = bench_on_rings();
	char got[4];

	(void)state;
	assert_sends(b.a, b.a_fd, "not read");
	bench_close_a(&b);
	assert_receives(b.b, b.b_fd, "not read");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	conn_tell_summary(b.b, true);
	assert_int_equal(told.reasons[REASON_RETREAT], 0);
	bench_close_b(&b);
}

static void what_lies_in_the_ring_alone_cannot_be_handed_on(void **state)
{
	struct bench b = bench_on_rings();
	int small = 4096;

	(void)state;
	setsockopt(b.a_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	setsockopt(b.b_fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	fill(&b);
	assert_true(retreat_go_unlocked(b.a, b.a_fd, REASON_EXEC));
	assert_false(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	end(&b);
}

static void end_behind_the_retreat_comes_after_the_last_byte(void **state)
{
	struct bench b = bench_on_rings();
	char got[4];

	(void)state;
	assert_sends(b.a, b.a_fd, "not read");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	assert_finds(b.b_fd, "not read");
	assert_int_equal(recv(b.b_fd, got, sizeof(got), MSG_DONTWAIT), 0);
	end(&b);

	b = bench_on_rings();
	assert_sends(b.a, b.a_fd, "not read");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	bench_close_a(&b);
	assert_finds(b.b_fd, "not read");
	assert_int_equal(recv(b.b_fd, got, sizeof(got), MSG_DONTWAIT), 0);
	bench_close_b(&b);
}

/* More than a socket takes: what is owed waits, and what is sent behind it waits, too. */
static void full_socket_keeps_the_order(void **state)
{
	static uint8_t got[1 << 16];
	struct bench b = bench_on_rings();
	uint64_t sent, received = 0, more = 0;
	int small = 4096;
	ssize_t n;

	(void)state;
	setsockopt(b.a_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	sent = fill(&b);
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_nothing(b.a, b.a_fd);
	assert_string_equal(tx_state_name(load_relaxed(&b.a->tx.state)), "LEFT");
	assert_true(retreat_owes(b.a));
	/* Who receives sends the rest, too: it must not sleep in the kernel. */
	assert_nothing(b.a, b.a_fd);
	assert_int_equal(load_relaxed(&b.a->rx.mode), MODE_SLOW);
	assert_true(conn_kernel_events(b.a, POLLIN) & POLLOUT);
	assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, 0), -EAGAIN);
	while (received < sent + 10) {
		n = recv(b.b_fd, got, sizeof(got), MSG_DONTWAIT);
		for (ssize_t i = 0; i < n; i++, received++)
			assert_int_equal(got[i], received < sent ? byte_at(received) : 'x');
		if (n <= 0 && more < 10)
			more += conn_send(b.a, b.a_fd, "x", 1, 0) == 1;
		else if (n <= 0)
			retreat_serve(b.a, b.a_fd);
	}
	assert_int_equal(more, 10);
	assert_back(b.a);
	end(&b);
}

/* The bytes of a full ring, to a receiver that has it, and reads them from there meanwhile. */
static void what_the_receiver_has_taken_is_not_sent_again(void **state)
{
	static uint8_t got[1 << 16];
	struct bench b = bench_on_rings();
	uint64_t sent, received = 0;
	int small = 4096;
	ssize_t n;

	(void)state;
	setsockopt(b.a_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	sent = fill(&b);
	assert_true(retreat_go_unlocked(b.a, b.a_fd, REASON_EXEC));
	assert_back(b.a);
	while (received < sent) {
		n = conn_recv(b.b, b.b_fd, got, sizeof(got), 0);
		assert_true(n > 0);
		for (ssize_t i = 0; i < n; i++, received++)
			assert_int_equal(got[i], byte_at(received));
	}
	assert_nothing(b.b, b.b_fd);
	assert_int_equal(send(b.a_fd, "then", 4, 0), 4);
	assert_receives(b.b, b.b_fd, "then");
	/* It was cut: the rest was in the ring alone. */
	end(&b);
}

static void lie_about_where_tcp_goes_on_resets(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_true(retreat_go_unlocked(b.a, b.a_fd, REASON_EXEC));
	peer_publish_u64(&b.a->link.tx.ctl->tx_state.left_at, UINT64_C(1) << 40);
	assert_int_equal(conn_recv(b.b, b.b_fd, &(char){ 0 }, 1, 0), -ECONNRESET);
	end(&b);

	b = bench_on_rings();
	assert_sends(b.a, b.a_fd, "x");
	assert_true(retreat_go_unlocked(b.a, b.a_fd, REASON_EXEC));
	peer_publish_u32(&b.a->link.tx.ctl->tx_state.left, LEFT_CUT);
	peer_publish_u64(&b.a->link.tx.ctl->tx_state.resent_to, UINT64_C(1) << 40);
	assert_receives(b.b, b.b_fd, "x");
	assert_int_equal(conn_recv(b.b, b.b_fd, &(char){ 0 }, 1, 0), -ECONNRESET);
	end(&b);
}

/* Its last bytes lie in its socket, too; unread there, they would make a reset of its end. */
static void reader_that_has_all_leaves_nothing_in_its_socket(void **state)
{
	struct bench b = bench_on_rings();
	char got[4];

	(void)state;
	assert_sends(b.a, b.a_fd, "ends");
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 4, 0), 4);
	assert_int_equal(recv(b.b_fd, got, 1, MSG_DONTWAIT), 0);
	end(&b);

	b = bench_on_rings();
	assert_sends(b.a, b.a_fd, "ends");
	assert_int_equal(conn_shutdown(b.a, b.a_fd, SHUT_WR), 0);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 2, MSG_PEEK), 2);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 2, 0), 2);
	assert_int_equal(conn_recv_iov(b.b, b.b_fd, &(struct iovec){ got, 2 }, 1, 0, NULL), 2);
	assert_int_equal(recv(b.b_fd, got, 1, MSG_DONTWAIT), 0);
	end(&b);
}

static void piece_of_who_was_killed_is_not_sent_twice(void **state)
{
	struct bench b = bench_on_rings();
	uint8_t frame[FRAME_SIZE];
	size_t len = 4;

	(void)state;
	assert_sends(b.a, b.a_fd, "not read");
	assert_true(retreat_leave(b.a, b.a_fd));
	killed_in_the_middle(&b, PIECE_RESENT, ring_tx_peek(&b.a->link.tx, b.a->tx.resent_pos, &len), 4);
	conn_tx_recover(b.a);
	assert_sends(b.a, b.a_fd, ", and more");
	assert_receives(b.b, b.b_fd, "not read, and more");
	assert_nothing(b.b, b.b_fd);
	end(&b);

	/* Of a frame, a part and all. */
	for (size_t part = 0; part <= FRAME_SIZE; part += FRAME_SIZE / 2) {
		b = bench_on_rings();
		frame_make(frame, FRAME_PROBE, b.a->nonce, b.a->peer_nonce, 0);
		killed_in_the_middle(&b, PIECE_PROBE, frame, part);
		conn_tx_recover(b.a);
		assert_int_equal(conn_lock_both(b.a), 0);
		assert_int_equal(conn_write_probe(b.a, b.a_fd), 0);
		conn_unlock_both(b.a);
		assert_sends(b.a, b.a_fd, "read, not read");
		assert_int_equal(conn_recv(b.b, b.b_fd, (char[6]){ 0 }, 6, 0), 6);
		assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
		assert_nothing(b.a, b.a_fd);
		assert_finds(b.b_fd, "not read");
		end(&b);
	}
}

static void lock_of_a_receiver_that_was_killed_is_given_back(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_true(lane_move_try(b.b->link.rx.ctl, MOVER_RECEIVER));
	conn_rx_recover(b.b);
	assert_sends(b.a, b.a_fd, "not read");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_nothing(b.a, b.a_fd);
	assert_finds(b.b_fd, "not read");
	end(&b);
}

static void who_goes_on_is_on_tcp_at_once_with_nothing_unread(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_sends(b.b, b.b_fd, "from the ring, ");
	assert_true(retreat_back_unlocked(b.b, b.b_fd, REASON_PEEK_OFFSET));
	assert_true(retreat_back_unlocked(b.b, b.b_fd, REASON_PEEK_OFFSET));
	assert_back(b.b);
	assert_sends(b.b, b.b_fd, "from TCP");
	assert_receives(b.a, b.a_fd, "from the ring, from TCP");
	assert_sends(b.a, b.a_fd, "answer");
	assert_receives(b.b, b.b_fd, "answer");
	assert_back(b.a);
	end(&b);
}

/* It need not wait for a peer that is busy elsewhere. */
static void who_goes_on_reads_the_ring_to_its_end(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_sends(b.a, b.a_fd, "unread");
	assert_false(retreat_back_unlocked(b.b, b.b_fd, REASON_PEEK_OFFSET));
	assert_receives(b.b, b.b_fd, "unread");
	assert_true(conn_rx_on_ring(b.b));
	assert_sends(b.a, b.a_fd, "and then");
	assert_receives(b.b, b.b_fd, "and then");
	assert_back(b.b);
	assert_sends(b.b, b.b_fd, "answer");
	assert_receives(b.a, b.a_fd, "answer");
	assert_back(b.a);
	end(&b);
}

/* Asleep in the kernel it would not hear of a receiver that goes. */
static void who_has_only_its_ring_to_send_to_waits_for_both_lanes(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_int_equal(conn_lock_both(b.b), 0);
	store_relaxed(&b.b->pinned, 1);
	assert_true(retreat_leave(b.b, b.b_fd));
	assert_int_equal(retreat_resend(b.b, b.b_fd), 0);
	conn_unlock_both(b.b);
	assert_sends(b.b, b.b_fd, "over TCP");
	assert_receives(b.a, b.a_fd, "over TCP");
	assert_nothing(b.a, b.a_fd);
	assert_nothing(b.a, b.a_fd);
	assert_true(conn_tx_on_ring(b.a));
	assert_int_equal(load_relaxed(&b.a->rx.mode), MODE_SLOW);
	assert_sends(b.a, b.a_fd, "not read");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	assert_nothing(b.a, b.a_fd);
	assert_finds(b.b_fd, "not read");
	assert_nothing(b.a, b.a_fd);
	assert_int_equal(load_relaxed(&b.a->rx.mode), MODE_PINNED);
	bench_close(&b);
}

static void held_move_lock_keeps_who_would_go(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_true(lane_move_try(b.a->link.tx.ctl, MOVER_SENDER));
	assert_false(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	lane_move_end(b.a->link.tx.ctl);
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	end(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_goes_hands_on_a_quiet_connection),
		cmocka_unit_test(what_was_not_read_comes_over_tcp_before_anything_else),
		cmocka_unit_test(who_only_receives_answers_too),
		cmocka_unit_test(who_has_the_ring_drains_it_and_discards_what_came_twice),
		cmocka_unit_test(readiness_does_not_take_the_overlap_for_data),
		cmocka_unit_test(both_go_one_after_the_other),
		cmocka_unit_test(probes_are_taken_before_the_overlap),
		cmocka_unit_test(who_goes_takes_the_probes_out_and_gets_no_more),
		cmocka_unit_test(frame_is_not_written_to_who_has_gone),
		cmocka_unit_test(switch_whose_frame_has_come_is_carried_out_first),
		cmocka_unit_test(end_in_front_of_the_retreat_leaves_the_last_bytes_in_the_socket),
		cmocka_unit_test(end_of_a_long_stream_leaves_its_bytes_in_the_ring),
		cmocka_unit_test(end_is_told_once_however_often_the_last_bytes_came),
		cmocka_unit_test(what_lies_in_the_ring_alone_cannot_be_handed_on),
		cmocka_unit_test(end_behind_the_retreat_comes_after_the_last_byte),
		cmocka_unit_test(full_socket_keeps_the_order),
		cmocka_unit_test(what_the_receiver_has_taken_is_not_sent_again),
		cmocka_unit_test(lie_about_where_tcp_goes_on_resets),
		cmocka_unit_test(reader_that_has_all_leaves_nothing_in_its_socket),
		cmocka_unit_test(piece_of_who_was_killed_is_not_sent_twice),
		cmocka_unit_test(lock_of_a_receiver_that_was_killed_is_given_back),
		cmocka_unit_test(who_goes_on_is_on_tcp_at_once_with_nothing_unread),
		cmocka_unit_test(who_goes_on_reads_the_ring_to_its_end),
		cmocka_unit_test(who_has_only_its_ring_to_send_to_waits_for_both_lanes),
		cmocka_unit_test(held_move_lock_keeps_who_would_go),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
