/* SPDX-License-Identifier: MIT */
/* The switch of a lane between two ends that play by the rules, and against one that does not. */
#include "tests/unit/conn_bench.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shim/frame.h"
#include "shim/switch.h"

static void connection_that_is_not_linked_stays_on_tcp(void **state)
{
	struct bench b = bench_open();

	(void)state;
	assert_sends(b.a, b.a_fd, "hello");
	assert_receives(b.b, b.b_fd, "hello");
	assert_false(conn_tx_on_ring(b.a) || conn_rx_on_ring(b.b));
	bench_close(&b);
	assert_int_equal(told.tcp_tx, 5);
	assert_int_equal(told.tcp_rx, 5);
	assert_int_equal(told.ring_tx, 0);
}

/* It needs no lock: another may have lost the processor between the state and the mode, and what has followed is not taken back. */
static void seek_is_finished_by_whoever_comes_next(void **state)
{
	struct bench b = bench_open();

	(void)state;
	store_relaxed(&b.a->tx.state, TX_SEEK);
	store_relaxed(&b.a->rx.state, RX_SEEK);
	conn_seek(b.a);
	assert_int_equal(load_relaxed(&b.a->tx.mode), MODE_SLOW);
	assert_int_equal(load_relaxed(&b.a->rx.mode), MODE_SLOW);
	bench_close(&b);

	b = bench_on_rings();
	conn_seek(b.a);
	assert_true(conn_tx_on_ring(b.a) && conn_rx_on_ring(b.a));
	assert_int_equal(load_relaxed(&b.a->tx.mode), MODE_RING);
	assert_int_equal(load_relaxed(&b.a->rx.mode), MODE_RING);
	bench_close(&b);
}

static void quiet_lane_leaves_tcp_at_the_next_send(void **state)
{
	struct bench b = bench_open();

	(void)state;
	bench_link(&b);
	assert_nothing(b.b, b.b_fd); /* acknowledges */
	assert_sends(b.a, b.a_fd, "over the ring");
	assert_true(conn_tx_on_ring(b.a));
	assert_int_equal(conn_tx_room(b.a), ring_rx_bytes(&b.b->link.rx) - 13);
	assert_receives(b.b, b.b_fd, "over the ring");
	assert_true(conn_rx_on_ring(b.b));
	bench_close(&b);
	assert_int_equal(told.ring_tx, 13);
	assert_int_equal(told.ring_rx, 13);
	assert_int_equal(told.tcp_tx + told.tcp_rx, 0);
}

/* It sleeps on the socket alone, and another thread could take the frame out of it before it has looked. */
static void nothing_is_acknowledged_while_somebody_sleeps_without_a_bell(void **state)
{
	struct bench b = bench_open();

	(void)state;
	assert_true(conn_wait_enters(b.b));
	bench_link(&b);
	assert_nothing(b.b, b.b_fd);
	assert_sends(b.a, b.a_fd, "by tcp");
	assert_false(conn_tx_on_ring(b.a));
	assert_receives(b.b, b.b_fd, "by tcp");
	assert_nothing(b.b, b.b_fd);
	conn_wait_leaves(b.b);
	assert_nothing(b.b, b.b_fd); /* acknowledges */
	assert_sends(b.a, b.a_fd, "by the ring");
	assert_true(conn_tx_on_ring(b.a));
	assert_receives(b.b, b.b_fd, "by the ring");
	assert_false(conn_wait_enters(b.b));
	assert_int_equal(load_relaxed(&b.b->rx.in_waits), 0);
	bench_close(&b);
}

static void data_before_the_acknowledgement_goes_over_tcp(void **state)
{
	struct bench b = bench_open();

	(void)state;
	bench_link(&b);
	assert_sends(b.a, b.a_fd, "early");
	assert_false(conn_tx_on_ring(b.a));
	assert_receives(b.b, b.b_fd, "early");
	assert_sends(b.a, b.a_fd, "late");
	assert_true(conn_tx_on_ring(b.a));
	assert_receives(b.b, b.b_fd, "late");
	bench_close(&b);
}

static void reads_stop_at_the_acknowledged_count(void **state)
{
	struct bench b = bench_open();
	char got[64] = "";

	(void)state;
	bench_link(&b);
	assert_sends(b.a, b.a_fd, "before");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 2, 0), 2); /* acknowledges the announcement at 6 */
	assert_sends(b.a, b.a_fd, "after");
	assert_true(conn_tx_on_ring(b.a));
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 4, 0), 4);
	assert_memory_equal(got, "fore", 4);
	assert_int_equal(load_relaxed(&b.b->rx.state), RX_ACKED);
	assert_receives(b.b, b.b_fd, "after");
	bench_close(&b);
}

static void call_that_has_room_goes_on_across_the_switch(void **state)
{
	struct bench b = bench_open();
	char got[64] = "";

	(void)state;
	bench_link(&b);
	assert_sends(b.a, b.a_fd, "before");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 2, 0), 2);
	assert_sends(b.a, b.a_fd, "after");
	assert_int_equal(conn_inq(b.b, b.b_fd), 9);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), MSG_PEEK), 9);
	assert_memory_equal(got, "foreafter", 9);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 7, MSG_PEEK), 7);
	assert_receives(b.b, b.b_fd, "foreafter");
	assert_nothing(b.b, b.b_fd);
	bench_close(&b);
}

static void waitall_goes_on_across_the_switch(void **state)
{
	struct bench b = bench_open();
	char got[64] = "";

	(void)state;
	bench_link(&b);
	assert_sends(b.a, b.a_fd, "before");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 2, 0), 2);
	assert_sends(b.a, b.a_fd, "after");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 9, MSG_WAITALL), 9);
	assert_memory_equal(got, "foreafter", 9);
	bench_close(&b);
}

/* What b's kernel socket gets is written by hand, as a peer that lies would. */
static void acknowledge_at_zero(struct bench *b)
{
	bench_link(b);
	assert_nothing(b->b, b->b_fd);
	assert_int_equal(load_relaxed(&b->b->rx.state), RX_ACKED);
}

static void write_raw(int fd, const void *bytes, size_t len)
{
	assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), len);
}

static void bytes_that_are_no_frame_go_to_the_program(void **state)
{
	struct bench b = bench_open();

	(void)state;
	acknowledge_at_zero(&b);
	write_raw(b.a_fd, "this is not a frame at all, but it is long enough", 49);
	assert_receives(b.b, b.b_fd, "this is not a frame at all, but it is long enough");
	assert_int_equal(load_relaxed(&b.b->reason), REASON_BAD_FRAME);
	assert_true(load_relaxed(&b.b->pinned));
	write_raw(b.a_fd, "more", 4);
	assert_receives(b.b, b.b_fd, "more");
	bench_close(&b);
}

static void ring_bytes_without_a_frame_are_not_handed_out(void **state)
{
	struct bench b = bench_open();

	(void)state;
	acknowledge_at_zero(&b);
	ring_write(&b.a->link.tx, "forged", 6);
	assert_nothing(b.b, b.b_fd);
	write_raw(b.a_fd, "plain", 5);
	assert_receives(b.b, b.b_fd, "plain");
	assert_nothing(b.b, b.b_fd);
	bench_close(&b);
}

static void beginning_of_a_frame_is_waited_for(void **state)
{
	struct bench b = bench_open();
	uint8_t frame[FRAME_SIZE];

	(void)state;
	acknowledge_at_zero(&b);
	frame_make(frame, FRAME_SWITCH, b.a->nonce, b.a->peer_nonce, 0);
	for (size_t i = 0; i < FRAME_SIZE; i++) {
		assert_nothing(b.b, b.b_fd);
		assert_int_equal(load_relaxed(&b.b->rx.state), RX_ACKED);
		write_raw(b.a_fd, frame + i, 1);
	}
	assert_nothing(b.b, b.b_fd);
	assert_int_equal(load_relaxed(&b.b->rx.state), RX_RING);
	bench_close(&b);
}

static void bytes_behind_a_void_announcement_are_counted(void **state)
{
	struct bench b = bench_open();
	char got[64];

	(void)state;
	bench_link(&b);
	assert_sends(b.a, b.a_fd, "before");
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 2, 0), 2); /* acknowledges the announcement at 6 */
	conn_pin(b.a, REASON_OOB);
	assert_sends(b.a, b.a_fd, ", and after");
	assert_int_equal(load_relaxed(&b.b->rx.state), RX_ACKED);
	assert_int_equal(conn_inq(b.b, b.b_fd), 15);
	assert_receives(b.b, b.b_fd, "fore, and after");
	bench_close(&b);
}

static void beginning_of_a_frame_that_goes_wrong_is_data(void **state)
{
	struct bench b = bench_open();
	uint8_t frame[FRAME_SIZE];
	char got[64];

	(void)state;
	acknowledge_at_zero(&b);
	frame_make(frame, FRAME_SWITCH, b.a->nonce, b.a->peer_nonce, 0);
	write_raw(b.a_fd, frame, 20);
	assert_nothing(b.b, b.b_fd);
	write_raw(b.a_fd, "tail", 4);
	assert_int_equal(conn_inq(b.b, b.b_fd), 24);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, 7, 0), 7);
	assert_memory_equal(got, frame, 7);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), MSG_PEEK), 13);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 13);
	assert_memory_equal(got, frame + 7, 13);
	assert_receives(b.b, b.b_fd, "tail");
	assert_int_equal(load_relaxed(&b.b->rx.tcp_bytes), 24);
	bench_close(&b);
}

static void end_inside_a_frame_is_an_end(void **state)
{
	struct bench b = bench_open();
	uint8_t frame[FRAME_SIZE];
	char got[64];

	(void)state;
	acknowledge_at_zero(&b);
	frame_make(frame, FRAME_SWITCH, b.a->nonce, b.a->peer_nonce, 0);
	write_raw(b.a_fd, frame, 20);
	assert_nothing(b.b, b.b_fd);
	shutdown(b.a_fd, SHUT_WR);
	assert_int_equal(conn_recv(b.b, b.b_fd, got, sizeof(got), 0), 0);
	bench_close(&b);
}

static void bytes_read_behind_the_shim_keep_it_on_tcp(void **state)
{
	struct bench b = bench_open();
	char got[8];

	(void)state;
	bench_link(&b);
	assert_sends(b.a, b.a_fd, "12345678");
	assert_int_equal(recv(b.b_fd, got, 3, 0), 3);
	assert_receives(b.b, b.b_fd, "45678");
	assert_sends(b.a, b.a_fd, "next");
	assert_false(conn_tx_on_ring(b.a));
	assert_receives(b.b, b.b_fd, "next");
	assert_int_equal(load_relaxed(&b.b->reason), REASON_COUNT_MISMATCH);
	bench_close(&b);
}

static void bytes_written_behind_the_shim_keep_it_on_tcp(void **state)
{
	struct bench b = bench_open();

	(void)state;
	acknowledge_at_zero(&b);
	write_raw(b.a_fd, "behind", 6);
	assert_sends(b.a, b.a_fd, "open");
	assert_false(conn_tx_on_ring(b.a));
	assert_int_equal(load_relaxed(&b.a->reason), REASON_COUNT_MISMATCH);
	assert_receives(b.b, b.b_fd, "behindopen");
	bench_close(&b);
}

static void pinned_connection_is_never_announced(void **state)
{
	struct bench b = bench_open();

	(void)state;
	assert_true(conn_pin(b.a, REASON_OOB));
	bench_link(&b);
	for (int i = 0; i < 4; i++) {
		assert_sends(b.a, b.a_fd, "x");
		assert_receives(b.b, b.b_fd, "x");
	}
	assert_false(conn_tx_on_ring(b.a));
	bench_close(&b);
	assert_int_equal(told.reasons[REASON_OOB], 1);
}

static void pin_withdraws_an_announcement(void **state)
{
	struct bench b = bench_open();

	(void)state;
	bench_link(&b);
	assert_true(conn_pin(b.a, REASON_ULP));
	assert_sends(b.a, b.a_fd, "x");
	assert_false(conn_tx_on_ring(b.a));
	assert_receives(b.b, b.b_fd, "x");
	bench_close(&b);
}

static void pin_comes_too_late_for_a_lane_that_is_acknowledged(void **state)
{
	struct bench b = bench_open();

	(void)state;
	acknowledge_at_zero(&b);
	assert_false(conn_pin(b.b, REASON_ULP));
	assert_sends(b.a, b.a_fd, "x");
	assert_receives(b.b, b.b_fd, "x");
	assert_true(conn_rx_on_ring(b.b));
	/* The other lane is kept on TCP by it, and that is why. */
	bench_close_b(&b);
	assert_int_equal(told.reasons[REASON_ULP], 1);
	bench_close(&b);
}

static unsigned reasons_told(void)
{
	unsigned nr = 0;

	for (int i = 0; i < NR_REASONS; i++)
		nr += told.reasons[i];
	return nr;
}

static void pin_of_what_has_left_tcp_gives_no_reason(void **state)
{
	struct bench b = bench_open();

	(void)state;
	bench_link(&b);
	bench_switch(&b);
	assert_false(conn_pin(b.a, REASON_STDIO));
	assert_int_equal(load_relaxed(&b.a->reason), REASON_NONE);
	bench_close(&b);
	assert_int_equal(reasons_told(), 0);
}

static void pin_that_came_too_late_for_both_lanes_gives_no_reason(void **state)
{
	struct bench b = bench_open();

	(void)state;
	acknowledge_at_zero(&b);
	/* The answer will leave by the ring: this end has acknowledged that already when it is pinned. */
	assert_nothing(b.a, b.a_fd);
	assert_int_equal(load_relaxed(&b.a->rx.state), RX_ACKED);
	assert_sends(b.a, b.a_fd, "q");
	assert_receives(b.b, b.b_fd, "q");
	assert_true(conn_tx_on_ring(b.a));
	assert_false(conn_pin(b.a, REASON_STDIO));
	assert_sends(b.b, b.b_fd, "a");
	assert_receives(b.a, b.a_fd, "a");
	assert_true(conn_rx_on_ring(b.a));
	assert_int_equal(load_relaxed(&b.a->reason), REASON_NONE);
	bench_close_a(&b);
	assert_int_equal(reasons_told(), 0);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connection_that_is_not_linked_stays_on_tcp),
		cmocka_unit_test(seek_is_finished_by_whoever_comes_next),
		cmocka_unit_test(quiet_lane_leaves_tcp_at_the_next_send),
		cmocka_unit_test(nothing_is_acknowledged_while_somebody_sleeps_without_a_bell),
		cmocka_unit_test(data_before_the_acknowledgement_goes_over_tcp),
		cmocka_unit_test(reads_stop_at_the_acknowledged_count),
		cmocka_unit_test(call_that_has_room_goes_on_across_the_switch),
		cmocka_unit_test(waitall_goes_on_across_the_switch),
		cmocka_unit_test(bytes_that_are_no_frame_go_to_the_program),
		cmocka_unit_test(ring_bytes_without_a_frame_are_not_handed_out),
		cmocka_unit_test(beginning_of_a_frame_is_waited_for),
		cmocka_unit_test(bytes_behind_a_void_announcement_are_counted),
		cmocka_unit_test(beginning_of_a_frame_that_goes_wrong_is_data),
		cmocka_unit_test(end_inside_a_frame_is_an_end),
		cmocka_unit_test(bytes_read_behind_the_shim_keep_it_on_tcp),
		cmocka_unit_test(bytes_written_behind_the_shim_keep_it_on_tcp),
		cmocka_unit_test(pinned_connection_is_never_announced),
		cmocka_unit_test(pin_withdraws_an_announcement),
		cmocka_unit_test(pin_of_what_has_left_tcp_gives_no_reason),
		cmocka_unit_test(pin_that_came_too_late_for_both_lanes_gives_no_reason),
		cmocka_unit_test(pin_comes_too_late_for_a_lane_that_is_acknowledged),
	};

	switch_little = 0;
	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
