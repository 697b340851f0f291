/* SPDX-License-Identifier: MIT */
/* The calls of librdmacm on ids. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "cm.h"
#include "ringbuf/sys.h"

enum { NOBODY_LISTENS = 8, BACKLOG_MAX = 128, DEFAULT_TIMEOUT = 20, TRIES = 15 };

static struct cm_channel *channel_of(struct cm_id *id)
{
	return (struct cm_channel *)id->id.channel;
}

static void leave(struct double_lock **lock)
{
	lock_drop(*lock);
}
#define WITH_CHANNEL(id) \
	struct double_lock *held __attribute__((cleanup(leave), unused)) = &channel_of(id)->lock; \
	lock_take(held)

static int answer_errno(int r)
{
	if (r >= 0)
		return 0;
	errno = -r;
	return -1;
}

struct cm_id *cm_new_id(struct cm_channel *ch, enum rdma_port_space ps)
{
	struct cm_id *id = calloc(1, sizeof(*id));

	if (!id)
		return NULL;
	id->id.channel = &ch->channel;
	id->id.ps = ps;
	id->id.qp_type = IBV_QPT_RC;
	id->fd = -1;
	id->timeout = DEFAULT_TIMEOUT;
	id->next = ch->ids;
	ch->ids = id;
	return id;
}

void cm_drop_id(struct cm_id *id)
{
	struct cm_channel *ch = channel_of(id);
	struct cm_id **at, *caller;

	/* Who called a listener that goes, and whom the program does not know yet, goes with it. */
	do {
		for (caller = ch->ids; caller && caller->listener != id; caller = caller->next)
			;
		if (caller)
			cm_drop_id(caller);
	} while (caller);
	at = &ch->ids;
	cm_forget(id);
	cm_unwatch(id);
	while (*at != id)
		at = &(*at)->next;
	*at = id->next;
	close_hidden(id->fd);
	free(id->lost);
	if (id->state == ID_BOUND || id->state == ID_LISTENS)
		address_unbind(&id->id.route.addr.src_addr);
	if (id->far)
		far_close(id->far);
	free(id);
}

int cm_say(struct cm_id *id, struct wire *w, bool with_adapter)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .room = { 0 } };
	struct iovec iov = { w, sizeof(*w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int fd = adapter_fd();

	if (with_adapter) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	return (int)sys_call3(SYS_sendmsg, id->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void look_again(struct double_qp *q, uint64_t delay_ns)
{
	cm_clock_set(channel_of(q->owner), now_ns() + delay_ns);
}

void cm_link_qp(struct cm_id *id)
{
	struct double_qp *q = (struct double_qp *)id->id.qp;
	struct far_adapter *far = id->far;

	q->retries = id->retries;
	q->rnr_retries = settings.rnr_at ? 0 : id->rnr_retries;
	q->timeout_ns = settings.timeout_ms ? settings.timeout_ms * 1000000 : UINT64_C(4096) << id->timeout;
	q->wire = id->fd;
	id->far = NULL;
	qp_connect(q, far, id->far_index, id->far_number);
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context, enum rdma_port_space ps)
{
	struct cm_channel *ch = (struct cm_channel *)channel;
	struct cm_id *id;

	if (!channel || ps != RDMA_PS_TCP)
		return answer_errno(-EOPNOTSUPP);
	lock_take(&ch->lock);
	id = cm_new_id(ch, ps);
	lock_drop(&ch->lock);
	if (!id)
		return answer_errno(-ENOMEM);
	id->id.context = context;
	*out = &id->id;
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *ibid)
{
	struct cm_id *id = (struct cm_id *)ibid;
	WITH_CHANNEL(id);

	if (id->unacked)
		misuse("an id is destroyed before its events were acknowledged; a real one waits for ever");
	if (ibid->qp)
		misuse("an id is destroyed before its queue pair");
	cm_drop_id(id);
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *ibid, struct sockaddr *addr)
{
	struct cm_id *id = (struct cm_id *)ibid;
	struct sockaddr *src = &ibid->route.addr.src_addr;
	WITH_CHANNEL(id);

	if (id->state != ID_NEW)
		return answer_errno(-EINVAL);
	if (!address_is_local(addr))
		return answer_errno(-EADDRNOTAVAIL);
	memcpy(src, addr, address_bytes(addr));
	id->fd = address_bind(src);
	if (id->fd < 0)
		return answer_errno(id->fd);
	if (address_has_device(addr)) {
		ibid->verbs = adapter_context();
		ibid->port_num = 1;
	}
	id->state = ID_BOUND;
	return 0;
}

int rdma_listen(struct rdma_cm_id *ibid, int backlog)
{
	struct cm_id *id = (struct cm_id *)ibid;
	int r;
	WITH_CHANNEL(id);

	if (id->state != ID_BOUND)
		return answer_errno(-EINVAL);
	r = (int)sys_call2(SYS_listen, id->fd, backlog > 0 && backlog < BACKLOG_MAX ? backlog : BACKLOG_MAX);
	if (r < 0)
		return answer_errno(r);
	id->state = ID_LISTENS;
	cm_watch(id);
	return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *ibid, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	struct cm_id *id = (struct cm_id *)ibid;
	struct rdma_addr *addr = &ibid->route.addr;
	WITH_CHANNEL(id);

	if (id->state != ID_NEW)
		return answer_errno(-EINVAL);
	memcpy(&addr->dst_addr, dst, address_bytes(dst));
	/* On one host a packet comes from the address that it goes to. */
	memcpy(&addr->src_addr, src ? src : dst, address_bytes(src ? src : dst));
	if (!src || !addr->src_sin.sin_port)
		addr->src_sin.sin_port = address_any_port();
	if (!address_is_local(&addr->src_addr))
		return answer_errno(-EADDRNOTAVAIL);
	if (!address_has_device(&addr->src_addr)) {
		cm_push(id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
	} else if (!address_is_reachable(dst)) {
		cm_push(id, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
	} else {
		ibid->verbs = adapter_context();
		ibid->port_num = 1;
		id->state = ID_RESOLVED;
		cm_push(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	}
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *ibid, int timeout_ms)
{
	struct cm_id *id = (struct cm_id *)ibid;
	WITH_CHANNEL(id);

	if (id->state != ID_RESOLVED)
		return answer_errno(-EINVAL);
	if (settings.no_route) {
		cm_push(id, RDMA_CM_EVENT_ROUTE_ERROR, -EINVAL);
		return 0;
	}
	id->state = ID_ROUTED;
	cm_push(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return 0;
}

/* What a peer says that is not ours. */
static void spoil(struct wire *w)
{
	if (settings.spoil < w->length)
		w->data[settings.spoil] ^= 1;
	if (settings.cut < w->length) {
		memset(w->data + settings.cut, 0, w->length - settings.cut);
		w->length = (uint8_t)settings.cut;
	}
}

/* 0, or -EINVAL where the private data is more than a message of this kind has room for. */
static int prepare(struct cm_id *id, struct wire *w, enum wire_kind kind, const struct rdma_conn_param *param, unsigned room)
{
	*w = (struct wire){ .kind = kind, .retries = 7, .rnr_retries = 7, .timeout = id->timeout };
	if (id->id.qp) {
		w->qp_index = ((struct double_qp *)id->id.qp)->index;
		w->qp_number = id->id.qp->qp_num;
	}
	memcpy(&w->from, &id->id.route.addr.src_addr, sizeof(w->from));
	memcpy(&w->to, &id->id.route.addr.dst_addr, sizeof(w->to));
	if (!param)
		return 0;
	if (param->private_data_len > room)
		return -EINVAL;
	if (param->private_data_len)
		memcpy(w->data, param->private_data, param->private_data_len);
	w->length = param->private_data_len;
	w->responder_resources = param->responder_resources;
	w->initiator_depth = param->initiator_depth;
	w->retries = param->retry_count & 7;
	w->rnr_retries = param->rnr_retry_count & 7;
	if (kind != WIRE_REFUSAL)
		spoil(w);
	if (kind != WIRE_REFUSAL && settings.nonce)
		say_another_nonce(w);
	return 0;
}

/* ---- a path that is cut: the kernel says a request or an answer again and again, for a minute ---- */

static void request(struct cm_id *id, struct wire *w)
{
	id->fd = address_connect(&id->id.route.addr.dst_addr);
	if (id->fd < 0 || cm_say(id, w, true) < 0) {
		id->state = ID_OVER;
		cm_push(id, RDMA_CM_EVENT_REJECTED, NOBODY_LISTENS);
		return;
	}
	cm_watch(id);
}

static bool lose(struct cm_id *id, const struct wire *w)
{
	if (!path_is_lost())
		return false;
	id->lost = malloc(sizeof(*w));
	if (!id->lost)
		abort();
	*id->lost = *w;
	id->tries = TRIES;
	id->again_at = now_ns() + settings.cm_retry_ms * 1000000;
	cm_clock_set(channel_of(id), id->again_at);
	return true;
}

static void have_said(struct cm_id *id)
{
	free(id->lost);
	id->lost = NULL;
	id->again_at = 0;
}

void cm_say_again(struct cm_id *id)
{
	bool asks = id->state == ID_ASKS;

	if (!id->again_at || now_ns() < id->again_at)
		return;
	if (!asks && id->state != ID_ANSWERED) {
		have_said(id);
	} else if (!path_is_lost()) {
		if (asks)
			request(id, id->lost);
		else
			(void)cm_say(id, id->lost, true);
		have_said(id);
	} else if (id->tries--) {
		id->again_at = now_ns() + settings.cm_retry_ms * 1000000;
	} else {
		have_said(id);
		id->state = ID_OVER;
		cm_push(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
	}
}

int rdma_connect(struct rdma_cm_id *ibid, struct rdma_conn_param *param)
{
	struct cm_id *id = (struct cm_id *)ibid;
	struct sockaddr *dst = &ibid->route.addr.dst_addr;
	struct wire w;
	int r;
	WITH_CHANNEL(id);

	if (id->state != ID_ROUTED || !ibid->qp)
		return answer_errno(-EINVAL);
	r = prepare(id, &w, WIRE_REQUEST, param, REQUEST_DATA);
	if (r < 0)
		return answer_errno(r);
	id->retries = w.retries;
	id->rnr_retries = w.rnr_retries;
	id->state = ID_ASKS;
	/* Whether a far address has a device, only its namespace knows. */
	if (!address_has_device(address_is_local(dst) ? dst : &ibid->route.addr.src_addr)) {
		id->state = ID_OVER;
		cm_push(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
	} else if (!lose(id, &w)) {
		request(id, &w);
	}
	return 0;
}

int rdma_accept(struct rdma_cm_id *ibid, struct rdma_conn_param *param)
{
	struct cm_id *id = (struct cm_id *)ibid;
	struct wire w;
	int r;
	WITH_CHANNEL(id);

	if (id->state != ID_ASKED || !ibid->qp || !id->far)
		return answer_errno(-EINVAL);
	r = prepare(id, &w, WIRE_ANSWER, param, ANSWER_DATA);
	if (r < 0)
		return answer_errno(r);
	if (param)
		id->rnr_retries = w.rnr_retries;
	id->state = ID_ANSWERED;
	cm_link_qp(id);
	/* One that has gone meanwhile is heard of in time. */
	if (!lose(id, &w))
		(void)cm_say(id, &w, true);
	return 0;
}

int rdma_reject(struct rdma_cm_id *ibid, const void *data, uint8_t len)
{
	struct cm_id *id = (struct cm_id *)ibid;
	struct rdma_conn_param param = { .private_data = data, .private_data_len = len };
	struct wire w;
	int r;
	WITH_CHANNEL(id);

	if (id->state != ID_ASKED)
		return answer_errno(-EINVAL);
	r = prepare(id, &w, WIRE_REFUSAL, &param, REFUSAL_DATA);
	if (r < 0)
		return answer_errno(r);
	id->state = ID_OVER;
	cm_unwatch(id);
	(void)cm_say(id, &w, false);
	return 0;
}

int rdma_disconnect(struct rdma_cm_id *ibid)
{
	struct cm_id *id = (struct cm_id *)ibid;
	struct wire w = { .kind = WIRE_LEAVE };
	bool up;
	WITH_CHANNEL(id);

	if (ibid->qp)
		qp_fail((struct double_qp *)ibid->qp);
	up = id->state == ID_UP || id->state == ID_ANSWERED;
	if (!up && id->state != ID_OVER)
		return answer_errno(-EINVAL);
	if (!up)
		w.kind = WIRE_LEFT;
	(void)cm_say(id, &w, false);
	id->state = up ? ID_LEAVES : ID_OVER;
	return 0;
}

int rdma_create_qp(struct rdma_cm_id *ibid, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct cm_id *id = (struct cm_id *)ibid;
	struct double_qp *q;
	int r;
	WITH_CHANNEL(id);

	if (!pd || !ibid->verbs || ibid->qp)
		return answer_errno(-EINVAL);
	r = qp_create(pd, attr, &q);
	if (r)
		return answer_errno(-r);
	q->owner = id;
	q->look_again = look_again;
	ibid->qp = &q->qp;
	ibid->pd = pd;
	ibid->send_cq = attr->send_cq;
	ibid->recv_cq = attr->recv_cq;
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *ibid)
{
	WITH_CHANNEL((struct cm_id *)ibid);

	qp_destroy((struct double_qp *)ibid->qp);
	ibid->qp = NULL;
}

int rdma_set_option(struct rdma_cm_id *ibid, int level, int optname, void *optval, size_t optlen)
{
	if (level != RDMA_OPTION_ID)
		return answer_errno(-ENOSYS);
	if (optname == RDMA_OPTION_ID_ACK_TIMEOUT && optlen == sizeof(uint8_t)) {
		if (*(uint8_t *)optval > 31)
			return answer_errno(-EINVAL);
		((struct cm_id *)ibid)->timeout = *(uint8_t *)optval;
	}
	return 0;
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const names[] = {
		"ADDR_RESOLVED", "ADDR_ERROR",  "ROUTE_RESOLVED", "ROUTE_ERROR",    "CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR",
		"UNREACHABLE",   "REJECTED",    "ESTABLISHED",    "DISCONNECTED",   "DEVICE_REMOVAL",
	};

	return event < sizeof(names) / sizeof(names[0]) ? names[event] : "UNKNOWN";
}

static __be16 port(const struct sockaddr *addr)
{
	return addr->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)addr)->sin6_port : ((const struct sockaddr_in *)addr)->sin_port;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return port(&id->route.addr.src_addr);
}

__be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return port(&id->route.addr.dst_addr);
}
