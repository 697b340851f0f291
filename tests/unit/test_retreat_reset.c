/* SPDX-License-Identifier: MIT */
/* A reset that calls of ours meet, of which the program knows nothing: what it is told of it. */
#include "tests/unit/retreat_fixture.h"

#include "shim/conn_probe.h"

/* A kernel tells an error once, and it was a call of ours that it told. */
static void a_reset_that_is_met_on_the_way_back_is_no_end(void **state)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	(void)state;
	for (int going = 0; going < 2; going++) {
		struct bench b = bench_on_rings();

		assert_sends(b.a, b.a_fd, "nobody takes it");
		assert_int_equal(connect(b.b_fd, &nobody, sizeof(nobody)), 0);
		if (going)
			retreat_go_unlocked(b.a, b.a_fd, REASON_EXEC);
		else
			retreat_back_unlocked(b.a, b.a_fd, REASON_SIGIO);
		assert_int_equal(conn_recv(b.a, b.a_fd, (char[8]){ 0 }, 8, 0), -ECONNRESET);
		end(&b);
	}
}

/* Once it was met by a look, every send says EPIPE: that is not what is to be told. */
static void a_reset_that_a_look_has_met_stays_one(void **state)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	(void)state;
	for (int going = 0; going < 2; going++) {
		struct bench b = bench_on_rings();

		assert_sends(b.a, b.a_fd, "nobody takes it");
		assert_int_equal(connect(b.b_fd, &nobody, sizeof(nobody)), 0);
		assert_int_equal(conn_frames_try(b.a, b.a_fd), 1);
		if (going)
			conn_keep_error(b.a, conn_write_probe(b.a, b.a_fd));
		else
			retreat_back_unlocked(b.a, b.a_fd, REASON_SIGIO);
		assert_int_equal(conn_recv(b.a, b.a_fd, (char[8]){ 0 }, 8, 0), -ECONNRESET);
		conn_keep_error(b.a, conn_write_probe(b.a, b.a_fd));
		assert_int_equal(load_relaxed(&b.a->rx.pending_errno), 0);
		end(&b);
	}
}

/* As getsockopt() tells it, once. */
static int so_error(struct conn *c, int fd)
{
	socklen_t len = sizeof(int);
	int kernel = 0, ours = exchange(&c->rx.pending_errno, 0);

	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_ERROR, &kernel, &len), 0);
	return ours ? ours : kernel;
}

/* The kernel calls it EPIPE then, and receives tell the end. */
static void a_reset_behind_an_end_that_is_met_on_the_way_back_is_no_receives_error(void **state)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	(void)state;
	for (int going = 0; going < 2; going++) {
		struct bench b = bench_on_rings();

		assert_sends(b.a, b.a_fd, "nobody takes it");
		assert_int_equal(conn_shutdown(b.b, b.b_fd, SHUT_WR), 0);
		assert_int_equal(connect(b.b_fd, &nobody, sizeof(nobody)), 0);
		if (going)
			retreat_go_unlocked(b.a, b.a_fd, REASON_EXEC);
		else
			retreat_back_unlocked(b.a, b.a_fd, REASON_SIGIO);
		assert_int_equal(conn_recv(b.a, b.a_fd, (char[8]){ 0 }, 8, 0), 0);
		assert_int_equal(so_error(b.a, b.a_fd), EPIPE);
		assert_int_equal(conn_send(b.a, b.a_fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
		assert_int_equal(so_error(b.a, b.a_fd), 0);
		end(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reset_that_is_met_on_the_way_back_is_no_end),
		cmocka_unit_test(a_reset_that_a_look_has_met_stays_one),
		cmocka_unit_test(a_reset_behind_an_end_that_is_met_on_the_way_back_is_no_receives_error),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
