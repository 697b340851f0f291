/* SPDX-License-Identifier: MIT */
/* Both ends of a connection between hosts go in one moment (RETREAT.md section 9, "Going", 5): one of them says so, and the other one hears it. */
#include "tests/unit/far_bench.h"

#include "ringbuf/verbs_word.h"
#include "shim/conn_far.h"
#include "shim/options.h"
#include "shim/retreat_far_go.h"
#include "tests/unit/far_stream.h"

static void both_go_on(struct bench *b, struct stream *there, struct stream *back)
{
	assert_false(load_relaxed(&b->a->rx.dead) || load_relaxed(&b->b->rx.dead));
	streams_talk(there, back, 4);
	bench_close_far(b);
}

/* Posts of one that goes: what it waits with for all connections; that it is about to, and what it waits with; that it goes. */
#define GONE_POSTED 4

/*
 * One of two goes, and the other one begins to just when the device is about to be given something: after the last look that can be. It is given that when the other one's
 * device has been given so much, or when the other one is through.
 */
static struct {
	struct conn *c;
	int fd;
	bool noted;
	int at, until;
	struct ibv_qp *beside;
	struct ibv_send_wr *held;
	uint8_t kind;
	int (*post)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
} second;

static void post_held(void)
{
	struct ibv_send_wr *bad, *held = second.held;

	second.held = NULL;
	if (held)
		assert_int_equal(second.post(second.beside, held, &bad), 0);
}

static int post_beside_another(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	if (qp == second.beside && second.at-- == 0) {
		second.held = wr;
		second.kind = wr->num_sge ? *(uint8_t *)(uintptr_t)wr->sg_list->addr : 0;
		retreat_far_all_away(&second.c, &second.fd, 1, 0, REASON_SHARED);
		second.noted = conn_far_is_dead(second.c);
		post_held();
		return 0;
	}
	if (qp != second.beside && second.until-- == 0)
		post_held();
	return second.post(qp, wr, bad);
}

static void begin_beside(struct conn *first, struct conn *c, int fd, int at, int until)
{
	second.c = c;
	second.fd = fd;
	second.at = at;
	second.until = until;
	second.beside = qp_of(first);
	second.post = second.beside->context->ops.post_send;
	second.beside->context->ops.post_send = post_beside_another;
}

static void one_goes_behind_the_last_look_of_another(void **state)
{
	for (int i = 0; i < 2 * (GONE_POSTED + 1); i++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);
		struct conn *first = i % 2 ? b.a : b.b;
		struct ibv_context *device = qp_of(first)->context;

		assert_int_equal(stream_send(&there, 500), 500);
		assert_int_equal(stream_take(&there, 100), 100);
		assert_int_equal(stream_send(&back, 70), 70);
		begin_beside(first, i % 2 ? b.b : b.a, i % 2 ? b.b_fd : b.a_fd, i / 2, -1);
		retreat_far_all_away(&first, i % 2 ? &b.a_fd : &b.b_fd, 1, 0, REASON_SHARED);
		device->ops.post_send = second.post;
		both_go_on(&b, &there, &back);
	}
}

/* What makes a link dead: then the peer's own way back is followed. */
static void who_is_about_to_go_notes_that_the_other_one_has_gone(void **state)
{
	for (int until = 2; until <= GONE_POSTED; until++) {
		struct bench b = open_far();
		struct stream there = a_to_b(&b), back = b_to_a(&b);
		struct ibv_context *device = qp_of(b.b)->context;

		assert_int_equal(stream_send(&there, 500), 500);
		assert_int_equal(stream_take(&there, 100), 100);
		assert_int_equal(stream_send(&back, 70), 70);
		begin_beside(b.b, b.a, b.a_fd, GONE_POSTED, until);
		retreat_far_all_away(&b.b, &b.b_fd, 1, 0, REASON_SHARED);
		device->ops.post_send = second.post;
		assert_int_equal(second.kind, MESSAGE_GONE);
		assert_true(second.noted);
		both_go_on(&b, &there, &back);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_goes_behind_the_last_look_of_another),
		cmocka_unit_test(who_is_about_to_go_notes_that_the_other_one_has_gone),
	};

	/* Longer than the other one waits in the middle of it. */
	options.patience_ms = 10000;
	return cmocka_run_group_tests_name("retreat_both", tests, bench_setup_group, NULL);
}
