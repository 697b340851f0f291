/* SPDX-License-Identifier: MIT */
/* Event channels: what has come over the wires, and what the device has to say, as events. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "cm.h"
#include "ringbuf/sys.h"

enum {
	TAG_CLOCK = 0,
	TAG_DEVICE = 1, /* anything else is the address of an id */
	REFUSED = 28,
	BILLION = 1000000000,
};

static struct cm_channel *channel_of(struct cm_id *id)
{
	return (struct cm_channel *)id->id.channel;
}

/* ---- the clock: queued events make it tick at once, work requests that wait later ---- */

void cm_clock_set(struct cm_channel *ch, uint64_t at)
{
	struct itimerspec t = { .it_value = { .tv_sec = (time_t)(at / BILLION), .tv_nsec = (long)(at % BILLION) } };

	lock_take(&ch->clock_lock);
	if (!ch->clock_at || at < ch->clock_at) {
		ch->clock_at = at;
		(void)sys_call4(SYS_timerfd_settime, ch->clock, TFD_TIMER_ABSTIME, &t, NULL);
	}
	lock_drop(&ch->clock_lock);
}

static void clock_stop(struct cm_channel *ch)
{
	struct itimerspec t = { .it_value = { 0, 0 } };

	lock_take(&ch->clock_lock);
	ch->clock_at = 0;
	(void)sys_call4(SYS_timerfd_settime, ch->clock, 0, &t, NULL);
	lock_drop(&ch->clock_lock);
}

static bool has_due(const struct cm_channel *ch)
{
	return ch->first && (!ch->first->due || now_ns() >= ch->first->due);
}

/* Nothing that is queued is due: the clock runs on for what will be, and for work requests. */
static void look_at_qps(struct cm_channel *ch)
{
	clock_stop(ch);
	if (ch->first)
		cm_clock_set(ch, ch->first->due ? ch->first->due : 1);
	for (struct cm_id *id = ch->ids; id; id = id->next) {
		uint64_t next = id->id.qp ? qp_look((struct double_qp *)id->id.qp) : 0;

		if (next)
			cm_clock_set(ch, next);
		cm_say_again(id);
		if (id->again_at)
			cm_clock_set(ch, id->again_at);
	}
}

struct cm_event *cm_push(struct cm_id *id, enum rdma_cm_event_type type, int status)
{
	struct cm_channel *ch = channel_of(id);
	struct cm_event *e = calloc(1, sizeof(*e));

	if (!e)
		abort();
	e->event.id = &id->id;
	e->event.event = type;
	e->event.status = status;
	if (ch->last)
		ch->last->next = e;
	else
		ch->first = e;
	ch->last = e;
	e->due = settings.cm_delay_ms ? now_ns() + settings.cm_delay_ms * 1000000 : 0;
	cm_clock_set(ch, e->due ? e->due : 1);
	return e;
}

static void push_data(struct cm_event *e, const struct wire *w, uint8_t length)
{
	/* No length travels with private data: there is always as much as there can be. */
	if (settings.iwarp)
		length = w->length;
	memcpy(e->data, w->data, length);
	e->event.param.conn.private_data = e->data;
	e->event.param.conn.private_data_len = length;
	e->event.param.conn.responder_resources = w->responder_resources;
	e->event.param.conn.initiator_depth = w->initiator_depth;
	e->event.param.conn.retry_count = w->retries;
	e->event.param.conn.rnr_retry_count = w->rnr_retries;
	e->event.param.conn.qp_num = w->qp_number;
}

void cm_forget(struct cm_id *id)
{
	struct cm_channel *ch = channel_of(id);
	struct cm_event **at = &ch->first;

	ch->last = NULL;
	while (*at) {
		struct cm_event *e = *at;

		if (e->event.id != &id->id) {
			ch->last = e;
			at = &e->next;
			continue;
		}
		*at = e->next;
		free(e);
	}
}

/* ---- wires ---- */

void cm_watch(struct cm_id *id)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP, .data.u64 = (uintptr_t)id };

	id->watched = sys_call4(SYS_epoll_ctl, id->id.channel->fd, EPOLL_CTL_ADD, id->fd, &event) == 0;
}

void cm_unwatch(struct cm_id *id)
{
	if (id->watched)
		(void)sys_call4(SYS_epoll_ctl, id->id.channel->fd, EPOLL_CTL_DEL, id->fd, NULL);
	id->watched = false;
}

/* The message's length; 0 where the other side has gone; -EAGAIN. *adapter: a descriptor that came along, or -1. */
static int hear(int fd, struct wire *w, int *adapter)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { w, sizeof(*w) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	long n = sys_call3(SYS_recvmsg, fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	/* The other side has left something unread; what it said before may lie behind this. */
	if (n == -ECONNRESET)
		n = sys_call3(SYS_recvmsg, fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*adapter = -1;
	if (n > 0 && (c = CMSG_FIRSTHDR(&msg)) && c->cmsg_type == SCM_RIGHTS)
		memcpy(adapter, CMSG_DATA(c), sizeof(int));
	if (n == -EAGAIN || n == -EINTR)
		return -EAGAIN;
	return n == sizeof(*w) ? (int)n : 0;
}

static int peer_pid(int fd)
{
	struct ucred cred = { 0 };
	unsigned len = sizeof(cred);

	return sys_getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 ? 0 : cred.pid;
}

static void keep_far(struct cm_id *id, const struct wire *w, int adapter)
{
	id->far = adapter >= 0 ? far_open(adapter, peer_pid(id->fd)) : NULL;
	id->far_index = w->qp_index;
	id->far_number = w->qp_number;
}

static void over(struct cm_id *id, enum rdma_cm_event_type type, int status)
{
	id->state = ID_OVER;
	cm_unwatch(id);
	cm_push(id, type, status);
}

static void hear_request(struct cm_id *id, const struct wire *w, int adapter)
{
	struct cm_event *e;

	keep_far(id, w, adapter);
	if (!id->far) {
		cm_drop_id(id);
		return;
	}
	id->retries = w->retries;
	id->rnr_retries = w->rnr_retries;
	id->timeout = w->timeout;
	memcpy(&id->id.route.addr.src_addr, &w->to, sizeof(w->to));
	memcpy(&id->id.route.addr.dst_addr, &w->from, sizeof(w->from));
	id->id.verbs = adapter_context();
	id->id.port_num = 1;
	id->state = ID_ASKED;
	e = cm_push(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	e->event.listen_id = &id->listener->id;
	push_data(e, w, REQUEST_DATA);
}

static void hear_answer(struct cm_id *id, const struct wire *w, int adapter)
{
	struct wire ready = { .kind = WIRE_READY };

	keep_far(id, w, adapter);
	if (!id->far || !id->id.qp) {
		over(id, RDMA_CM_EVENT_CONNECT_ERROR, -EINVAL);
		return;
	}
	id->state = ID_UP;
	cm_link_qp(id);
	cm_say(id, &ready, false);
	push_data(cm_push(id, RDMA_CM_EVENT_ESTABLISHED, 0), w, ANSWER_DATA);
}

/* The other id has gone, with its process or without. What that means depends on how far things had come. */
static void hear_end(struct cm_id *id)
{
	switch (id->state) {
	case ID_CALLED:
		cm_drop_id(id);
		return;
	case ID_ASKS:
	case ID_ASKED:
	case ID_ANSWERED:
		over(id, RDMA_CM_EVENT_REJECTED, REFUSED);
		return;
	case ID_UP:
	case ID_LEAVES:
		over(id, RDMA_CM_EVENT_DISCONNECTED, 0);
		return;
	default:
		cm_unwatch(id);
	}
}

static void hear_wire(struct cm_id *id)
{
	struct wire w;
	int adapter, n = hear(id->fd, &w, &adapter);

	if (n == -EAGAIN)
		return;
	if (!n)
		w.kind = 0;
	if (w.kind == WIRE_REQUEST && id->state == ID_CALLED) {
		hear_request(id, &w, adapter);
		return;
	}
	if (w.kind == WIRE_ANSWER && id->state == ID_ASKS) {
		hear_answer(id, &w, adapter);
		return;
	}
	if (adapter >= 0)
		sys_close(adapter);
	if (w.kind == WIRE_READY && id->state == ID_ANSWERED) {
		id->state = ID_UP;
		cm_push(id, RDMA_CM_EVENT_ESTABLISHED, 0);
	} else if (w.kind == WIRE_REFUSAL && id->state == ID_ASKS) {
		id->state = ID_OVER;
		cm_unwatch(id);
		push_data(cm_push(id, RDMA_CM_EVENT_REJECTED, REFUSED), &w, REFUSAL_DATA);
	} else if (w.kind == WIRE_LEAVE && (id->state == ID_UP || id->state == ID_ANSWERED)) {
		over(id, RDMA_CM_EVENT_DISCONNECTED, 0);
	} else if ((w.kind == WIRE_LEFT || w.kind == WIRE_LEAVE) && id->state == ID_LEAVES) {
		over(id, RDMA_CM_EVENT_DISCONNECTED, 0);
	} else {
		hear_end(id);
	}
}

static void hear_caller(struct cm_id *listener)
{
	int fd = hide_fd((int)sys_call4(SYS_accept4, listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
	struct cm_id *id;

	if (fd < 0)
		return;
	id = cm_new_id(channel_of(listener), listener->id.ps);
	if (!id) {
		close_hidden(fd);
		return;
	}
	id->id.context = listener->id.context;
	id->listener = listener;
	id->fd = fd;
	id->state = ID_CALLED;
	cm_watch(id);
}

/* ---- the device ---- */

static void look_for_removal(struct cm_channel *ch)
{
	if (!device_is_removed())
		return;
	for (struct cm_id *id = ch->ids; id; id = id->next) {
		if (!id->id.verbs || id->told_removal || id->listener)
			continue;
		id->told_removal = true;
		if (id->id.qp)
			qp_fail((struct double_qp *)id->id.qp);
		cm_push(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	}
}

/* ---- channels ---- */

static struct cm_channel *channels;
static struct double_lock channels_lock;

static void all_look(void)
{
	lock_take(&channels_lock);
	for (struct cm_channel *ch = channels; ch; ch = ch->next)
		cm_clock_set(ch, 1);
	lock_drop(&channels_lock);
}

static bool add(int set, int fd, uint32_t events, uint64_t tag)
{
	struct epoll_event event = { .events = events, .data.u64 = tag };

	return fd < 0 || sys_call4(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void channels_anew(void)
{
	channels = NULL;
	store_relaxed(&channels_lock.holder, 0);
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	static uint64_t of;
	struct cm_channel *ch;

	if (!adapter_open())
		return NULL;
	adapter_anew(&of, channels_anew);
	device_has_gone = all_look;
	ch = calloc(1, sizeof(*ch));
	if (!ch)
		return NULL;
	ch->channel.fd = (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);
	ch->clock = hide_fd((int)sys_call2(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
	ch->control = control_watch();
	lock_take(&channels_lock);
	ch->next = channels;
	channels = ch;
	lock_drop(&channels_lock);
	/* Nobody reads what the file's watch has to say: each change is an edge. */
	if (ch->channel.fd >= 0 && ch->clock >= 0 && add(ch->channel.fd, ch->clock, EPOLLIN, TAG_CLOCK) &&
	    add(ch->channel.fd, ch->control, EPOLLIN | EPOLLET, TAG_DEVICE))
		return &ch->channel;
	rdma_destroy_event_channel(&ch->channel);
	errno = EMFILE;
	return NULL;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	struct cm_channel *ch = (struct cm_channel *)channel, **at = &channels;

	if (ch->ids)
		misuse("an event channel is destroyed before its ids");
	lock_take(&channels_lock);
	while (*at != ch)
		at = &(*at)->next;
	*at = ch->next;
	lock_drop(&channels_lock);
	if (channel->fd >= 0)
		sys_close(channel->fd);
	close_hidden(ch->clock);
	close_hidden(ch->control);
	free(ch);
}

static struct cm_event *pop(struct cm_channel *ch)
{
	struct cm_event *e = ch->first;
	struct cm_id *id;

	ch->first = e->next;
	if (!ch->first)
		ch->last = NULL;
	id = (struct cm_id *)e->event.id;
	id->listener = NULL;
	id->unacked++;
	return e;
}

/* Everything that has come, into the queue. */
static void gather(struct cm_channel *ch)
{
	struct epoll_event event;

	look_for_removal(ch);
	while (!has_due(ch) && sys_call6(SYS_epoll_pwait, ch->channel.fd, (long)&event, 1, 0, 0, 8) == 1) {
		struct cm_id *id = (struct cm_id *)(uintptr_t)event.data.u64;

		if (event.data.u64 == TAG_DEVICE) {
			look_for_removal(ch);
		} else if (event.data.u64 == TAG_CLOCK) {
			look_at_qps(ch);
		} else if (id->state == ID_LISTENS) {
			hear_caller(id);
		} else {
			hear_wire(id);
		}
	}
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct cm_channel *ch = (struct cm_channel *)channel;
	struct cm_event *e;

	for (;;) {
		struct pollfd p = { .fd = channel->fd, .events = POLLIN };

		lock_take(&ch->lock);
		if (!has_due(ch))
			gather(ch);
		e = has_due(ch) ? pop(ch) : NULL;
		if (e && !has_due(ch))
			look_at_qps(ch);
		lock_drop(&ch->lock);
		if (e)
			break;
		if (sys_fcntl(channel->fd, F_GETFL, 0) & O_NONBLOCK) {
			errno = EAGAIN;
			return -1;
		}
		if (sys_call5(SYS_ppoll, &p, 1, NULL, NULL, 8) == -EINTR) {
			errno = EINTR;
			return -1;
		}
	}
	*event = &e->event;
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	((struct cm_id *)event->id)->unacked--;
	free(event);
	return 0;
}
