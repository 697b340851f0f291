/* SPDX-License-Identifier: MIT */
/* Connections that are close-on-exec, while it is not known yet whether the exec succeeds. */
#include "tests/unit/conn_bench.h"

#include "shim/retreat.h"

static void exec_all(struct bench *b)
{
	struct conn *conns[2] = { b->a, b->b };
	int fds[2] = { b->a_fd, b->b_fd };

	conn_exec_all(conns, fds, 2);
}

/* Both ends' lanes are where the exec found them, or further: the streams go on before it has failed, and after it. */
static void streams_go_on_under_an_exec_that_fails(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_sends(b.a, b.a_fd, "not taken, ");
	assert_sends(b.b, b.b_fd, "nor this, ");
	exec_all(&b);
	assert_sends(b.a, b.a_fd, "meanwhile, ");
	assert_sends(b.b, b.b_fd, "in between, ");
	assert_receives(b.b, b.b_fd, "not taken, meanwhile, ");
	conn_exec_failed(b.a, b.a_fd);
	conn_exec_failed(b.b, b.b_fd);
	assert_sends(b.b, b.b_fd, "afterwards");
	assert_receives(b.a, b.a_fd, "nor this, in between, afterwards");
	assert_sends(b.a, b.a_fd, "and then");
	assert_receives(b.b, b.b_fd, "and then");
	assert_nothing(b.a, b.a_fd);
	assert_nothing(b.b, b.b_fd);
	bench_close(&b);
}

/* Another thread closes while it is not known yet whether the exec succeeds: all was read, and the end is one. */
static void close_under_an_exec_is_an_end(void **state)
{
	struct bench b = bench_on_rings();
	char byte;

	(void)state;
	assert_sends(b.b, b.b_fd, "read");
	exec_all(&b);
	assert_receives(b.a, b.a_fd, "read");
	assert_sends(b.a, b.a_fd, "last");
	bench_close_a(&b);
	assert_receives(b.b, b.b_fd, "last");
	assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), 0);
	bench_close_b(&b);
}

static void who_has_gone_gets_the_rest_before_an_exec(void **state)
{
	struct bench b = bench_on_rings();

	(void)state;
	assert_sends(b.a, b.a_fd, "not read");
	assert_true(retreat_go_unlocked(b.b, b.b_fd, REASON_EXEC));
	exec_all(&b);
	assert_finds(b.b_fd, "not read");
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(streams_go_on_under_an_exec_that_fails),
		cmocka_unit_test(close_under_an_exec_is_an_end),
		cmocka_unit_test(who_has_gone_gets_the_rest_before_an_exec),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
