/* SPDX-License-Identifier: MIT */
/* Queue pairs: posting, and what happens to them. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"
#include "ringbuf/sys.h"

static _Atomic uint32_t generation;

static struct shared_qp *shared_of(const struct double_qp *q)
{
	return &own->qps[q->index];
}

static struct side side_of(const struct double_qp *q)
{
	return (struct side){ .memory = own, .qp = shared_of(q) };
}

static struct side far_side_of(const struct double_qp *q)
{
	return (struct side){
		.memory = q->far->memory,
		.qp = &q->far->memory->qps[q->far_index],
		.pid = q->far->memory == own ? 0 : q->far->pid,
	};
}

/*
 * Executes what one side has posted, until there is nothing more that can be. `wait` false: if somebody else is at it, he goes round once more and
 * looks for himself.
 */
static enum stop run(const struct side *from, const struct side *to, bool wait)
{
	enum stop why = STOP_EMPTY;

	exchange(&from->qp->again, 1);
	if (wait)
		lock_take(&from->qp->lock);
	while (wait || (load_relaxed(&from->qp->again) && lock_try(&from->qp->lock))) {
		wait = false;
		exchange(&from->qp->again, 0);
		if (load_relaxed(&from->qp->state) == IBV_QPS_ERR)
			flush_sends(from);
		else if (to)
			why = execute(from, to);
		if (to && load_relaxed(&to->qp->state) == IBV_QPS_ERR && to->qp->peer_number == load_relaxed(&from->qp->number))
			flush_recvs(to);
		lock_drop(&from->qp->lock);
	}
	return why;
}

/* Ours; then, since the peer's queue pair may have been put into error, the peer's. */
static enum stop run_own(struct double_qp *q)
{
	struct side from = side_of(q), to;
	enum stop why;

	if (!q->far)
		return run(&from, NULL, true);
	to = far_side_of(q);
	why = run(&from, &to, true);
	if (load_relaxed(&to.qp->again))
		run(&to, &from, false);
	return why;
}

static void run_far(struct double_qp *q)
{
	struct side from = side_of(q), to;

	if (q->far) {
		to = far_side_of(q);
		run(&to, &from, false);
	} else if (load_relaxed(&from.qp->state) == IBV_QPS_ERR) {
		flush_recvs(&from);
	}
}

static bool peer_has_hung_up(const struct double_qp *q)
{
	struct pollfd p = { .fd = q->wire, .events = POLLRDHUP };
	struct timespec now = { 0, 0 };

	return q->wire >= 0 && sys_call5(SYS_ppoll, &p, 1, &now, NULL, 8) > 0 && p.revents & (POLLHUP | POLLRDHUP | POLLERR);
}

static void note_stop(struct double_qp *q, enum stop why)
{
	if (why == STOP_EMPTY || (why == STOP_NOT_READY && q->rnr_retries == 7)) {
		store_relaxed(&q->waits_since, 0);
		return;
	}
	if (load_relaxed(&q->waits_since))
		return;
	q->tries = 0;
	store_relaxed(&q->waits_since, now_ns());
	if (q->look_again)
		q->look_again(q, q->timeout_ns);
}

uint64_t qp_look(struct double_qp *q)
{
	struct side from = side_of(q);
	enum stop why;
	uint64_t next;

	if (device_is_removed())
		qp_fail(q);
	why = run_own(q);
	if (why == STOP_EMPTY || (why == STOP_NOT_READY && q->rnr_retries == 7)) {
		store_relaxed(&q->waits_since, 0);
		return 0;
	}
	note_stop(q, why);
	next = load_relaxed(&q->waits_since) + q->timeout_ns * (q->tries + 1);
	if (now_ns() < next)
		return next;
	if (q->tries++ < (why == STOP_NOT_READY ? q->rnr_retries : q->retries))
		return next + q->timeout_ns;
	lock_take(&from.qp->lock);
	if (load_relaxed(&from.qp->state) == IBV_QPS_RTS && load_relaxed(&from.qp->sends_head) != load_relaxed(&from.qp->sends_tail))
		fail_first(&from, why == STOP_NOT_READY ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR);
	lock_drop(&from.qp->lock);
	run_far(q);
	store_relaxed(&q->waits_since, 0);
	return 0;
}

static int put_send(struct double_qp *q, const struct ibv_send_wr *wr)
{
	struct shared_qp *qp = shared_of(q);
	uint32_t tail = load_relaxed(&qp->sends_tail);
	struct shared_send *s = &qp->sends[tail % SENDS_MAX];

	if (tail - load_acquire(&qp->sends_done) >= qp->max_sends)
		return ENOMEM;
	if (wr->num_sge > 1 || wr->opcode > IBV_WR_RDMA_READ || (settings.iwarp && wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM))
		return EINVAL;
	*s = (struct shared_send){ .wr_id = wr->wr_id, .opcode = wr->opcode, .flags = wr->send_flags, .imm_data = wr->imm_data };
	if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM) {
		s->remote_addr = wr->wr.rdma.remote_addr;
		s->rkey = wr->wr.rdma.rkey;
	}
	if (wr->num_sge) {
		s->addr = wr->sg_list->addr;
		s->length = wr->sg_list->length;
		s->lkey = wr->sg_list->lkey;
	}
	if (s->flags & IBV_SEND_INLINE) {
		if (s->length > settings.max_inline || wr->opcode == IBV_WR_RDMA_READ)
			return EINVAL;
		memcpy(s->inlined, (void *)(uintptr_t)s->addr, s->length);
	}
	store_release(&qp->sends_tail, tail + 1);
	return 0;
}

int qp_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct double_qp *q = (struct double_qp *)ibqp;
	struct shared_qp *qp = shared_of(q);
	uint64_t nth = fetch_add(&settings.posts, 1) + 1;
	int r = 0;

	*bad = wr;
	if (nth == settings.forget_at)
		mrs_forget();
	if (nth == settings.remove_at)
		device_remove();
	if (nth == settings.fail_post)
		return ENOMEM;
	if (device_is_removed()) {
		if (q->look_again)
			q->look_again(q, 0);
		return EIO;
	}
	if (load_relaxed(&qp->state) != IBV_QPS_RTS && load_relaxed(&qp->state) != IBV_QPS_ERR)
		return EINVAL;
	lock_take(&qp->lock);
	/* Nobody is there any more, though another process may have his number. */
	if (peer_has_hung_up(q))
		qp->peer_number = 0;
	for (; wr && !r; wr = wr->next) {
		*bad = wr;
		r = put_send(q, wr);
	}
	lock_drop(&qp->lock);
	note_stop(q, run_own(q));
	return r;
}

int qp_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct double_qp *q = (struct double_qp *)ibqp;
	struct shared_qp *qp = shared_of(q);

	for (; wr; wr = wr->next) {
		uint32_t tail = load_relaxed(&qp->recvs_tail);

		*bad = wr;
		if (device_is_removed())
			return EIO;
		if (tail - load_acquire(&qp->recvs_head) >= qp->max_recvs)
			return ENOMEM;
		if (load_relaxed(&qp->state) == IBV_QPS_RESET || wr->num_sge > 1)
			return EINVAL;
		qp->recvs[tail % RECVS_MAX] = (struct shared_recv){ .wr_id = wr->wr_id };
		if (wr->num_sge) {
			qp->recvs[tail % RECVS_MAX].addr = wr->sg_list->addr;
			qp->recvs[tail % RECVS_MAX].length = wr->sg_list->length;
			qp->recvs[tail % RECVS_MAX].lkey = wr->sg_list->lkey;
		}
		store_release(&qp->recvs_tail, tail + 1);
	}
	/* The request, then the look: a sender that found none looks again, or is seen here. */
	fence_full();
	run_far(q);
	return 0;
}

int qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, struct double_qp **out)
{
	struct double_qp *q;
	struct shared_qp *qp;
	uint32_t index = 0;

	if (device_is_removed())
		return EIO;
	if (!attr->send_cq || !attr->recv_cq || attr->srq || attr->qp_type != IBV_QPT_RC || attr->sq_sig_all || attr->cap.max_send_sge > 1 ||
	    attr->cap.max_recv_sge > 1 || attr->cap.max_send_wr > SENDS_MAX || attr->cap.max_recv_wr > RECVS_MAX ||
	    attr->cap.max_inline_data > settings.max_inline)
		return EINVAL;
	q = calloc(1, sizeof(*q));
	if (!q || load_relaxed(&settings.live_qps) >= settings.max_qps) {
		free(q);
		return ENOMEM;
	}
	while (index < QPS_MAX && !compare_exchange(&own->qps[index].number, &(uint32_t){ 0 }, 1))
		index++;
	if (index == QPS_MAX) {
		free(q);
		return ENOMEM;
	}
	qp = &own->qps[index];
	/* A former peer may be having a last look. */
	lock_take(&qp->lock);
	qp->peer_number = 0;
	store_relaxed(&qp->sends_done, 0);
	store_relaxed(&qp->sends_head, 0);
	store_relaxed(&qp->sends_tail, 0);
	store_relaxed(&qp->recvs_head, 0);
	store_relaxed(&qp->recvs_tail, 0);
	lock_drop(&qp->lock);
	q->index = index;
	q->wire = -1;
	q->retries = q->rnr_retries = 7;
	q->timeout_ns = UINT64_C(4000000000);
	qp->send_cq = ((struct double_cq *)attr->send_cq)->index;
	qp->recv_cq = ((struct double_cq *)attr->recv_cq)->index;
	qp->pd = pd->handle;
	qp->max_sends = attr->cap.max_send_wr;
	qp->max_recvs = attr->cap.max_recv_wr;
	store_release(&qp->state, IBV_QPS_INIT);
	store_release(&qp->number, (fetch_add(&generation, 1) % 8192 + 1) * QPS_MAX + index);
	attr->cap.max_inline_data = settings.max_inline;
	((struct double_cq *)attr->send_cq)->qps++;
	((struct double_cq *)attr->recv_cq)->qps++;
	((struct double_pd *)pd)->users++;
	fetch_add(&settings.live_qps, 1);
	q->qp = (struct ibv_qp){
		.context = pd->context, .qp_context = attr->qp_context, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq,
		.handle = index, .qp_num = load_relaxed(&qp->number), .state = IBV_QPS_INIT, .qp_type = IBV_QPT_RC,
	};
	*out = q;
	return 0;
}

/* The far side may look at us from now on, and we at it: what was posted too early goes out. */
void qp_connect(struct double_qp *q, struct far_adapter *far, uint32_t index, uint32_t number)
{
	struct shared_qp *qp = shared_of(q);

	q->far = far;
	q->far_index = index % QPS_MAX;
	qp->peer_number = number;
	store_release(&qp->state, IBV_QPS_RTS);
	q->qp.state = IBV_QPS_RTS;
	fence_full();
	run_far(q);
}

/* Nothing is written by us or into our memory once this has returned. */
void qp_fail(struct double_qp *q)
{
	struct side from = side_of(q), to;

	if (load_relaxed(&from.qp->state) == IBV_QPS_RESET)
		return;
	store_release(&from.qp->state, IBV_QPS_ERR);
	q->qp.state = IBV_QPS_ERR;
	run_own(q);
	if (!q->far) {
		flush_recvs(&from);
		return;
	}
	to = far_side_of(q);
	lock_take(&to.qp->lock);
	flush_recvs(&from);
	lock_drop(&to.qp->lock);
}

void qp_destroy(struct double_qp *q)
{
	struct side from = side_of(q), to;

	if (q->far) {
		to = far_side_of(q);
		lock_take(&to.qp->lock);
		store_release(&from.qp->state, IBV_QPS_RESET);
		lock_drop(&to.qp->lock);
	}
	lock_take(&from.qp->lock);
	store_release(&from.qp->state, IBV_QPS_RESET);
	store_release(&from.qp->number, 0);
	lock_drop(&from.qp->lock);
	if (q->far)
		far_close(q->far);
	((struct double_cq *)q->qp.send_cq)->qps--;
	((struct double_cq *)q->qp.recv_cq)->qps--;
	((struct double_pd *)q->qp.pd)->users--;
	fetch_sub(&settings.live_qps, 1);
	free(q);
}
