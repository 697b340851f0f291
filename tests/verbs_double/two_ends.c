/* SPDX-License-Identifier: MIT */
/* See two_ends.h. */
#include "two_ends.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 30, ACK_TIMEOUT = 12 /* 17 ms */ };

void need(bool good, const char *what, int line)
{
	if (good)
		return;
	fprintf(stderr, "line %d: %s (errno %d)\n", line, what, errno);
	_exit(1);
}

struct end end;

struct greeting {
	uint64_t addr;
	uint32_t key;
};

static uint16_t port; /* of tests that run at the same time: each its own */
static int to_peer, from_peer;
pid_t peer;
static uint8_t retries = 2;
uint8_t rnr_retries = 7;
int access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

void say(char word)
{
	NEED(write(to_peer, &word, 1) == 1);
}

void hear(char word)
{
	char got = 0;

	NEED(read(from_peer, &got, 1) == 1 && got == word);
}

struct rdma_cm_event *next_event(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *e;

	NEED(!rdma_get_cm_event(end.events, &e));
	if (e->event != type)
		fprintf(stderr, "%s, status %d, instead of %s\n", rdma_event_str(e->event), e->status, rdma_event_str(type));
	NEED(e->event == type);
	return e;
}

void expect_event(enum rdma_cm_event_type type, int status)
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

void listen_there(void)
{
	struct sockaddr_in at = address();

	end.events = rdma_create_event_channel();
	NEED(end.events && !rdma_create_id(end.events, &end.listener, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(end.listener, (struct sockaddr *)&at) && end.listener->verbs && !rdma_listen(end.listener, 4));
	say('l');
}

void be_called(void)
{
	struct rdma_cm_event *e = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);

	NEED(e->listen_id == end.listener && e->param.conn.private_data_len == 56);
	end.id = e->id;
	keep_greeting(e);
	rdma_ack_cm_event(e);
}

void listener(void)
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

void route(void)
{
	struct sockaddr_in there = address();

	end.events = rdma_create_event_channel();
	NEED(end.events && !rdma_create_id(end.events, &end.id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(end.id, NULL, (struct sockaddr *)&there, 1000));
	expect_event(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(end.id, 1000));
	expect_event(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

void dial(void)
{
	struct rdma_conn_param param;
	uint8_t timeout = ACK_TIMEOUT;
	struct greeting g;

	equip();
	NEED(!rdma_set_option(end.id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)));
	param = greeting_param(&g);
	NEED(!rdma_connect(end.id, &param));
}

void dialler(void)
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

void post_recvs(int count)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end.memory, .length = 64, .lkey = end.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	for (int i = 0; i < count; i++) {
		wr.wr_id = 100 + (uint64_t)i;
		NEED(!ibv_post_recv(end.id->qp, &wr, &bad));
	}
}

int post(enum ibv_wr_opcode opcode, uint64_t id, uint64_t off, uint32_t length, unsigned flags)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end.memory + off, .length = length, .lkey = end.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .opcode = opcode, .send_flags = flags, .sg_list = &sge, .num_sge = 1, .imm_data = htonl(7) }, *bad;

	wr.wr.rdma.remote_addr = end.far_addr + off;
	wr.wr.rdma.rkey = end.far_key;
	return ibv_post_send(end.id->qp, &wr, &bad);
}

void take_cq_event(void)
{
	struct ibv_cq *cq;
	void *context;

	NEED(!ibv_get_cq_event(end.channel, &cq, &context) && cq == end.cq && context == &end);
	ibv_ack_cq_events(cq, 1);
}

bool channel_is_readable(void)
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

void expect_wc(uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next_wc();

	if (wc.status != status || wc.wr_id != id)
		fprintf(stderr, "completion %llu with %d instead of %llu with %d\n", (unsigned long long)wc.wr_id, wc.status,
			(unsigned long long)id, status);
	NEED(wc.status == status && wc.wr_id == id);
}

void expect_both(uint64_t one, uint64_t other)
{
	struct ibv_wc wc = next_wc();

	NEED(wc.status == IBV_WC_SUCCESS && (wc.wr_id == one || wc.wr_id == other));
	expect_wc(wc.wr_id == one ? other : one, IBV_WC_SUCCESS);
}

void between(void (*ours)(void), void (*theirs)(void))
{
	int there[2], back[2], status[2];
	pid_t both[2];

	assert_int_equal(pipe(there) || pipe(back), 0);
	port = (uint16_t)(1024 + getpid() % 60000);
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

void take_down(void)
{
	rdma_destroy_qp(end.id);
	NEED(!ibv_dereg_mr(end.mr) && !ibv_destroy_cq(end.cq) && !ibv_destroy_comp_channel(end.channel) && !ibv_dealloc_pd(end.pd));
	NEED(!rdma_destroy_id(end.id));
	rdma_destroy_event_channel(end.events);
}
