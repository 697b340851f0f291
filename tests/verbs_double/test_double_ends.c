/* SPDX-License-Identifier: MIT */
/* The double itself: how connections come to nothing, and to an end. */
#include "two_ends.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static void go(void)
{
	dialler();
	NEED(!rdma_disconnect(end.id));
	expect_event(RDMA_CM_EVENT_DISCONNECTED, 0);
	NEED(!post(IBV_WR_RDMA_WRITE, 1, 0, 8, 0));
	expect_wc(1, IBV_WC_WR_FLUSH_ERR);
	take_down();
	hear('e');
}

static void be_left(void)
{
	listener();
	expect_event(RDMA_CM_EVENT_DISCONNECTED, 0);
	NEED(!post(IBV_WR_RDMA_WRITE, 1, 0, 8, 0));
	expect_wc(1, IBV_WC_RETRY_EXC_ERR);
	NEED(!rdma_disconnect(end.id));
	say('e');
}

static void one_that_goes_is_heard_of(void **state)
{
	between(go, be_left);
}

static void write_for_ever(void)
{
	listener();
	say('p');
	for (;;)
		if (post(IBV_WR_RDMA_WRITE, 1, 0, 4096, IBV_SEND_SIGNALED) == 0)
			expect_wc(1, IBV_WC_SUCCESS);
}

static void outlive(void)
{
	dialler();
	hear('p');
	for (int i = 0; i < 100; i++) {
		NEED(!post(IBV_WR_RDMA_WRITE, 1, 0, 4096, IBV_SEND_SIGNALED));
		expect_wc(1, IBV_WC_SUCCESS);
	}
	NEED(!kill(peer, SIGKILL));
	expect_event(RDMA_CM_EVENT_DISCONNECTED, 0);
	NEED(!post(IBV_WR_RDMA_WRITE, 2, 0, 8, 0));
	NEED(!post(IBV_WR_RDMA_WRITE, 3, 0, 8, 0));
	expect_wc(2, IBV_WC_RETRY_EXC_ERR);
	expect_wc(3, IBV_WC_WR_FLUSH_ERR);
	take_down();
}

static void one_that_is_killed_is_heard_of(void **state)
{
	between(outlive, write_for_ever);
}

static void refuse(void)
{
	listen_there();
	be_called();
	NEED(!rdma_reject(end.id, "no", 3));
	NEED(!rdma_destroy_id(end.id));
	hear('e');
}

static void be_refused(void)
{
	struct rdma_cm_event *e;

	hear('l');
	route();
	dial();
	e = next_event(RDMA_CM_EVENT_REJECTED);
	NEED(e->status == 28 && e->param.conn.private_data_len == 148 && !strcmp(e->param.conn.private_data, "no"));
	rdma_ack_cm_event(e);
	take_down();
	say('e');
}

static void a_refusal_says_why(void **state)
{
	between(be_refused, refuse);
}

static void just_end(void)
{
	listen_there();
	hear('e');
}

static void be_forgotten(void)
{
	hear('l');
	route();
	dial();
	say('e');
	expect_event(RDMA_CM_EVENT_REJECTED, 28);
	take_down();
	/* Nobody is there any more. */
	route();
	dial();
	expect_event(RDMA_CM_EVENT_REJECTED, 8);
	take_down();
}

static void a_listener_that_ends_and_one_that_is_not_there(void **state)
{
	between(be_forgotten, just_end);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_that_goes_is_heard_of),
		cmocka_unit_test(one_that_is_killed_is_heard_of),
		cmocka_unit_test(a_refusal_says_why),
		cmocka_unit_test(a_listener_that_ends_and_one_that_is_not_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
