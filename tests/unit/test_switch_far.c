/* SPDX-License-Identifier: MIT */
/* A switch between hosts is announced, and the link dies, or the stream ends. */
#include "tests/unit/far_bench.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/verbs_engine.h"
#include "shim/conn_far.h"
#include "shim/conn_zerocopy.h"
#include "shim/fd_conn.h"
#include "tests/unit/far_stream.h"

bool fd_come_back(int fd, enum reason why)
{
	return false;
}

static struct bench announced(void)
{
	struct bench b = bench_open();
	struct stream there = a_to_b(&b);

	bench_link_far_of(&b, RING);
	for (int i = 0; i < 8 && load_relaxed(&b.a->tx.state) != TX_ANNOUNCED; i++)
		stream_take(&there, 1);
	assert_int_equal(load_relaxed(&b.a->tx.state), TX_ANNOUNCED);
	return b;
}

/* The link dies while a switch is announced: only what could be its frame is in doubt, and a splice's bytes are looked at. */
static void a_splice_goes_on_over_tcp(void **state)
{
	struct bench b = announced();
	struct stream there = a_to_b(&b);
	uint8_t bytes[100];
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = byte_at(i);
	assert_int_equal(write(ends[1], bytes, sizeof(bytes)), sizeof(bytes));
	fake_fail(qp_of(b.a), IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(conn_splice_out(ends[0], b.a, b.a_fd, sizeof(bytes), 0), sizeof(bytes));
	there.sent = sizeof(bytes);
	stream_end(&there);
	close(ends[0]);
	close(ends[1]);
	bench_close_far(&b);
}

/* Who sends on and on never sleeps, where it would hear that the peer has let go. */
static void who_is_busy_finds_out_that_the_peer_let_go(void **state)
{
	struct bench b = announced();
	struct stream there = a_to_b(&b);

	fake.by_hand = true;
	assert_int_equal(rdma_disconnect(engine_of(&b.b->link)->id), 0);
	for (int i = 0; i < 100 && !load_relaxed(&b.a->link_dead); i++)
		assert_int_equal(stream_send(&there, 10), 10);
	assert_int_equal(load_relaxed(&b.a->link_dead), -ECONNRESET);
	fake.by_hand = false;
	fake_settle();
	stream_end(&there);
	bench_close_far(&b);
}

/* The kernel is to have such a send as one, behind what is decided of an announcement that nobody can take back any more. */
static void a_zero_copy_send_goes_on_over_tcp(void **state)
{
	struct bench b = announced();
	struct stream there = a_to_b(&b);
	uint8_t bytes[100];
	struct iovec iov = { bytes, sizeof(bytes) };

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = byte_at(i);
	assert_int_equal(setsockopt(b.a_fd, SOL_SOCKET, SO_ZEROCOPY, &(int){ 1 }, sizeof(int)), 0);
	conn_read_options(b.a, b.a_fd);
	assert_true(load_relaxed(&b.a->zero_copies));
	assert_true(conn_far_stop(b.b));
	conn_pump(b.a, 0);
	assert_int_equal(conn_before_zerocopy(b.a, b.a_fd, &iov, 1, MSG_ZEROCOPY), 0);
	assert_int_equal(load_relaxed(&b.a->tx.mode), MODE_PINNED);
	assert_int_equal(send(b.a_fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	there.sent = sizeof(bytes);
	stream_end(&there);
	bench_close_far(&b);
}

/* This end has gone before the frame that it was told of came: behind that nothing is the ring's, and the kernel reports the bytes but once. */
static void what_follows_the_frame_of_a_lane_that_was_left_shows_with_it(void **state)
{
	struct bench b = announced();
	struct stream there = a_to_b(&b);
	struct lane_ctl *words = b.b->link.rx.ctl;
	uint8_t bytes[FRAME_SIZE + 1];

	for (int i = 0; i < 8 && load_relaxed(&b.b->rx.state) != RX_ACKED; i++)
		assert_int_equal(stream_take(&there, 1), -EAGAIN);
	assert_int_equal(load_relaxed(&b.b->rx.state), RX_ACKED);
	assert_true(conn_far_stop(b.b));
	peer_publish_u32(&words->tx_state.frames, 1);
	peer_publish_u32(&words->tx_state.left, LEFT_RESENDS);
	frame_make(bytes, FRAME_SWITCH, b.a->nonce, b.a->peer_nonce, b.a->tx.announced_pos);
	bytes[FRAME_SIZE] = byte_at(0);
	assert_int_equal(send(b.a_fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	there.sent = 1;
	assert_int_equal(conn_ready(b.b, b.b_fd, POLLIN, POLLIN), POLLIN);
	assert_int_equal(stream_take(&there, 1), 1);
	bench_close_far(&b);
}

/* Whose own lane is on TCP ends it there, and what else it says of that comes by another road, and later. */
static void who_has_shut_its_direction_was_not_killed(void **state)
{
	struct bench b = bench_open();
	struct stream there = a_to_b(&b);

	bench_link_far_of(&b, RING);
	stream_moves_out(&there, NULL);
	assert_true(conn_tx_on_ring(b.a) && !conn_tx_on_ring(b.b));
	assert_int_equal(stream_send(&there, 100), 100);
	fake.by_hand = true;
	assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
	conn_ready(b.a, b.a_fd, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
	for (int i = 0; i < 10; i++)
		assert_int_equal(stream_send(&there, 10), 10);
	fake.by_hand = false;
	fake_settle();
	stream_end(&there);
	bench_close_far(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_splice_goes_on_over_tcp),
		cmocka_unit_test(a_zero_copy_send_goes_on_over_tcp),
		cmocka_unit_test(what_follows_the_frame_of_a_lane_that_was_left_shows_with_it),
		cmocka_unit_test(who_is_busy_finds_out_that_the_peer_let_go),
		cmocka_unit_test(who_has_shut_its_direction_was_not_killed),
	};

	return cmocka_run_group_tests_name("switch_far", tests, bench_setup_group, NULL);
}
