/* SPDX-License-Identifier: MIT */
/* The double's half of librdmacm: events wait in their channel until they are taken. */
#include "verbs_fake_in.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS 32

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
	uint64_t one = 1;

	memset(e, 0, sizeof(*e));
	e->event.id = id;
	e->event.event = type;
	e->event.status = status;
	if (write(ch->channel.fd, &one, sizeof(one)) != sizeof(one))
		abort();
	return e;
}

static void push_data(struct fake_event *e, const void *data, uint8_t len)
{
	if (len)
		memcpy(e->data, data, len);
	e->event.param.conn.private_data = e->data;
	e->event.param.conn.private_data_len = len;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct fake_events *ch;

	if (fake.no_devices) {
		errno = ENODEV;
		return NULL;
	}
	ch = calloc(1, sizeof(*ch));
	ch->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fake_made++;
	return &ch->channel;
}

static struct fake_id *new_id(struct rdma_event_channel *channel)
{
	struct fake_id *f = calloc(1, sizeof(*f));

	f->id.channel = channel;
	for (int i = 0; i < QPS; i++)
		if (!ids[i]) {
			ids[i] = f;
			break;
		}
	fake_made++;
	return f;
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
	fake_made--;
	return 0;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	struct fake_events *ch = (struct fake_events *)channel;

	/* Who dialled and was never heard. */
	for (; ch->head != ch->tail; ch->head++)
		if (ch->queue[ch->head % EVENTS].event.event == RDMA_CM_EVENT_CONNECT_REQUEST)
			rdma_destroy_id(ch->queue[ch->head % EVENTS].event.id);
	close(channel->fd);
	free(channel);
	fake_made--;
}

static size_t addr_bytes(const struct sockaddr *addr)
{
	return addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct fake_id *f = (struct fake_id *)id;

	memcpy(&f->at, addr, addr_bytes(addr));
	id->verbs = fake_context();
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
	id->verbs = fake_context();
	push(id, id->verbs ? RDMA_CM_EVENT_ADDR_RESOLVED : RDMA_CM_EVENT_ADDR_ERROR, id->verbs ? 0 : -ENODEV);
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	push(id, fake.no_route ? RDMA_CM_EVENT_ROUTE_ERROR : RDMA_CM_EVENT_ROUTE_RESOLVED, fake.no_route ? -EHOSTUNREACH : 0);
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
		n->id.verbs = fake_context();
		n->other = f;
		memcpy(&n->id.route.addr.dst_storage, &f->at, sizeof(f->at));
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

	if (!f->other) {
		errno = EINVAL;
		return -1;
	}
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
		push_data(push(&f->other->id, RDMA_CM_EVENT_REJECTED, 28), data, len);
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
	uint64_t count;

	if (ch->head == ch->tail) {
		errno = EAGAIN;
		return -1;
	}
	*event = &ch->queue[ch->head++ % EVENTS].event;
	if (ch->head == ch->tail && read(ch->channel.fd, &count, sizeof(count)) != sizeof(count))
		abort();
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	return 0;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen)
{
	if (level == RDMA_OPTION_ID && optname == RDMA_OPTION_ID_ACK_TIMEOUT && optlen == 1)
		fake.ack_timeout = *(uint8_t *)optval;
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
		if (!fake_qps[i]) {
			fake_qps[i] = q;
			break;
		}
	id->qp = &q->qp;
	fake_made++;
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	struct fake_qp *q = (struct fake_qp *)id->qp;

	for (int i = 0; i < QPS; i++) {
		if (fake_qps[i] == q)
			fake_qps[i] = NULL;
		else if (fake_qps[i] && fake_qps[i]->peer == q)
			fake_qps[i]->peer = NULL;
	}
	free(q);
	id->qp = NULL;
	fake_made--;
}

void fake_remove(struct rdma_cm_id *id)
{
	push(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
}
