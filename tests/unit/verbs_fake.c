/* SPDX-License-Identifier: MIT */
#include "verbs_fake_in.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr

struct fake fake;
int fake_made;

/* Both devices are one machine; entered again where one end's request completes at the other. */
static pthread_mutex_t machine = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static void leave(int *entered)
{
	pthread_mutex_unlock(&machine);
}
#define ENTER int entered __attribute__((cleanup(leave), unused)) = pthread_mutex_lock(&machine)

struct fake_mr {
	struct ibv_mr mr;
	int access;
	bool used;
};
static struct fake_mr mrs[MRS];
struct fake_qp *fake_qps[QPS];

void fake_reset(void)
{
	memset(&fake, 0, sizeof(fake));
}

int fake_live(void)
{
	return fake_made;
}

static void complete(struct fake_cq *cq, const struct ibv_wc *wc)
{
	struct fake_channel *ch = (struct fake_channel *)cq->cq.channel;
	uint64_t cookie = (uintptr_t)&cq->cq;

	if (cq->tail - cq->head > (unsigned)cq->cq.cqe) {
		fake.overruns++;
		return;
	}
	cq->wc[cq->tail++ % CQ_MAX] = *wc;
	if (cq->armed) {
		cq->armed = false;
		if (write(ch->wr_fd, &cookie, sizeof(cookie)) != sizeof(cookie))
			fake.overruns++;
	}
}

static void complete_send(struct fake_qp *q, const struct ibv_wc *wc)
{
	if (fake.hold_acks || q->late_to)
		q->held[q->nr_held++] = *wc;
	else
		complete((struct fake_cq *)q->qp.send_cq, wc);
}

void fake_ack(struct ibv_qp *qp)
{
	struct fake_qp *q = (struct fake_qp *)qp;

	for (unsigned i = 0; i < q->nr_held; i++)
		complete((struct fake_cq *)q->qp.send_cq, &q->held[i]);
	q->nr_held = 0;
}

void fake_land(struct ibv_qp *qp)
{
	struct fake_qp *q = (struct fake_qp *)qp;

	if (!q->late_to)
		return;
	memcpy(q->late_to, q->late, q->late_len);
	q->late_to = NULL;
	if (q->late_wc.wr_id)
		complete((struct fake_cq *)q->qp.send_cq, &q->late_wc);
	fake_ack(qp);
}

/* The address, if the key allows it. */
static void *reach(uint32_t key, uint64_t at, uint64_t len, int access)
{
	struct fake_mr *m = key && key <= MRS ? &mrs[key - 1] : NULL;

	if (!m || !m->used || (m->access & access) != access || at < (uintptr_t)m->mr.addr ||
	    at + len > (uintptr_t)m->mr.addr + m->mr.length) {
		fake.outside++;
		return NULL;
	}
	return (void *)(uintptr_t)at;
}

static void flush(struct fake_qp *q)
{
	q->error = true;
	for (; q->sq_head != q->sq_tail; q->sq_head++) {
		struct ibv_wc wc = { .wr_id = q->sq[q->sq_head % QUEUE_MAX].wr.wr_id, .status = IBV_WC_WR_FLUSH_ERR };

		complete((struct fake_cq *)q->qp.send_cq, &wc);
	}
	for (; q->rq_head != q->rq_tail; q->rq_head++) {
		struct ibv_wc wc = { .wr_id = q->rq[q->rq_head % QUEUE_MAX].wr_id, .status = IBV_WC_WR_FLUSH_ERR };

		complete((struct fake_cq *)q->qp.recv_cq, &wc);
	}
}

static void broken(struct fake_qp *q, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = { .wr_id = id, .status = status };

	q->sq_head++;
	complete((struct fake_cq *)q->qp.send_cq, &wc);
	flush(q);
	if (q->peer)
		flush(q->peer);
}

/* False: the peer has no receive request; tried again later. */
static bool receive(struct fake_qp *p, const struct ibv_wc *what, const void *bytes, uint32_t len)
{
	struct ibv_wc wc = *what;
	struct ibv_recv_wr *r = &p->rq[p->rq_head % QUEUE_MAX];

	if (p->rq_head == p->rq_tail) {
		fake.rnr++;
		return false;
	}
	if (bytes)
		memcpy((void *)(uintptr_t)p->rq_sge[p->rq_head % QUEUE_MAX].addr, bytes,
		       len < r->sg_list->length ? len : r->sg_list->length);
	p->rq_head++;
	wc.wr_id = r->wr_id;
	wc.byte_len = len;
	complete((struct fake_cq *)p->qp.recv_cq, &wc);
	return true;
}

static bool execute(struct fake_qp *q)
{
	struct fake_wr *w = &q->sq[q->sq_head % QUEUE_MAX];
	uint32_t len = w->wr.num_sge ? w->sge.length : 0;
	struct ibv_wc wc = { .wr_id = w->wr.wr_id, .byte_len = len };
	struct ibv_wc in = { .wc_flags = IBV_WC_WITH_IMM, .imm_data = w->wr.imm_data, .opcode = IBV_WC_RECV_RDMA_WITH_IMM };
	int read_access = IBV_ACCESS_LOCAL_WRITE | (fake.iwarp ? IBV_ACCESS_REMOTE_WRITE : 0);
	void *mine = NULL, *theirs = NULL;

	if (q->late_to && w->wr.send_flags & IBV_SEND_FENCE)
		return false;
	if (q->fail) {
		broken(q, w->wr.wr_id, q->fail);
		return true;
	}
	if (!q->peer || q->peer->error) {
		broken(q, w->wr.wr_id, IBV_WC_RETRY_EXC_ERR);
		return true;
	}
	if (len)
		mine = w->wr.send_flags & IBV_SEND_INLINE
			       ? w->inlined
			       : reach(w->sge.lkey, w->sge.addr, len, w->wr.opcode == IBV_WR_RDMA_READ ? read_access : 0);
	if (len && w->wr.opcode != IBV_WR_SEND)
		theirs = reach(w->wr.wr.rdma.rkey, w->wr.wr.rdma.remote_addr, len,
			       w->wr.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
	if (len && (!mine || (w->wr.opcode != IBV_WR_SEND && !theirs))) {
		broken(q, w->wr.wr_id, IBV_WC_REM_ACCESS_ERR);
		return true;
	}
	switch (w->wr.opcode) {
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		if (q->peer->rq_head == q->peer->rq_tail) {
			fake.rnr++;
			return false;
		}
		if (len)
			memcpy(theirs, mine, len);
		receive(q->peer, &in, NULL, len);
		break;
	case IBV_WR_RDMA_WRITE:
		if (len)
			memcpy(theirs, mine, len);
		break;
	case IBV_WR_RDMA_READ:
		if (fake.late_reads && len != sizeof(uint64_t)) {
			memcpy(q->late, theirs, len);
			q->late_to = mine;
			q->late_len = len;
			q->late_wc = wc;
			q->sq_head++;
			return true;
		}
		/* A word of the host's is read as one. */
		if (len == sizeof(uint64_t))
			*(uint64_t *)mine = __atomic_load_n((uint64_t *)theirs, __ATOMIC_RELAXED);
		else
			memcpy(mine, theirs, len);
		break;
	case IBV_WR_SEND:
		if (!receive(q->peer, &(struct ibv_wc){ .opcode = IBV_WC_RECV }, mine, len))
			return false;
		break;
	default:
		abort();
	}
	q->sq_head++;
	if (w->wr.send_flags & IBV_SEND_SIGNALED)
		complete_send(q, &wc);
	return true;
}

int fake_run(struct ibv_qp *qp, int most)
{
	struct fake_qp *q = (struct fake_qp *)qp;
	int n = 0;
	ENTER;

	while (n < most && !q->error && q->sq_head != q->sq_tail && execute(q))
		n++;
	return n;
}

void fake_settle(void)
{
	int moved;

	do {
		moved = 0;
		for (int i = 0; i < QPS; i++)
			if (fake_qps[i])
				moved += fake_run(&fake_qps[i]->qp, QUEUE_MAX);
	} while (moved);
}

void fake_fail(struct ibv_qp *qp, enum ibv_wc_status status)
{
	((struct fake_qp *)qp)->fail = status;
}

void fake_say_word(struct ibv_qp *from, uint32_t word)
{
	struct ibv_wc in = { .wc_flags = IBV_WC_WITH_IMM, .imm_data = htonl(word), .opcode = IBV_WC_RECV_RDMA_WITH_IMM };

	receive(((struct fake_qp *)from)->peer, &in, NULL, 0);
}

void fake_say(struct ibv_qp *from, const void *bytes, uint32_t len)
{
	receive(((struct fake_qp *)from)->peer, &(struct ibv_wc){ .opcode = IBV_WC_RECV }, bytes, len);
}

/* ---- libibverbs ---- */

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *q = (struct fake_qp *)qp;
	ENTER;

	*bad = wr;
	if (fake.posts_left && !--fake.posts_left)
		fake.removed = true;
	if (fake.removed)
		return EIO;
	for (; wr; wr = wr->next) {
		struct fake_wr *w = &q->sq[q->sq_tail % QUEUE_MAX];

		if (q->sq_tail - q->sq_free >= q->max_send) {
			fake.overruns++;
			*bad = wr;
			return ENOMEM;
		}
		w->wr = *wr;
		if (wr->num_sge) {
			w->sge = wr->sg_list[0];
			w->wr.sg_list = &w->sge;
			if (wr->send_flags & IBV_SEND_INLINE) {
				if (w->sge.length > q->max_inline)
					return EINVAL;
				memcpy(w->inlined, (void *)(uintptr_t)w->sge.addr, w->sge.length);
			}
		}
		q->sq_tail++;
	}
	if (q->error)
		flush(q);
	else if (!fake.by_hand)
		fake_run(qp, QUEUE_MAX);
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *q = (struct fake_qp *)qp;
	ENTER;

	*bad = wr;
	if (fake.posts_left && !--fake.posts_left)
		fake.removed = true;
	if (fake.removed)
		return EIO;
	for (; wr; wr = wr->next) {
		unsigned at = q->rq_tail % QUEUE_MAX;

		if (q->rq_tail - q->rq_head >= q->max_recv) {
			fake.overruns++;
			return ENOMEM;
		}
		q->rq[at] = *wr;
		q->rq_sge[at] = wr->sg_list[0];
		q->rq[at].sg_list = &q->rq_sge[at];
		q->rq_tail++;
	}
	if (q->error)
		flush(q);
	else if (q->peer && !fake.by_hand)
		fake_run(&q->peer->qp, QUEUE_MAX);
	return 0;
}

static int poll_cq(struct ibv_cq *ibcq, int most, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)ibcq;
	int n = 0;
	ENTER;

	while (n < most && cq->head != cq->tail) {
		wc[n] = cq->wc[cq->head++ % CQ_MAX];
		/* A completion gives back the slots of all work requests before it. */
		for (int i = 0; i < QPS; i++) {
			struct fake_qp *q = fake_qps[i];

			if (!q || q->qp.send_cq != ibcq)
				continue;
			for (unsigned s = q->sq_free; s != q->sq_head; s++)
				if (q->sq[s % QUEUE_MAX].wr.wr_id == wc[n].wr_id)
					q->sq_free = s + 1;
		}
		n++;
	}
	return n;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	ENTER;

	((struct fake_cq *)cq)->armed = true;
	return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = ctx;
	fake_made++;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	fake_made--;
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
	struct fake_channel *ch = calloc(1, sizeof(*ch));
	int fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK))
		abort();
	ch->channel.context = ctx;
	ch->channel.fd = fds[0];
	ch->wr_fd = fds[1];
	fake_made++;
	return &ch->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	close(((struct fake_channel *)channel)->wr_fd);
	free(channel);
	fake_made--;
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq = calloc(1, sizeof(*cq));

	cq->cq.context = ctx;
	cq->cq.channel = channel;
	cq->cq.cqe = cqe;
	fake_made++;
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	fake_made--;
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	uint64_t cookie;

	if (read(channel->fd, &cookie, sizeof(cookie)) != sizeof(cookie))
		return -1;
	*cq = (struct ibv_cq *)(uintptr_t)cookie;
	*cq_context = NULL;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned nevents)
{
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (fake.fail_reg_mr && !fake.reg_mr_left--) {
		errno = fake.fail_reg_mr;
		fake.reg_mr_left = 0;
		return NULL;
	}
	for (unsigned i = 0; i < MRS; i++) {
		if (mrs[i].used)
			continue;
		mrs[i] = (struct fake_mr){ .access = access, .used = true };
		mrs[i].mr = (struct ibv_mr){ .pd = pd, .addr = addr, .length = length, .lkey = i + 1, .rkey = i + 1 };
		fake_made++;
		return &mrs[i].mr;
	}
	abort();
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
	return ibv_reg_mr(pd, addr, length, (int)access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	((struct fake_mr *)mr)->used = false;
	fake_made--;
	return 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	ENTER;

	if (mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR)
		flush((struct fake_qp *)qp);
	return 0;
}

struct ibv_context *fake_context(void)
{
	static struct ibv_context context;
	static struct ibv_device device;

	context.ops.post_send = post_send;
	context.ops.post_recv = post_recv;
	context.ops.poll_cq = poll_cq;
	context.ops.req_notify_cq = req_notify_cq;
	device.transport_type = fake.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
	context.device = &device;
	return fake.no_device ? NULL : &context;
}
