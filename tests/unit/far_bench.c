/* SPDX-License-Identifier: MIT */
#include "tests/unit/far_bench.h"

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

void bench_close_far(struct bench *b)
{
	bench_close(b);
	assert_int_equal(fake_live(), 0);
	assert_int_equal(fake.overruns, 0);
}
