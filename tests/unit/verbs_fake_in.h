/* SPDX-License-Identifier: MIT */
/* What the two halves of the double have in common. */
#ifndef RINGWAY_TESTS_VERBS_FAKE_IN_H
#define RINGWAY_TESTS_VERBS_FAKE_IN_H

#include "verbs_fake.h"

#define CQ_MAX 1024
#define QUEUE_MAX 512
#define MRS 64
#define QPS 16

struct fake_channel {
	struct ibv_comp_channel channel;
	int wr_fd;
};

struct fake_cq {
	struct ibv_cq cq;
	struct ibv_wc wc[CQ_MAX];
	unsigned head, tail;
	bool armed;
};

struct fake_wr {
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint8_t inlined[256];
};

struct fake_qp {
	struct ibv_qp qp;
	struct fake_qp *peer;
	struct fake_wr sq[QUEUE_MAX];
	unsigned sq_head, sq_tail, sq_free; /* executed, posted, given back by a polled completion */
	struct ibv_recv_wr rq[QUEUE_MAX];
	struct ibv_sge rq_sge[QUEUE_MAX];
	unsigned rq_head, rq_tail;
	struct ibv_wc held[QUEUE_MAX];
	unsigned nr_held;
	uint8_t late[65536]; /* on its way: what a READ has read */
	void *late_to;
	uint32_t late_len;
	struct ibv_wc late_wc;
	uint32_t max_send, max_recv, max_inline;
	bool error;
	enum ibv_wc_status fail;
};

extern struct fake_qp *fake_qps[QPS];
extern int fake_made;
/* NULL where there is no device. */
struct ibv_context *fake_context(void);

#endif
