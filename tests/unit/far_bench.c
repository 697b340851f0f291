/* SPDX-License-Identifier: MIT */
#include "tests/unit/far_bench.h"

#include <errno.h>
#include <string.h>

#include "shim/conn_far.h"
#include "shim/far.h"
#include "tests/unit/verbs_fixture.h"

void bench_link_far(struct bench *b)
{
	bench_link_far_of(b, FAR_BENCH_RING);
}

void bench_link_far_of(struct bench *b, uint32_t ring_bytes)
{
	fake_reset();
	bench_join_far(b, ring_bytes);
}

void bench_join_far(struct bench *b, uint32_t ring_bytes)
{
	struct verbs_memory of_a, of_b;

	far_engine = verbs;
	far_join(&b->b->link, &of_b, &b->a->link, &of_a, ring_bytes);
	bench_agree(b);
}

struct bench bench_open_far(void)
{
	struct bench b = bench_open();

	bench_link_far(&b);
	bench_switch(&b);
	return b;
}

ssize_t bench_receive(struct conn *c, int fd, char *buf, size_t len)
{
	ssize_t n = -EAGAIN;

	for (int i = 0; i < 100 && n == -EAGAIN; i++) {
		far_pump(c, VERBS_EMPTY);
		n = conn_recv(c, fd, buf, len, 0);
	}
	return n;
}

ssize_t bench_end_of(struct conn *c, int fd)
{
	char byte;

	return bench_receive(c, fd, &byte, 1);
}

void bench_gets(struct conn *c, int fd, const char *text)
{
	char got[64] = "";

	assert_int_equal(bench_receive(c, fd, got, sizeof(got)), strlen(text));
	assert_string_equal(got, text);
}

void bench_close_far(struct bench *b)
{
	bench_close(b);
	assert_int_equal(fake_live(), 0);
	assert_int_equal(fake.overruns, 0);
}
