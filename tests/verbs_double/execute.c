/* SPDX-License-Identifier: MIT */
/*
 * Work requests are executed here, in order, by the process that posts them or by its peer. Everything runs under the lock of the queue pair
 * that sends.
 */
#include <errno.h>
#include <string.h>

#include "double.h"

static void complete_send(const struct side *from, const struct shared_send *w, enum ibv_wc_status status)
{
	static const enum ibv_wc_opcode opcodes[] = {
		[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE, [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE, [IBV_WR_SEND] = IBV_WC_SEND,
		[IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,    [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
	};
	struct ibv_wc wc = {
		.wr_id = w->wr_id,
		.status = status,
		.opcode = opcodes[w->opcode],
		.byte_len = w->length,
		.qp_num = load_relaxed(&from->qp->number),
	};

	cq_put(from->memory, from->qp->send_cq, &wc, from->qp, load_relaxed(&from->qp->sends_head), false);
}

void flush_sends(const struct side *from)
{
	struct shared_qp *qp = from->qp;

	while (load_relaxed(&qp->sends_head) != load_relaxed(&qp->sends_tail)) {
		struct shared_send *w = &qp->sends[load_relaxed(&qp->sends_head) % SENDS_MAX];

		store_release(&qp->sends_head, load_relaxed(&qp->sends_head) + 1);
		complete_send(from, w, IBV_WC_WR_FLUSH_ERR);
	}
}

void flush_recvs(const struct side *to)
{
	struct shared_qp *qp = to->qp;

	while (load_relaxed(&qp->recvs_head) != load_acquire(&qp->recvs_tail)) {
		struct ibv_wc wc = {
			.wr_id = qp->recvs[load_relaxed(&qp->recvs_head) % RECVS_MAX].wr_id,
			.status = IBV_WC_WR_FLUSH_ERR,
			.opcode = IBV_WC_RECV,
			.qp_num = load_relaxed(&qp->number),
		};

		store_release(&qp->recvs_head, load_relaxed(&qp->recvs_head) + 1);
		cq_put(to->memory, qp->recv_cq, &wc, NULL, 0, false);
	}
}

void fail_first(const struct side *from, enum ibv_wc_status status)
{
	struct shared_qp *qp = from->qp;
	struct shared_send *w = &qp->sends[load_relaxed(&qp->sends_head) % SENDS_MAX];

	store_release(&qp->state, IBV_QPS_ERR);
	store_release(&qp->sends_head, load_relaxed(&qp->sends_head) + 1);
	complete_send(from, w, status);
	flush_sends(from);
}

/* The responder's queue pair goes into error, too. Its own sends are flushed by whoever next holds its lock. */
static void both_fail(const struct side *from, const struct side *to, enum ibv_wc_status status)
{
	store_release(&to->qp->state, IBV_QPS_ERR);
	flush_recvs(to);
	exchange(&to->qp->again, 1);
	fail_first(from, status);
}

static bool wants_receive(uint32_t opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static void complete_recv(const struct side *to, const struct shared_send *w)
{
	struct shared_qp *qp = to->qp;
	bool imm = w->opcode != IBV_WR_SEND;
	struct ibv_wc wc = {
		.wr_id = qp->recvs[load_relaxed(&qp->recvs_head) % RECVS_MAX].wr_id,
		.status = IBV_WC_SUCCESS,
		.opcode = w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
		.byte_len = w->length,
		.imm_data = imm ? w->imm_data : 0,
		.wc_flags = imm ? IBV_WC_WITH_IMM : 0,
		.qp_num = load_relaxed(&qp->number),
	};

	store_release(&qp->recvs_head, load_relaxed(&qp->recvs_head) + 1);
	cq_put(to->memory, qp->recv_cq, &wc, NULL, 0, w->flags & IBV_SEND_SOLICITED);
}

/* What keeps a request from being executed for good; IBV_WC_SUCCESS: nothing does. `theirs`: where its bytes lie or go at the peer. */
static enum ibv_wc_status check(const struct side *from, const struct side *to, const struct shared_send *w, uint64_t *theirs)
{
	bool reads = w->opcode == IBV_WR_RDMA_READ;
	/* What is read comes as a write of the peer's, and there it must be allowed as one. */
	int read_access = IBV_ACCESS_LOCAL_WRITE | (settings.iwarp ? IBV_ACCESS_REMOTE_WRITE : 0);

	*theirs = w->remote_addr;
	if (w->length && !(w->flags & IBV_SEND_INLINE) &&
	    !mr_allows(from->memory, w->lkey, from->qp->pd, w->addr, w->length, reads ? read_access : 0))
		return IBV_WC_LOC_PROT_ERR;
	if (w->opcode == IBV_WR_SEND || w->opcode == IBV_WR_SEND_WITH_IMM) {
		const struct shared_recv *r = &to->qp->recvs[load_relaxed(&to->qp->recvs_head) % RECVS_MAX];

		*theirs = r->addr;
		if (w->length > r->length)
			return IBV_WC_REM_INV_REQ_ERR;
		if (w->length && !mr_allows(to->memory, r->lkey, to->qp->pd, r->addr, w->length, IBV_ACCESS_LOCAL_WRITE))
			return IBV_WC_REM_OP_ERR;
		return IBV_WC_SUCCESS;
	}
	if (w->length && !mr_allows(to->memory, w->rkey, to->qp->pd, w->remote_addr, w->length,
				    reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE))
		return IBV_WC_REM_ACCESS_ERR;
	return IBV_WC_SUCCESS;
}

static int move(const struct side *from, const struct side *to, const struct shared_send *w, uint64_t theirs)
{
	uint64_t ours = w->flags & IBV_SEND_INLINE ? (uintptr_t)w->inlined : w->addr;

	if (!w->length)
		return 0;
	/* Inline bytes lie in shared memory, so whoever executes has them. */
	if (w->opcode == IBV_WR_RDMA_READ)
		return copy_memory(from->pid, ours, to->pid, theirs, w->length);
	return copy_memory(to->pid, theirs, w->flags & IBV_SEND_INLINE ? 0 : from->pid, ours, w->length);
}

/* True: executed, or failed for good. */
static bool execute_one(const struct side *from, const struct side *to, enum stop *why)
{
	struct shared_qp *qp = from->qp;
	const struct shared_send *w = &qp->sends[load_relaxed(&qp->sends_head) % SENDS_MAX];
	enum ibv_wc_status status;
	uint64_t theirs;
	int r;

	if (wants_receive(w->opcode) && (receives_are_lost() || load_relaxed(&to->qp->recvs_head) == load_acquire(&to->qp->recvs_tail))) {
		*why = STOP_NOT_READY;
		return false;
	}
	status = check(from, to, w, &theirs);
	if (status == IBV_WC_LOC_PROT_ERR) {
		fail_first(from, status);
		return true;
	}
	r = status ? 0 : move(from, to, w, theirs);
	if (r == -ESRCH || r == -EPERM) {
		if (r == -EPERM)
			misuse("the peer's memory may not be reached: both must run as one user, or as root");
		*why = STOP_SILENT;
		return false;
	}
	if (r < 0)
		status = IBV_WC_REM_OP_ERR;
	if (status) {
		both_fail(from, to, status);
		return true;
	}
	if (wants_receive(w->opcode))
		complete_recv(to, w);
	store_release(&qp->sends_head, load_relaxed(&qp->sends_head) + 1);
	if (w->flags & IBV_SEND_SIGNALED)
		complete_send(from, w, IBV_WC_SUCCESS);
	return true;
}

enum stop execute(const struct side *from, const struct side *to)
{
	enum stop why = STOP_EMPTY;

	while (load_relaxed(&from->qp->sends_head) != load_acquire(&from->qp->sends_tail)) {
		if (load_acquire(&from->qp->state) == IBV_QPS_ERR) {
			flush_sends(from);
			break;
		}
		if (load_relaxed(&from->qp->state) != IBV_QPS_RTS)
			return STOP_SILENT;
		if (path_is_lost() || load_acquire(&to->qp->state) < IBV_QPS_RTR || load_relaxed(&to->qp->state) == IBV_QPS_ERR ||
		    to->qp->peer_number != load_relaxed(&from->qp->number) || from->qp->peer_number != load_relaxed(&to->qp->number))
			return STOP_SILENT;
		if (!execute_one(from, to, &why))
			return why;
	}
	return STOP_EMPTY;
}
