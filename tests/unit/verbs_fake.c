/* SPDX-License-Identifier: MIT */
#include "verbs_fake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr

#define CQ_MAX 1024
#define QUEUE_MAX 512
#define MRS 64
#define QPS 16
#define EVENTS 32

struct fake fake;
static int live;

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
	uint32_t max_send, max_recv, max_inline;
	bool error;
	enum ibv_wc_status fail;
};

struct fake_mr {
	struct ibv_mr mr;
	int access;
	bool used;
};
static struct fake_mr mrs[MRS];
static struct fake_qp *qps[QPS];
static struct ibv_context context;

void fake_reset(void)
{
	memset(&fake, 0, sizeof(fake));
}

int fake_live(void)
{
	return live;
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
	if (fake.hold_acks)
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

/* The address, if the key allows it. */
static void *reach(uint32_t key, uint64_t at, uint64_t len, int access)
{
	struct fake_mr *m = key && key <= MRS ? &mrs[key - 1] : NULL;

	if (!m || !m->used || (access && !(m->access & access)) || at < (uintptr_t)m->mr.addr ||
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
	void *mine = NULL, *theirs = NULL;

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
			       : reach(w->sge.lkey, w->sge.addr, len, w->wr.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0);
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
			if (qps[i])
				moved += fake_run(&qps[i]->qp, QUEUE_MAX);
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

	*bad = wr;
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

	*bad = wr;
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

	while (n < most && cq->head != cq->tail) {
		wc[n] = cq->wc[cq->head++ % CQ_MAX];
		/* A completion gives back the slots of all work requests before it. */
		for (int i = 0; i < QPS; i++) {
			struct fake_qp *q = qps[i];

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
	live++;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	live--;
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
	live++;
	return &ch->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	close(((struct fake_channel *)channel)->wr_fd);
	free(channel);
	live--;
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq = calloc(1, sizeof(*cq));

	cq->cq.context = ctx;
	cq->cq.channel = channel;
	cq->cq.cqe = cqe;
	live++;
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	live--;
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
		live++;
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
	live--;
	return 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR)
		flush((struct fake_qp *)qp);
	return 0;
}

/* ---- librdmacm ---- */

struct fake_event {
	struct rdma_cm_event event;
	uint8_t data[256];
};

struct fake_events {
	struct rdma_event_channel channel;
	struct fake_event queue[EVENTS];
	unsigned head, tail;
};

struct fake_id {
	struct rdma_cm_id id;
	struct fake_id *other;
	bool listening;
	struct sockaddr_in6 at, to;
};
static struct fake_id *ids[QPS];

static struct fake_event *push(struct rdma_cm_id *id, enum rdma_cm_event_type type, int status)
{
	struct fake_events *ch = (struct fake_events *)id->channel;
	struct fake_event *e = &ch->queue[ch->tail++ % EVENTS];

	memset(e, 0, sizeof(*e));
	e->event.id = id;
	e->event.event = type;
	e->event.status = status;
	return e;
}

static void push_data(struct fake_event *e, const void *data, uint8_t len)
{
	memcpy(e->data, data, len);
	e->event.param.conn.private_data = e->data;
	e->event.param.conn.private_data_len = len;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct fake_events *ch = calloc(1, sizeof(*ch));

	ch->channel.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	context.ops.post_send = post_send;
	context.ops.post_recv = post_recv;
	context.ops.poll_cq = poll_cq;
	context.ops.req_notify_cq = req_notify_cq;
	live++;
	return &ch->channel;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	close(channel->fd);
	free(channel);
	live--;
}

static struct ibv_device device;

static struct fake_id *new_id(struct rdma_event_channel *channel)
{
	struct fake_id *f = calloc(1, sizeof(*f));

	f->id.channel = channel;
	for (int i = 0; i < QPS; i++)
		if (!ids[i]) {
			ids[i] = f;
			break;
		}
	live++;
	return f;
}

static struct ibv_context *the_context(void)
{
	device.transport_type = fake.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
	context.device = &device;
	return fake.no_device ? NULL : &context;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *ctx, enum rdma_port_space ps)
{
	*id = &new_id(channel)->id;
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
	struct fake_id *f = (struct fake_id *)id;

	for (int i = 0; i < QPS; i++) {
		if (ids[i] == f)
			ids[i] = NULL;
		else if (ids[i] && ids[i]->other == f)
			ids[i]->other = NULL;
	}
	free(id);
	live--;
	return 0;
}

static size_t addr_bytes(const struct sockaddr *addr)
{
	return addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct fake_id *f = (struct fake_id *)id;

	memcpy(&f->at, addr, addr_bytes(addr));
	id->verbs = the_context();
	return 0;
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	((struct fake_id *)id)->listening = true;
	return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	struct fake_id *f = (struct fake_id *)id;

	memcpy(&f->at, src, addr_bytes(src));
	memcpy(&f->to, dst, addr_bytes(dst));
	id->verbs = the_context();
	push(id, id->verbs ? RDMA_CM_EVENT_ADDR_RESOLVED : RDMA_CM_EVENT_ADDR_ERROR, id->verbs ? 0 : -ENODEV);
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	push(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return 0;
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct fake_id *f = (struct fake_id *)id, *n;

	for (int i = 0; i < QPS; i++) {
		struct fake_id *l = ids[i];

		if (!l || !l->listening || memcmp(&l->at, &f->to, sizeof(l->at)))
			continue;
		n = new_id(l->id.channel);
		n->id.verbs = the_context();
		n->other = f;
		f->other = n;
		struct fake_event *e = push(&l->id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);

		e->event.id = &n->id;
		e->event.listen_id = &l->id;
		push_data(e, param->private_data, param->private_data_len);
		return 0;
	}
	push(id, RDMA_CM_EVENT_REJECTED, 8);
	return 0;
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct fake_id *f = (struct fake_id *)id;

	push_data(push(&f->other->id, RDMA_CM_EVENT_ESTABLISHED, 0), param->private_data, param->private_data_len);
	push(id, RDMA_CM_EVENT_ESTABLISHED, 0);
	((struct fake_qp *)id->qp)->peer = (struct fake_qp *)f->other->id.qp;
	((struct fake_qp *)f->other->id.qp)->peer = (struct fake_qp *)id->qp;
	return 0;
}

int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
	struct fake_id *f = (struct fake_id *)id;

	if (f->other)
		push(&f->other->id, RDMA_CM_EVENT_REJECTED, 28);
	return 0;
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	struct fake_id *f = (struct fake_id *)id;

	if (f->other)
		push(&f->other->id, RDMA_CM_EVENT_DISCONNECTED, 0);
	return 0;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct fake_events *ch = (struct fake_events *)channel;

	if (ch->head == ch->tail) {
		errno = EAGAIN;
		return -1;
	}
	*event = &ch->queue[ch->head++ % EVENTS].event;
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	return 0;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen)
{
	return 0;
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct fake_qp *q = calloc(1, sizeof(*q));

	q->qp.context = id->verbs;
	q->qp.send_cq = attr->send_cq;
	q->qp.recv_cq = attr->recv_cq;
	q->max_send = attr->cap.max_send_wr;
	q->max_recv = attr->cap.max_recv_wr;
	q->max_inline = attr->cap.max_inline_data;
	for (int i = 0; i < QPS; i++)
		if (!qps[i]) {
			qps[i] = q;
			break;
		}
	id->qp = &q->qp;
	live++;
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	struct fake_qp *q = (struct fake_qp *)id->qp;

	for (int i = 0; i < QPS; i++) {
		if (qps[i] == q)
			qps[i] = NULL;
		else if (qps[i] && qps[i]->peer == q)
			qps[i]->peer = NULL;
	}
	free(q);
	id->qp = NULL;
	live--;
}
