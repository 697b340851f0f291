/* SPDX-License-Identifier: MIT */
/* The double itself: messages, completions, receive requests, keys. */
#include "two_ends.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* ---- messages ---- */

enum { ROUNDS = 500 };

static void pong(void)
{
	listener();
	post_recvs(1);
	say('r');
	for (int i = 0; i < ROUNDS; i++) {
		if (i % 8 == 1)
			expect_both(1, 100);
		else
			expect_wc(100, IBV_WC_SUCCESS);
		NEED(end.memory[0] == (uint8_t)i);
		post_recvs(1);
		end.memory[512] = (uint8_t)(i + 1);
		NEED(!post(IBV_WR_SEND, 1, 512, 8, i % 8 ? 0 : IBV_SEND_SIGNALED));
	}
	hear('e');
}

static void ping(void)
{
	dialler();
	post_recvs(1);
	hear('r');
	for (int i = 0; i < ROUNDS; i++) {
		end.memory[512] = (uint8_t)i;
		NEED(!post(IBV_WR_SEND, 1, 512, 8, IBV_SEND_INLINE | (i % 8 ? 0 : IBV_SEND_SIGNALED)));
		if (i % 8 == 0)
			expect_both(1, 100);
		else
			expect_wc(100, IBV_WC_SUCCESS);
		NEED(end.memory[0] == (uint8_t)(i + 1));
		post_recvs(1);
	}
	say('e');
}

static void messages_to_and_fro(void **state)
{
	between(ping, pong);
}

/* ---- one event for each arming, none for what was there ---- */

static void write_when_told(void)
{
	dialler();
	memset(end.memory, 0x5a, BYTES);
	for (int i = 0; i < 3; i++) {
		hear('w');
		NEED(!post(IBV_WR_RDMA_WRITE, 1, 4096, 4096, 0));
		NEED(!post(IBV_WR_RDMA_WRITE_WITH_IMM, 2, 0, 4096, 0));
		say('d');
	}
	hear('e');
}

static void count_events(void)
{
	struct ibv_wc wc;

	listener();
	post_recvs(3);
	say('w');
	hear('d');
	NEED(end.memory[0] == 0x5a && end.memory[BYTES - 1] == 0x5a);
	NEED(!channel_is_readable());
	NEED(!ibv_req_notify_cq(end.cq, 0) && !channel_is_readable());
	say('w');
	hear('d');
	NEED(channel_is_readable());
	say('w');
	hear('d');
	take_cq_event();
	NEED(!channel_is_readable());
	for (int i = 0; i < 3; i++) {
		NEED(ibv_poll_cq(end.cq, 1, &wc) == 1 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
		NEED(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htonl(7) && wc.byte_len == 4096 && wc.wr_id == 100 + (uint64_t)i);
	}
	NEED(ibv_poll_cq(end.cq, 1, &wc) == 0);
	say('e');
}

static void one_event_for_each_arming(void **state)
{
	between(write_when_told, count_events);
}

/* ---- many channels, of which nobody takes an event ---- */

enum { MANY = 400 };

/* Each by a receive request of a queue pair that has failed, which needs no peer. */
static void complete_in_each(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };

	end.events = rdma_create_event_channel();
	NEED(end.events && !rdma_create_id(end.events, &end.id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(end.id, (struct sockaddr *)&here));
	end.pd = ibv_alloc_pd(end.id->verbs);
	NEED(end.pd);
	for (int i = 0; i < MANY; i++) {
		struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
		struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;

		end.channel = ibv_create_comp_channel(end.id->verbs);
		NEED(end.channel);
		end.cq = ibv_create_cq(end.id->verbs, 2, &end, end.channel, 0);
		NEED(end.cq);
		attr.send_cq = attr.recv_cq = end.cq;
		NEED(!rdma_create_qp(end.id, end.pd, &attr) && !ibv_modify_qp(end.id->qp, &failed, IBV_QP_STATE));
		NEED(!ibv_req_notify_cq(end.cq, 0) && !ibv_post_recv(end.id->qp, &wr, &bad));
		NEED(channel_is_readable());
		rdma_destroy_qp(end.id);
	}
}

static void be_nobody(void)
{
}

static void each_of_many_channels_is_told(void **state)
{
	between(complete_in_each, be_nobody);
}

/* ---- READ, and slots ---- */

static void be_read(void)
{
	listener();
	memset(end.memory, 0x77, BYTES);
	say('r');
	hear('e');
}

static void read_all(void)
{
	struct ibv_wc wc;

	dialler();
	hear('r');
	NEED(!post(IBV_WR_RDMA_READ, 9, 0, BYTES, IBV_SEND_SIGNALED));
	expect_wc(9, IBV_WC_SUCCESS);
	NEED(end.memory[0] == 0x77 && end.memory[BYTES - 1] == 0x77);
	/* Slots come back with a completion that was polled, and with nothing else. */
	for (int i = 0; i < SLOTS - 1; i++)
		NEED(!post(IBV_WR_RDMA_READ, 1, 0, 8, 0));
	NEED(!post(IBV_WR_RDMA_READ, 2, 0, 8, IBV_SEND_SIGNALED));
	NEED(post(IBV_WR_RDMA_READ, 3, 0, 8, 0) == ENOMEM);
	NEED(ibv_poll_cq(end.cq, 1, &wc) == 1 && wc.wr_id == 2);
	NEED(!post(IBV_WR_RDMA_READ, 3, 0, 8, 0));
	say('e');
}

static void reads_and_slots(void **state)
{
	between(read_all, be_read);
}

/* ---- receiver not ready ---- */

static void receive_late(void)
{
	listener();
	hear('s');
	post_recvs(1);
	expect_wc(100, IBV_WC_SUCCESS);
	NEED(end.memory[0] == 0x11);
	hear('e');
}

static void send_early(void)
{
	struct ibv_wc wc;

	dialler();
	end.memory[0] = 0x11;
	NEED(!post(IBV_WR_SEND, 1, 0, 8, IBV_SEND_SIGNALED));
	NEED(ibv_poll_cq(end.cq, 1, &wc) == 0);
	say('s');
	expect_wc(1, IBV_WC_SUCCESS);
	say('e');
}

static void a_sender_waits_for_a_receive_request(void **state)
{
	between(send_early, receive_late);
}

static void never_receive(void)
{
	listener();
	hear('e');
}

static void send_in_vain(void)
{
	dialler();
	NEED(!post(IBV_WR_SEND, 1, 0, 8, 0));
	NEED(!post(IBV_WR_RDMA_WRITE, 2, 0, 8, 0));
	expect_wc(1, IBV_WC_RNR_RETRY_EXC_ERR);
	expect_wc(2, IBV_WC_WR_FLUSH_ERR);
	say('e');
}

static void a_sender_that_does_not_wait_for_ever(void **state)
{
	rnr_retries = 1;
	between(send_in_vain, never_receive);
	rnr_retries = 7;
}

/* ---- errors ---- */

static void be_hurt(void)
{
	listener();
	post_recvs(2);
	say('r');
	/* The responder is in error, too. */
	expect_wc(100, IBV_WC_WR_FLUSH_ERR);
	expect_wc(101, IBV_WC_WR_FLUSH_ERR);
	NEED(end.memory[0] == 0);
	hear('e');
}

static void hurt(int how)
{
	dialler();
	hear('r');
	memset(end.memory, 0xff, BYTES);
	if (how == 0)
		end.far_key++;
	if (how == 1)
		end.far_addr -= 1;
	if (how == 2)
		end.far_addr += BYTES - 7;
	NEED(!post(how == 3 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 1, 0, 8, 0));
	NEED(!post(IBV_WR_RDMA_WRITE, 2, 0, 8, 0));
	expect_wc(1, IBV_WC_REM_ACCESS_ERR);
	expect_wc(2, IBV_WC_WR_FLUSH_ERR);
	say('e');
}

static void wrong_key(void)
{
	hurt(0);
}

static void in_front(void)
{
	hurt(1);
}

static void behind(void)
{
	hurt(2);
}

static void not_for_reading(void)
{
	hurt(3);
}

static void what_a_key_does_not_allow(void **state)
{
	between(wrong_key, be_hurt);
	between(in_front, be_hurt);
	between(behind, be_hurt);
	access_flags &= ~IBV_ACCESS_REMOTE_READ;
	between(not_for_reading, be_hurt);
	access_flags |= IBV_ACCESS_REMOTE_READ;
}

static void take_key_away(void)
{
	listener();
	NEED(!ibv_dereg_mr(end.mr));
	say('r');
	hear('e');
}

static void write_with_old_key(void)
{
	dialler();
	hear('r');
	NEED(!post(IBV_WR_RDMA_WRITE, 1, 0, 8, 0));
	expect_wc(1, IBV_WC_REM_ACCESS_ERR);
	say('e');
}

static void a_key_that_is_no_longer(void **state)
{
	between(write_with_old_key, take_key_away);
}

static void flush_all(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	dialler();
	post_recvs(3);
	NEED(!post(IBV_WR_SEND, 1, 0, 8, 0));
	NEED(!ibv_modify_qp(end.id->qp, &attr, IBV_QP_STATE));
	expect_wc(1, IBV_WC_WR_FLUSH_ERR);
	for (uint64_t i = 0; i < 3; i++)
		expect_wc(100 + i, IBV_WC_WR_FLUSH_ERR);
	/* What is posted from now on, too. */
	post_recvs(1);
	expect_wc(100, IBV_WC_WR_FLUSH_ERR);
	NEED(!post(IBV_WR_SEND, 2, 0, 8, 0));
	expect_wc(2, IBV_WC_WR_FLUSH_ERR);
	say('e');
}

static void an_error_flushes_everything(void **state)
{
	between(flush_all, never_receive);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_to_and_fro),
		cmocka_unit_test(one_event_for_each_arming),
		cmocka_unit_test(each_of_many_channels_is_told),
		cmocka_unit_test(reads_and_slots),
		cmocka_unit_test(a_sender_waits_for_a_receive_request),
		cmocka_unit_test(a_sender_that_does_not_wait_for_ever),
		cmocka_unit_test(what_a_key_does_not_allow),
		cmocka_unit_test(a_key_that_is_no_longer),
		cmocka_unit_test(an_error_flushes_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
