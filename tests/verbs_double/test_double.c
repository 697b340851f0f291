/* SPDX-License-Identifier: MIT */
/*
 * The double itself, by verbs alone: two processes that know each other by an address only. The test's own process dials, a forked one listens; a
 * pipe each way keeps them in step. What a process cannot do by itself ends it with status 1, and so the test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 8192, SLOTS = 16, SECONDS = 30, ACK_TIMEOUT = 12 /* 17 ms */ };

#define NEED(condition) need(condition, #condition, __LINE__)

static void need(bool good, const char *what, int line)
{
	if (good)
		return;
	fprintf(stderr, "line %d: %s (errno %d)\n", line, what, errno);
	_exit(1);
}

/* One end, and what it needs. */
static struct {
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener, *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	uint8_t *memory;
	uint64_t far_addr;
	uint32_t far_key;
} end;

struct greeting {
	uint64_t addr;
	uint32_t key;
};

static uint16_t port; /* of tests that run at the same time: each its own */
static int to_peer, from_peer;
static pid_t peer;
static uint8_t retries = 2, rnr_retries = 7;
static int access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

static void say(char word)
{
	NEED(write(to_peer, &word, 1) == 1);
}

static void hear(char word)
{
	char got = 0;

	NEED(read(from_peer, &got, 1) == 1 && got == word);
}

static struct rdma_cm_event *next_event(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *e;

	NEED(!rdma_get_cm_event(end.events, &e));
	if (e->event != type)
		fprintf(stderr, "%s, status %d, instead of %s\n", rdma_event_str(e->event), e->status, rdma_event_str(type));
	NEED(e->event == type);
	return e;
}

static void expect_event(enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *e = next_event(type);

	NEED(e->status == status);
	rdma_ack_cm_event(e);
}

static void equip(void)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
	};

	end.memory = aligned_alloc(4096, BYTES);
	memset(end.memory, 0, BYTES);
	end.pd = ibv_alloc_pd(end.id->verbs);
	end.channel = ibv_create_comp_channel(end.id->verbs);
	NEED(end.pd && end.channel);
	end.cq = ibv_create_cq(end.id->verbs, 2 * SLOTS, &end, end.channel, 0);
	end.mr = ibv_reg_mr(end.pd, end.memory, BYTES, (unsigned)access_flags);
	NEED(end.cq && end.mr);
	attr.send_cq = attr.recv_cq = end.cq;
	NEED(!rdma_create_qp(end.id, end.pd, &attr));
}

static struct rdma_conn_param greeting_param(struct greeting *g)
{
	*g = (struct greeting){ (uintptr_t)end.memory, end.mr->rkey };
	return (struct rdma_conn_param){
		.private_data = g, .private_data_len = sizeof(*g), .responder_resources = 1, .initiator_depth = 1,
		.retry_count = retries, .rnr_retry_count = rnr_retries,
	};
}

static void keep_greeting(const struct rdma_cm_event *e)
{
	struct greeting g;

	memcpy(&g, e->param.conn.private_data, sizeof(g));
	end.far_addr = g.addr;
	end.far_key = g.key;
}

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
}

static void listen_there(void)
{
	struct sockaddr_in at = address();

	end.events = rdma_create_event_channel();
	NEED(end.events && !rdma_create_id(end.events, &end.listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(end.listener, (struct sockaddr *)&at) && end.listener->verbs && !rdma_listen(end.listener, 4));
	say('l');
}

static void be_called(void)
{
	struct rdma_cm_event *e = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);

	NEED(e->listen_id == end.listener && e->param.conn.private_data_len == 56);
	end.id = e->id;
	keep_greeting(e);
	rdma_ack_cm_event(e);
}

static void listener(void)
{
	struct rdma_conn_param param;
	struct greeting g;

	listen_there();
	be_called();
	equip();
	param = greeting_param(&g);
	NEED(!rdma_accept(end.id, &param));
	expect_event(RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void route(void)
{
	struct sockaddr_in there = address();

	end.events = rdma_create_event_channel();
	NEED(end.events && !rdma_create_id(end.events, &end.id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(end.id, NULL, (struct sockaddr *)&there, 1000));
	expect_event(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(end.id, 1000));
	expect_event(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

static void dial(void)
{
	struct rdma_conn_param param;
	uint8_t timeout = ACK_TIMEOUT;
	struct greeting g;

	equip();
	NEED(!rdma_set_option(end.id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)));
	param = greeting_param(&g);
	NEED(!rdma_connect(end.id, &param));
}

static void dialler(void)
{
	struct rdma_cm_event *e;

	hear('l');
	route();
	dial();
	e = next_event(RDMA_CM_EVENT_ESTABLISHED);
	NEED(e->param.conn.private_data_len == 196);
	keep_greeting(e);
	rdma_ack_cm_event(e);
}

static void post_recvs(int count)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end.memory, .length = 64, .lkey = end.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	for (int i = 0; i < count; i++) {
		wr.wr_id = 100 + (uint64_t)i;
		NEED(!ibv_post_recv(end.id->qp, &wr, &bad));
	}
}

/* `off` of our memory to `off` of the peer's, or back. */
static int post(enum ibv_wr_opcode opcode, uint64_t id, uint64_t off, uint32_t length, unsigned flags)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end.memory + off, .length = length, .lkey = end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .opcode = opcode, .send_flags = flags, .sg_list = &sge, .num_sge = 1, .imm_data = htonl(7) }, *bad;

	wr.wr.rdma.remote_addr = end.far_addr + off;
	wr.wr.rdma.rkey = end.far_key;
	return ibv_post_send(end.id->qp, &wr, &bad);
}

static void take_cq_event(void)
{
	struct ibv_cq *cq;
	void *context;

	NEED(!ibv_get_cq_event(end.channel, &cq, &context) && cq == end.cq && context == &end);
	ibv_ack_cq_events(cq, 1);
}

static bool channel_is_readable(void)
{
	struct pollfd p = { .fd = end.channel->fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* The next completion, slept for; what waits for an acknowledgement needs the event channel looked at. */
static struct ibv_wc next_wc(void)
{
	struct pollfd p[2] = { { .fd = end.channel->fd, .events = POLLIN }, { .fd = end.events->fd, .events = POLLIN } };
	struct rdma_cm_event *e;
	struct ibv_wc wc;

	for (;;) {
		NEED(!ibv_req_notify_cq(end.cq, 0));
		if (ibv_poll_cq(end.cq, 1, &wc) == 1)
			return wc;
		NEED(poll(p, 2, -1) > 0);
		if (p[0].revents)
			take_cq_event();
		fcntl(end.events->fd, F_SETFL, O_NONBLOCK);
		if (p[1].revents && !rdma_get_cm_event(end.events, &e))
			rdma_ack_cm_event(e);
		fcntl(end.events->fd, F_SETFL, 0);
	}
}

static void expect_wc(uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next_wc();

	if (wc.status != status || wc.wr_id != id)
		fprintf(stderr, "completion %llu with %d instead of %llu with %d\n", (unsigned long long)wc.wr_id, wc.status,
			(unsigned long long)id, status);
	NEED(wc.status == status && wc.wr_id == id);
}

/* Of the send queue and the receive queue: in which order is nobody's promise. */
static void expect_both(uint64_t one, uint64_t other)
{
	struct ibv_wc wc = next_wc();

	NEED(wc.status == IBV_WC_SUCCESS && (wc.wr_id == one || wc.wr_id == other));
	expect_wc(wc.wr_id == one ? other : one, IBV_WC_SUCCESS);
}

/* The peer is a process that runs `role`, then ends, and so is this side: so that each test begins with nothing. */
static void between(void (*ours)(void), void (*theirs)(void))
{
	int there[2], back[2], status[2];
	pid_t both[2];

	assert_int_equal(pipe(there) || pipe(back), 0);
	for (int i = 0; i < 2; i++) {
		both[i] = fork();
		if (both[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(SECONDS);
			to_peer = i ? there[1] : back[1];
			from_peer = i ? back[0] : there[0];
			close(i ? there[0] : back[0]);
			close(i ? back[1] : there[1]);
			peer = both[0];
			(i ? ours : theirs)();
			_exit(0);
		}
	}
	for (int i = 0; i < 2; i++) {
		close(there[i]);
		close(back[i]);
	}
	for (int i = 1; i >= 0; i--) {
		assert_int_equal(waitpid(both[i], &status[i], 0), both[i]);
		if (status[i] && i)
			kill(both[0], SIGKILL);
	}
	assert_int_equal(status[1], 0);
	assert_true(status[0] == 0 || (WIFSIGNALED(status[0]) && WTERMSIG(status[0]) == SIGKILL));
}

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

/* ---- ends ---- */

static void take_down(void)
{
	rdma_destroy_qp(end.id);
	NEED(!ibv_dereg_mr(end.mr) && !ibv_destroy_cq(end.cq) && !ibv_destroy_comp_channel(end.channel) && !ibv_dealloc_pd(end.pd));
	NEED(!rdma_destroy_id(end.id));
	rdma_destroy_event_channel(end.events);
}

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
		cmocka_unit_test(messages_to_and_fro),
		cmocka_unit_test(one_event_for_each_arming),
		cmocka_unit_test(reads_and_slots),
		cmocka_unit_test(a_sender_waits_for_a_receive_request),
		cmocka_unit_test(a_sender_that_does_not_wait_for_ever),
		cmocka_unit_test(what_a_key_does_not_allow),
		cmocka_unit_test(a_key_that_is_no_longer),
		cmocka_unit_test(an_error_flushes_everything),
		cmocka_unit_test(one_that_goes_is_heard_of),
		cmocka_unit_test(one_that_is_killed_is_heard_of),
		cmocka_unit_test(a_refusal_says_why),
		cmocka_unit_test(a_listener_that_ends_and_one_that_is_not_there),
	};

	port = (uint16_t)(1024 + getpid() % 60000);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
