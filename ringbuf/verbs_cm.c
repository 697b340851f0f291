/* SPDX-License-Identifier: MIT */
/*
 * How two ends find each other through rdma_cm. Nothing here waits: each step takes the events that have come. The
 * messages that travel in the private data are the shim's business.
 *
 * The end that connected listens on the connection's own address and port, in RDMA's own port space; the end that accepted dials.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "ringbuf/sys.h"
#include "ringbuf/verbs_engine.h"

enum {
	BACKLOG = 8,
	RESOLVE_MS = 2000,
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

static struct verbs_attempt *begin(enum verbs_error *why)
{
	struct verbs_attempt *a = calloc(1, sizeof(*a));

	verbs_devices_look();
	*why = VERBS_NO_MEMORY;
	if (!a)
		return NULL;
	a->events = rdma_create_event_channel();
	if (!a->events) {
		*why = VERBS_NO_DEVICE;
		free(a);
		return NULL;
	}
	verbs_hide_fd(&a->events->fd);
	verbs_set_fd(a->events->fd);
	a->patience_ms = PATIENCE_MS;
	return a;
}

static void attempt_end(struct verbs_attempt *a);

static enum verbs_error verbs_offer(struct verbs_attempt **out, const struct sockaddr *local)
{
	KEEPS_ERRNO;
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
	verbs_device_use(a->listener);
	*out = a;
	return VERBS_OK;

failed:
	why = verbs_error_of(errno, VERBS_SYSTEM);
	attempt_end(a);
	return why;
}

static enum verbs_error verbs_dial(struct verbs_attempt **out, const struct sockaddr *local, const struct sockaddr *peer)
{
	KEEPS_ERRNO;
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
		why = verbs_error_of(errno, VERBS_SYSTEM);
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

static bool asked_by(const struct verbs_attempt *a, const struct sockaddr *peer)
{
	const struct sockaddr *from = a->id ? rdma_get_peer_addr(a->id) : NULL;

	if (!from || from->sa_family != peer->sa_family)
		return false;
	if (peer->sa_family == AF_INET6)
		return !memcmp(&((const struct sockaddr_in6 *)from)->sin6_addr, &((const struct sockaddr_in6 *)peer)->sin6_addr,
			       sizeof(struct in6_addr));
	return ((const struct sockaddr_in *)from)->sin_addr.s_addr == ((const struct sockaddr_in *)peer)->sin_addr.s_addr;
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
	id->context = NULL; /* it has the listener's */
	verbs_device_use(id);
	return VERBS_ASKED;
}

/* What a refusal says that is none for good. */
static const char full_word[4] = { 'R', 'W', 'V', 'F' };

/* Of a REJECT: 28 is the status that a listener's rdma_reject() gives, anything else says that nobody listens. */
static enum verbs_error rejected(const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *said = &event->param.conn;

	if (event->status != 28)
		return VERBS_NO_LISTENER;
	return said->private_data && said->private_data_len >= sizeof(full_word) && !memcmp(said->private_data, full_word, sizeof(full_word))
		       ? VERBS_FULL
		       : VERBS_REFUSED;
}

static enum verbs_step take_event(struct verbs_attempt *a, const struct rdma_cm_event *event, bool *unwanted)
{
	if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
		verbs_device_gone(event->id);
		return fail(a, VERBS_NO_DEVICE);
	}
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		if (!a->id)
			keep_message(a, event);
		return asked(a, event->id, unwanted);
	}
	if (event->id != a->id)
		return VERBS_WAIT;
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		verbs_device_use(a->id);
		return rdma_resolve_route(a->id, RESOLVE_MS) ? fail(a, verbs_error_of(errno, VERBS_NO_ROUTE)) : VERBS_WAIT;
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
		return fail(a, verbs_error_of(event->status, VERBS_NO_DEVICE));
	case RDMA_CM_EVENT_ROUTE_ERROR:
		return fail(a, VERBS_NO_ROUTE);
	case RDMA_CM_EVENT_REJECTED:
		return fail(a, rejected(event));
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
	KEEPS_ERRNO;

	while (step == VERBS_WAIT && !a->error && !rdma_get_cm_event(a->events, &event)) {
		struct rdma_cm_id *id = event->id;
		bool unwanted = false;

		step = take_event(a, event, &unwanted);
		rdma_ack_cm_event(event);
		if (unwanted) {
			id->context = NULL;
			rdma_reject(id, NULL, 0);
			verbs_destroy_id(id);
		}
	}
	return a->error ? VERBS_FAILED : step;
}

static enum verbs_error equip(struct verbs_attempt *a, struct ring_link *link, uint32_t ring_bytes, enum lane_index tx_lane,
			      struct verbs_memory *own)
{
	enum verbs_error why;
	KEEPS_ERRNO;

	if (!a->id || !a->id->verbs || a->v)
		return VERBS_SYSTEM;
	why = verbs_make(&a->v, link, a->id, ring_bytes, tx_lane);
	if (!why)
		*own = (struct verbs_memory){ (uintptr_t)link->rx.data, a->v->rx_mr->rkey, ring_bytes };
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

/*
 * The device waits 4.096 us * 2^timeout for an acknowledgement, and tries once more each time. Only powers of two can be had: all together from 7/8 of the
 * patience to less than twice that, so that of a dead path all is over within two seconds where the patience is one.
 */
static void prepare_param(const struct verbs_attempt *a, struct rdma_conn_param *param, const void *msg, size_t len)
{
	uint8_t timeout = 8;

	while (timeout < 31 && (UINT64_C(4096) << timeout) * (RETRIES + 1) < a->patience_ms * UINT64_C(875000))
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
	a->v->patience_ms = a->patience_ms;
}

static enum verbs_error ask(struct verbs_attempt *a, const void *msg, size_t len)
{
	struct rdma_conn_param param;
	KEEPS_ERRNO;

	if (!a->v || len > VERBS_MESSAGE_MAX)
		return VERBS_SYSTEM;
	prepare_param(a, &param, msg, len);
	return rdma_connect(a->id, &param) ? verbs_error_of(errno, VERBS_SYSTEM) : VERBS_OK;
}

static enum verbs_error answer(struct verbs_attempt *a, const void *msg, size_t len)
{
	struct rdma_conn_param param;
	KEEPS_ERRNO;

	if (!a->v || len > VERBS_MESSAGE_MAX)
		return VERBS_SYSTEM;
	prepare_param(a, &param, msg, len);
	return rdma_accept(a->id, &param) ? verbs_error_of(errno, VERBS_SYSTEM) : VERBS_OK;
}

static void drop_link(struct verbs_attempt *a)
{
	if (a->v)
		verbs_unmake(a->v);
	a->v = NULL;
}

static void refuse(struct verbs_attempt *a, bool full)
{
	KEEPS_ERRNO;

	if (!a->id || !a->listener)
		return;
	drop_link(a);
	rdma_reject(a->id, full ? full_word : NULL, full ? sizeof(full_word) : 0);
	verbs_destroy_id(a->id);
	a->id = NULL;
}

static void attempt_end(struct verbs_attempt *a)
{
	KEEPS_ERRNO;

	verbs_inside(true);
	if (a->listener)
		verbs_destroy_id(a->listener);
	if (a->v && a->v->up && !a->error && verbs_wait_for(a->v, a->events->fd, WAIT_EVENTS)) {
		a->v->events = a->events;
	} else {
		drop_link(a);
		if (a->id)
			verbs_destroy_id(a->id);
		verbs_reveal_fd(a->events->fd);
		rdma_destroy_event_channel(a->events);
	}
	free(a);
	verbs_inside(false);
}

void verbs_look_at_events(struct verbs_link *v)
{
	struct rdma_cm_event *event;

	while (v->events && !rdma_get_cm_event(v->events, &event)) {
		enum rdma_cm_event_type type = event->event;

		if (type == RDMA_CM_EVENT_DEVICE_REMOVAL)
			verbs_device_gone(event->id);
		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_DEVICE_REMOVAL)
			verbs_die(v, type == RDMA_CM_EVENT_DISCONNECTED ? -ECONNRESET : -ENODEV);
	}
}

__attribute__((visibility("default"))) extern const struct verbs_table ringway_verbs;
const struct verbs_table ringway_verbs = {
	.abi = VERBS_ABI,
	.bytes = sizeof(struct verbs_table),
	.set_host = verbs_set_host,
	.offer = verbs_offer,
	.dial = verbs_dial,
	.attempt_fd = attempt_fd,
	.step = attempt_step,
	.attempt_error = attempt_error,
	.asked_by = asked_by,
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
	.flush = verbs_flush,
	.unacked = verbs_unacked,
	.stop = verbs_stop,
	.counts = verbs_counts,
	.leave = verbs_leave,
	.close = verbs_close,
};
