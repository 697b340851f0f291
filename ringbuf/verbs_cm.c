/* SPDX-License-Identifier: MIT */
/*
 * How two ends find each other through rdma_cm, and what a link is made of. Nothing here waits: each step takes the events that have come. The
 * messages that travel in the private data are the shim's business.
 *
 * The end that connected listens on the connection's own address and port, in RDMA's own port space; the end that accepted dials.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "ringbuf/sys.h"
#include "ringbuf/verbs_engine.h"

enum {
	BACKLOG = 8,
	RESOLVE_MS = 2000,
	INLINE_BYTES = 64,
	RETRIES = 6, /* soft-RoCE takes 7 for "for ever" */
	PATIENCE_MS = 1000,
	RNR_FOR_EVER = 7, /* a peer that computes posts no receive requests */
};

struct verbs_attempt {
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener; /* offer */
	struct rdma_cm_id *id;       /* dial, or the dialler that was heard */
	struct verbs_link *v;        /* equipped */
	enum verbs_error error;
	unsigned patience_ms;
	bool up;
	size_t message_len;
	uint8_t message[256];
};

static enum verbs_error error_of(int err, enum verbs_error otherwise)
{
	switch (err < 0 ? -err : err) {
	case ENODEV:
	case EADDRNOTAVAIL:
		return VERBS_NO_DEVICE;
	case ENETUNREACH:
	case EHOSTUNREACH:
		return VERBS_NO_ROUTE;
	case EADDRINUSE:
		return VERBS_ADDRESS_IN_USE;
	case ENOMEM:
		return VERBS_NO_MEMORY;
	default:
		return otherwise;
	}
}

static void set_fd(int fd)
{
	long flags = sys_fcntl(fd, F_GETFL, 0);

	sys_fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	sys_fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static struct verbs_attempt *begin(enum verbs_error *why)
{
	struct verbs_attempt *a = calloc(1, sizeof(*a));

	*why = VERBS_NO_MEMORY;
	if (!a)
		return NULL;
	a->events = rdma_create_event_channel();
	if (!a->events) {
		*why = VERBS_NO_DEVICE;
		free(a);
		return NULL;
	}
	set_fd(a->events->fd);
	a->patience_ms = PATIENCE_MS;
	return a;
}

static void attempt_end(struct verbs_attempt *a);

static enum verbs_error verbs_offer(struct verbs_attempt **out, const struct sockaddr *local)
{
	enum verbs_error why;
	struct verbs_attempt *a = begin(&why);

	if (!a)
		return why;
	if (rdma_create_id(a->events, &a->listener, NULL, RDMA_PS_TCP))
		goto failed;
	if (rdma_bind_addr(a->listener, (struct sockaddr *)local) || rdma_listen(a->listener, BACKLOG))
		goto failed;
	/* An address that no device has is bound to none, and would never be dialled. */
	if (!a->listener->verbs) {
		attempt_end(a);
		return VERBS_NO_DEVICE;
	}
	*out = a;
	return VERBS_OK;

failed:
	why = error_of(errno, VERBS_SYSTEM);
	attempt_end(a);
	return why;
}

static enum verbs_error verbs_dial(struct verbs_attempt **out, const struct sockaddr *local, const struct sockaddr *peer)
{
	enum verbs_error why;
	struct verbs_attempt *a = begin(&why);
	struct sockaddr_storage from = { 0 };

	if (!a)
		return why;
	if (local->sa_family == AF_INET6) {
		memcpy(&from, local, sizeof(struct sockaddr_in6));
		((struct sockaddr_in6 *)&from)->sin6_port = 0;
	} else {
		memcpy(&from, local, sizeof(struct sockaddr_in));
		((struct sockaddr_in *)&from)->sin_port = 0;
	}
	if (rdma_create_id(a->events, &a->id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(a->id, (struct sockaddr *)&from, (struct sockaddr *)peer, RESOLVE_MS)) {
		why = error_of(errno, VERBS_SYSTEM);
		attempt_end(a);
		return why;
	}
	*out = a;
	return VERBS_OK;
}

static int attempt_fd(const struct verbs_attempt *a)
{
	return a->events->fd;
}

static enum verbs_error attempt_error(const struct verbs_attempt *a)
{
	return a->error;
}

static const void *attempt_message(const struct verbs_attempt *a, size_t *len)
{
	*len = a->message_len;
	return a->message;
}

static enum verbs_step fail(struct verbs_attempt *a, enum verbs_error why)
{
	a->error = why;
	return VERBS_FAILED;
}

static void keep_message(struct verbs_attempt *a, const struct rdma_cm_event *event)
{
	size_t len = event->param.conn.private_data_len;

	a->message_len = len < sizeof(a->message) ? len : sizeof(a->message);
	if (!event->param.conn.private_data)
		a->message_len = 0;
	memcpy(a->message, event->param.conn.private_data, a->message_len);
}

/* One dialler at a time: who comes while another is being judged may dial again. */
static enum verbs_step asked(struct verbs_attempt *a, struct rdma_cm_id *id, bool *unwanted)
{
	if (a->id) {
		*unwanted = true;
		return VERBS_WAIT;
	}
	a->id = id;
	return VERBS_ASKED;
}

/* Of a REJECT: 28 is the status that a listener's rdma_reject() gives, anything else says that nobody listens. */
static enum verbs_error rejected(int status)
{
	return status == 28 ? VERBS_REFUSED : VERBS_NO_LISTENER;
}

static enum verbs_step take_event(struct verbs_attempt *a, const struct rdma_cm_event *event, bool *unwanted)
{
	if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
		return fail(a, VERBS_NO_DEVICE);
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		if (!a->id)
			keep_message(a, event);
		return asked(a, event->id, unwanted);
	}
	if (event->id != a->id)
		return VERBS_WAIT;
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		return rdma_resolve_route(a->id, RESOLVE_MS) ? fail(a, error_of(errno, VERBS_NO_ROUTE)) : VERBS_WAIT;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		return VERBS_ROUTED;
	case RDMA_CM_EVENT_ESTABLISHED:
		a->up = true;
		if (!a->v)
			return fail(a, VERBS_SYSTEM);
		if (a->listener) {
			a->v->up = true;
			return VERBS_UP;
		}
		keep_message(a, event);
		return VERBS_ANSWERED;
	case RDMA_CM_EVENT_ADDR_ERROR:
		return fail(a, error_of(event->status, VERBS_NO_DEVICE));
	case RDMA_CM_EVENT_ROUTE_ERROR:
		return fail(a, VERBS_NO_ROUTE);
	case RDMA_CM_EVENT_REJECTED:
		return fail(a, rejected(event->status));
	case RDMA_CM_EVENT_UNREACHABLE:
		return fail(a, VERBS_NO_LISTENER);
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_DISCONNECTED:
		return fail(a, VERBS_SYSTEM);
	default:
		return VERBS_WAIT;
	}
}

static enum verbs_step attempt_step(struct verbs_attempt *a)
{
	struct rdma_cm_event *event;
	enum verbs_step step = VERBS_WAIT;

	while (step == VERBS_WAIT && !a->error && !rdma_get_cm_event(a->events, &event)) {
		struct rdma_cm_id *id = event->id;
		bool unwanted = false;

		step = take_event(a, event, &unwanted);
		rdma_ack_cm_event(event);
		if (unwanted) {
			rdma_reject(id, NULL, 0);
			rdma_destroy_id(id);
		}
	}
	return a->error ? VERBS_FAILED : step;
}

/*
 * ---- What a link is made of ----
 */

static int make_bell(struct ring_bells *bells)
{
	int r = bell_key(&bells->own.key);

	if (r < 0)
		return r;
	r = bell_create(bells->own.key, &bells->own.port);
	if (r < 0)
		return r;
	bells->bell_fd = r;
	return 0;
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
	if (v->cq)
		ibv_destroy_cq(v->cq);
	if (v->channel)
		ibv_destroy_comp_channel(v->channel);
	if (v->pd)
		ibv_dealloc_pd(v->pd);
	v->qp = NULL;
	v->tx_mr = v->rx_mr = v->box_mr = v->shown_mr = NULL;
	v->cq = NULL;
	v->channel = NULL;
	v->pd = NULL;
}

/* The peer is told, so that it need not find out. Before the link is up the id is the attempt's. */
void verbs_release(struct verbs_link *v)
{
	if (v->events && v->qp)
		rdma_disconnect(v->id);
	release_queues(v);
	if (!v->events)
		return;
	rdma_destroy_id(v->id);
	rdma_destroy_event_channel(v->events);
	v->id = NULL;
	v->events = NULL;
}

static void take_apart(struct verbs_link *v)
{
	verbs_release(v);
	if (v->wait_fd >= 0)
		sys_close(v->wait_fd);
	if (v->shown)
		sys_munmap(v->shown, SHOWN_BYTES);
	store_release(&v->live, 0);
	sys_munmap(v, sizeof(*v));
}

static bool wait_for(struct verbs_link *v, int fd, uint32_t which)
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
	set_fd(v->channel->fd);
	if (v->wait_fd < 0 || !wait_for(v, v->channel->fd, WAIT_CHANNEL))
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

static bool register_memory(struct verbs_link *v)
{
	const struct ring_link *link = v->link;

	v->tx_mr = ibv_reg_mr(v->pd, link->tx.data, v->ring_bytes, IBV_ACCESS_REMOTE_READ);
	v->rx_mr = ibv_reg_mr(v->pd, (void *)link->rx.data, v->ring_bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	v->box_mr = ibv_reg_mr(v->pd, v, sizeof(*v), IBV_ACCESS_LOCAL_WRITE);
	v->shown_mr = ibv_reg_mr(v->pd, v->shown, SHOWN_BYTES, IBV_ACCESS_REMOTE_READ);
	return v->tx_mr && v->rx_mr && v->box_mr && v->shown_mr;
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
	ring_rx_init(&link->rx, segment_front(seg, rx_lane), segment_ctl(seg, rx_lane), segment_ring(seg, rx_lane), NULL, ring_bytes);
	ring_tie(&link->tx, &link->rx);
	r = make_bell(&link->rx.bells);
	if (!r) {
		r = make_bell(&link->tx.bells);
		if (r < 0)
			sys_close(link->rx.bells.bell_fd);
	}
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

static enum verbs_error equip(struct verbs_attempt *a, struct ring_link *link, uint32_t ring_bytes, enum lane_index tx_lane,
			      struct verbs_memory *own)
{
	struct verbs_link *v;
	enum verbs_error why = VERBS_NO_MEMORY;

	/* Older kernels give a forked child our pages and us copies, while the device writes on into the child's. */
	if (!a->id || !a->id->verbs || a->v || ibv_is_fork_initialized() != IBV_FORK_UNNEEDED)
		return VERBS_SYSTEM;
	if (make_rings(link, ring_bytes, tx_lane) < 0)
		return VERBS_NO_MEMORY;
	v = private_pages(sizeof(*v));
	if (!v)
		goto rings;
	v->wait_fd = (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);
	v->shown = private_pages(SHOWN_BYTES);
	v->link = link;
	v->tx_lane = tx_lane;
	v->ring_bytes = ring_bytes;
	while (UINT64_C(1) << v->credit_shift < ring_bytes / CREDIT_UNITS)
		v->credit_shift++;
	v->id = a->id;
	v->no_immediates = a->id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
	if (!v->shown || !make_queues(v)) {
		why = error_of(errno, VERBS_SYSTEM);
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
	a->v = v;
	*own = (struct verbs_memory){ (uintptr_t)link->rx.data, v->rx_mr->rkey, ring_bytes };
	return VERBS_OK;

engine:
	take_apart(v);
rings:
	drop_rings(link);
	return why;
}

static void meet(struct verbs_attempt *a, const struct verbs_memory *peer)
{
	struct verbs_link *v = a->v;

	v->peer_ring = peer->ring_address;
	v->peer_ring_key = peer->ring_key;
	v->peer_batches = RECV_SLOTS / RECV_BATCH;
	v->up = a->up;
}

static void set_patience(struct verbs_attempt *a, unsigned ms)
{
	a->patience_ms = ms;
}

/* The device waits 4.096 us * 2^timeout for an acknowledgement, and tries once more each time. */
static void prepare_param(const struct verbs_attempt *a, struct rdma_conn_param *param, const void *msg, size_t len)
{
	uint8_t timeout = 8;

	while (timeout < 31 && (UINT64_C(4096) << timeout) * (RETRIES + 1) < a->patience_ms * UINT64_C(1000000))
		timeout++;

	*param = (struct rdma_conn_param){
		.private_data = msg,
		.private_data_len = (uint8_t)len,
		.responder_resources = 1,
		.initiator_depth = 1,
		.flow_control = 1,
		.retry_count = RETRIES,
		.rnr_retry_count = RNR_FOR_EVER,
	};
	/* An old kernel does not know it, and its default takes longer to find a dead path. */
	rdma_set_option(a->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout));
}

static enum verbs_error ask(struct verbs_attempt *a, const void *msg, size_t len)
{
	struct rdma_conn_param param;

	if (!a->v || len > VERBS_MESSAGE_MAX)
		return VERBS_SYSTEM;
	prepare_param(a, &param, msg, len);
	return rdma_connect(a->id, &param) ? error_of(errno, VERBS_SYSTEM) : VERBS_OK;
}

static enum verbs_error answer(struct verbs_attempt *a, const void *msg, size_t len)
{
	struct rdma_conn_param param;

	if (!a->v || len > VERBS_MESSAGE_MAX)
		return VERBS_SYSTEM;
	prepare_param(a, &param, msg, len);
	return rdma_accept(a->id, &param) ? error_of(errno, VERBS_SYSTEM) : VERBS_OK;
}

static void drop_link(struct verbs_attempt *a)
{
	struct ring_link *link;

	if (!a->v)
		return;
	link = a->v->link;
	take_apart(a->v);
	a->v = NULL;
	link->ops = NULL;
	drop_rings(link);
}

static void refuse(struct verbs_attempt *a)
{
	if (!a->id || !a->listener)
		return;
	drop_link(a);
	rdma_reject(a->id, NULL, 0);
	rdma_destroy_id(a->id);
	a->id = NULL;
}

static void attempt_end(struct verbs_attempt *a)
{
	if (a->listener)
		rdma_destroy_id(a->listener);
	if (a->v && a->v->up && !a->error && wait_for(a->v, a->events->fd, WAIT_EVENTS)) {
		a->v->events = a->events;
	} else {
		drop_link(a);
		if (a->id)
			rdma_destroy_id(a->id);
		rdma_destroy_event_channel(a->events);
	}
	free(a);
}

void verbs_look_at_events(struct verbs_link *v)
{
	struct rdma_cm_event *event;

	while (v->events && !rdma_get_cm_event(v->events, &event)) {
		enum rdma_cm_event_type type = event->event;

		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_DEVICE_REMOVAL)
			verbs_die(v, type == RDMA_CM_EVENT_DISCONNECTED ? -ECONNRESET : -ENODEV);
	}
}

void verbs_close(struct ring_link *link)
{
	struct verbs_link *v = engine_of(link);

	if (v) {
		verbs_stop(link);
		take_apart(v);
	}
	link->tx.bells.engine = NULL;
	link->rx.bells.engine = NULL;
	drop_rings(link);
}

__attribute__((visibility("default"))) extern const struct verbs_table ringway_verbs;
const struct verbs_table ringway_verbs = {
	.abi = VERBS_ABI,
	.bytes = sizeof(struct verbs_table),
	.offer = verbs_offer,
	.dial = verbs_dial,
	.attempt_fd = attempt_fd,
	.step = attempt_step,
	.attempt_error = attempt_error,
	.message = attempt_message,
	.equip = equip,
	.meet = meet,
	.set_patience = set_patience,
	.ask = ask,
	.answer = answer,
	.refuse = refuse,
	.end = attempt_end,
	.pump = verbs_pump,
	.wait_fd = verbs_wait_fd,
	.move_wait_fd = verbs_move_wait_fd,
	.flush = verbs_flush,
	.stop = verbs_stop,
	.counts = verbs_counts,
	.close = verbs_close,
};
