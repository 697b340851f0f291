/* SPDX-License-Identifier: MIT */
/*
 * What a link is made of, and how it is taken apart: rings and bells as on one host, queues and registrations of the device, memory that a fork
 * wipes.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "ringbuf/sys.h"
#include "ringbuf/verbs_engine.h"

enum { INLINE_BYTES = 64 };

enum verbs_error verbs_error_of(int err, enum verbs_error otherwise)
{
	switch (err < 0 ? -err : err) {
	case ENODEV:
	case EADDRNOTAVAIL:
		return VERBS_NO_DEVICE;
	case ENETUNREACH:
	case EHOSTUNREACH:
	case ETIMEDOUT:
		return VERBS_NO_ROUTE;
	case EADDRINUSE:
		return VERBS_ADDRESS_IN_USE;
	case ENOMEM:
		return VERBS_NO_MEMORY;
	default:
		return otherwise;
	}
}

void verbs_set_fd(int fd)
{
	long flags = sys_fcntl(fd, F_GETFL, 0);

	sys_fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	sys_fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static const struct verbs_host *host;

void verbs_set_host(const struct verbs_host *to)
{
	host = to;
}

bool verbs_has_host(void)
{
	return host != NULL;
}

void verbs_hide_fd(int *fd)
{
	int number = host && *fd >= 0 ? host->hide(*fd) : -1;

	if (number >= 0)
		*fd = number;
}

void verbs_reveal_fd(int fd)
{
	if (host)
		host->reveal(fd);
}

void verbs_inside(bool in)
{
	if (host)
		host->inside(in);
}

static void *private_pages(size_t bytes)
{
	long base = sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (sys_failed(base))
		return NULL;
	if (sys_call3(SYS_madvise, base, bytes, MADV_WIPEONFORK) < 0) {
		sys_munmap((void *)base, bytes);
		return NULL;
	}
	return (void *)base;
}

/*
 * What was a link's stays mapped, blank: a thread that had its address before the link was given up may still look whether it lives. The next
 * link takes it.
 */
static _Atomic(struct verbs_link *) spare[8];

static struct verbs_link *take_pages(void)
{
	for (int i = 0; i < 8; i++) {
		struct verbs_link *v = exchange(&spare[i], NULL);

		if (v)
			return v;
	}
	return private_pages(sizeof(struct verbs_link));
}

static void leave_pages(struct verbs_link *v)
{
	sys_call3(SYS_madvise, v, sizeof(*v), MADV_DONTNEED);
	for (int i = 0; i < 8; i++) {
		struct verbs_link *none = NULL;

		if (compare_exchange(&spare[i], &none, v))
			return;
	}
}

#define SHOWN_BYTES 4096

static void release_queues(struct verbs_link *v)
{
	if (v->qp)
		rdma_destroy_qp(v->id);
	if (v->tx_mr)
		ibv_dereg_mr(v->tx_mr);
	if (v->rx_mr)
		ibv_dereg_mr(v->rx_mr);
	if (v->box_mr)
		ibv_dereg_mr(v->box_mr);
	if (v->shown_mr)
		ibv_dereg_mr(v->shown_mr);
	if (v->tail_mr)
		ibv_dereg_mr(v->tail_mr);
	if (v->cq)
		ibv_destroy_cq(v->cq);
	if (v->channel) {
		verbs_reveal_fd(v->channel->fd);
		ibv_destroy_comp_channel(v->channel);
	}
	if (v->pd)
		ibv_dealloc_pd(v->pd);
	v->qp = NULL;
	v->tx_mr = v->rx_mr = v->box_mr = v->shown_mr = v->tail_mr = NULL;
	v->cq = NULL;
	v->channel = NULL;
	v->pd = NULL;
}

/* The peer is told, so that it need not find out. Before the link is up the id is the attempt's. */
void verbs_release(struct verbs_link *v)
{
	/* That the device has gone may not have been what the link died of first. */
	verbs_look_at_events(v);
	if (v->events && v->qp)
		rdma_disconnect(v->id);
	release_queues(v);
	if (!v->events)
		return;
	verbs_destroy_id(v->id);
	verbs_reveal_fd(v->events->fd);
	rdma_destroy_event_channel(v->events);
	v->id = NULL;
	v->events = NULL;
}

static void take_apart(struct verbs_link *v)
{
	verbs_release(v);
	if (v->wait_fd >= 0) {
		verbs_reveal_fd(v->wait_fd);
		sys_close(v->wait_fd);
	}
	if (v->shown)
		sys_munmap(v->shown, SHOWN_BYTES);
	store_release(&v->live, 0);
	leave_pages(v);
}

bool verbs_wait_for(struct verbs_link *v, int fd, uint32_t which)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = which };

	return sys_call4(SYS_epoll_ctl, v->wait_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool make_queues(struct verbs_link *v)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = SEND_SLOTS, .max_recv_wr = RECV_SLOTS, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = INLINE_BYTES },
	};

	v->pd = ibv_alloc_pd(v->id->verbs);
	v->channel = ibv_create_comp_channel(v->id->verbs);
	if (!v->pd || !v->channel)
		return false;
	verbs_hide_fd(&v->channel->fd);
	verbs_set_fd(v->channel->fd);
	if (v->wait_fd < 0 || !verbs_wait_for(v, v->channel->fd, WAIT_CHANNEL))
		return false;
	v->cq = ibv_create_cq(v->id->verbs, SEND_SLOTS + RECV_SLOTS, NULL, v->channel, 0);
	if (!v->cq)
		return false;
	attr.send_cq = v->cq;
	attr.recv_cq = v->cq;
	if (rdma_create_qp(v->id, v->pd, &attr)) {
		attr.cap.max_inline_data = 0;
		if (rdma_create_qp(v->id, v->pd, &attr))
			return false;
	}
	v->qp = v->id->qp;
	v->max_inline = attr.cap.max_inline_data;
	return true;
}

/* Eight bytes by themselves: on an iWARP device what is read comes as a write of the peer's, who learns the key and may write there what he likes. */
static struct ibv_mr *register_tail(struct verbs_link *v)
{
	int access = IBV_ACCESS_LOCAL_WRITE | (v->no_immediates ? IBV_ACCESS_REMOTE_WRITE : 0);

	return ibv_reg_mr(v->pd, &v->peer_tail, sizeof(v->peer_tail), access);
}

static bool register_memory(struct verbs_link *v)
{
	const struct ring_link *link = v->link;

	v->tx_mr = ibv_reg_mr(v->pd, link->tx.data, v->ring_bytes, IBV_ACCESS_REMOTE_READ);
	v->rx_mr = ibv_reg_mr(v->pd, (void *)link->rx.data, v->ring_bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	v->box_mr = ibv_reg_mr(v->pd, v, sizeof(*v), IBV_ACCESS_LOCAL_WRITE);
	v->shown_mr = ibv_reg_mr(v->pd, v->shown, SHOWN_BYTES, IBV_ACCESS_REMOTE_READ);
	v->tail_mr = register_tail(v);
	return v->tx_mr && v->rx_mr && v->box_mr && v->shown_mr && v->tail_mr;
}

/* The segment, both rings and bells, as on one host but for who plays the peer. 0 or -errno. */
static int make_rings(struct ring_link *link, uint32_t ring_bytes, enum lane_index tx_lane)
{
	enum lane_index rx_lane = tx_lane == LANE_OF_CREATOR ? LANE_OF_ATTACHER : LANE_OF_CREATOR;
	const struct segment *seg = &link->segment;
	int r = segment_create(&link->segment, ring_bytes);

	if (r < 0)
		return r;
	sys_close(r);
	ring_tx_init(&link->tx, segment_front(seg, tx_lane), segment_ctl(seg, tx_lane), segment_ring(seg, tx_lane), NULL, ring_bytes);
	ring_rx_init(&link->rx, segment_front(seg, rx_lane), segment_ctl(seg, rx_lane), segment_ring(seg, rx_lane),
		     segment_overflow(seg, rx_lane), ring_bytes);
	ring_tie(&link->tx, &link->rx);
	r = ring_make_bells(&link->tx, &link->rx);
	if (r < 0)
		segment_close(&link->segment);
	return r;
}

static void drop_rings(struct ring_link *link)
{
	struct segment mapping = link->segment;

	sys_close(link->rx.bells.bell_fd);
	sys_close(link->tx.bells.bell_fd);
	segment_close(&mapping);
}

enum verbs_error verbs_make(struct verbs_link **out, struct ring_link *link, struct rdma_cm_id *id, uint32_t ring_bytes,
			    enum lane_index tx_lane)
{
	struct verbs_link *v;
	enum verbs_error why = VERBS_NO_MEMORY;

	/* Older kernels give a forked child our pages and us copies, while the device writes on into the child's. */
	if (ibv_is_fork_initialized() != IBV_FORK_UNNEEDED)
		return VERBS_SYSTEM;
	if (make_rings(link, ring_bytes, tx_lane) < 0)
		return VERBS_NO_MEMORY;
	v = take_pages();
	if (!v)
		goto rings;
	v->wait_fd = (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);
	verbs_hide_fd(&v->wait_fd);
	v->shown = private_pages(SHOWN_BYTES);
	v->link = link;
	v->tx_lane = tx_lane;
	v->ring_bytes = ring_bytes;
	while (UINT64_C(1) << v->credit_shift < ring_bytes / CREDIT_UNITS)
		v->credit_shift++;
	v->id = id;
	v->no_immediates = id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
	if (!v->shown || !make_queues(v)) {
		why = verbs_error_of(errno, VERBS_SYSTEM);
		goto engine;
	}
	if (!register_memory(v)) {
		why = errno == ENOMEM || errno == EAGAIN ? VERBS_MEMLOCK : VERBS_SYSTEM;
		goto engine;
	}
	if (verbs_post_receives(v, true) < 0) {
		why = VERBS_SYSTEM;
		goto engine;
	}
	v->told_batches = v->batches;
	v->memory_due = true;
	link->tx.bells.far = &verbs_far;
	link->rx.bells.far = &verbs_far;
	link->tx.bells.engine = v;
	link->rx.bells.engine = v;
	link->ops = &verbs_transport;
	store_release(&v->live, ENGINE_LIVE);
	*out = v;
	return VERBS_OK;

engine:
	take_apart(v);
rings:
	drop_rings(link);
	return why;
}

void verbs_unmake(struct verbs_link *v)
{
	struct ring_link *link = v->link;

	take_apart(v);
	link->ops = NULL;
	drop_rings(link);
}

void verbs_leave(struct ring_link *link)
{
	struct verbs_link *v = engine_of(link);
	KEEPS_ERRNO;

	if (!v)
		return;
	verbs_stop(link);
	take_apart(v);
}

void verbs_close(struct ring_link *link)
{
	verbs_leave(link);
	link->tx.bells.engine = NULL;
	link->rx.bells.engine = NULL;
	drop_rings(link);
}
