/* SPDX-License-Identifier: MIT */
/*
 * Completion queues and their channels. A channel is a datagram socket with a name of its own, so that a peer's process can make it readable
 * and needs nothing of ours open for that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "double.h"
#include "ringbuf/sys.h"

static struct double_cq *cqs[CQS_MAX];
static _Atomic uint64_t generation;

/*
 * What completions are told from, as long as this process has channels itself. A descriptor of the moment would have a number that the program has just
 * closed, and another thread of it still polls.
 */
static struct {
	struct double_lock lock;
	uint64_t of;
	unsigned channels;
	int fd;
} teller;

static void teller_anew(void)
{
	teller.channels = 0;
	store_relaxed(&teller.lock.holder, 0);
}

static void teller_join(void)
{
	adapter_anew(&teller.of, teller_anew);
	lock_take(&teller.lock);
	if (teller.channels++ == 0)
		teller.fd = hide_fd(sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	lock_drop(&teller.lock);
}

static void teller_leave(void)
{
	lock_take(&teller.lock);
	if (--teller.channels == 0)
		close_hidden(teller.fd);
	lock_drop(&teller.lock);
}

static long tell(int fd, const struct shared_cq *cq)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	uint64_t cookie = load_acquire(&cq->cookie);

	memcpy(to.sun_path, cq->channel, cq->channel_len);
	return sys_sendto(fd, &cookie, sizeof(cookie), MSG_DONTWAIT | MSG_NOSIGNAL, &to,
			  (unsigned)(offsetof(struct sockaddr_un, sun_path) + cq->channel_len));
}

static void ring_channel(const struct shared_cq *cq)
{
	bool kept;
	long r;
	int fd;

	lock_take(&teller.lock);
	kept = teller.channels && teller.fd >= 0;
	fd = kept ? teller.fd : sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		misuse("no descriptor is left to tell of a completion with");
	r = tell(fd, cq);
	/*
	 * The channel is full of events that nobody takes, and readable all the same. Or it is not: events that nobody has taken yet, from whichever channel,
	 * count against the buffer of who told of them, too, which has room for fewer than there may be channels. Another sender's has room.
	 */
	if (kept && r == -EAGAIN) {
		int other = hide_fd(sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));

		if (other < 0)
			misuse("no descriptor is left to tell of a completion with");
		(void)tell(other, cq);
		close_hidden(other);
	}
	if (!kept)
		sys_close(fd);
	lock_drop(&teller.lock);
}

void cq_put(struct adapter *a, uint32_t index, const struct ibv_wc *wc, const struct shared_qp *of_send, uint32_t sends_done, bool solicited)
{
	struct shared_cq *cq = &a->cqs[index];
	uint32_t tail, armed;

	lock_take(&cq->lock);
	tail = load_relaxed(&cq->tail);
	if (tail - load_acquire(&cq->head) >= cq->entries) {
		lock_drop(&cq->lock);
		misuse("a completion queue overflows");
		return;
	}
	cq->ring[tail % CQES_MAX] = (struct shared_cqe){ .wc = *wc, .sends_done = sends_done, .is_send = of_send != NULL };
	store_release(&cq->tail, tail + 1);
	lock_drop(&cq->lock);
	/* The tail, then the look: who arms looks at the tail afterwards. */
	fence_full();
	armed = load_relaxed(&cq->armed);
	if (armed == ARMED_SOLICITED && !solicited && wc->status == IBV_WC_SUCCESS)
		return;
	if (armed && exchange(&cq->armed, ARMED_NOT) && cq->channel_len)
		ring_channel(cq);
}

/* A completion gives back the slots of all work requests before it. */
static void give_back(const struct shared_cqe *e)
{
	struct shared_qp *qp = &own->qps[e->wc.qp_num % QPS_MAX];

	if (load_relaxed(&qp->number) == e->wc.qp_num)
		store_release(&qp->sends_done, e->sends_done);
}

/*
 * As if the acknowledgement were on its way for as long as some looks at the queue take. Not where the queue is armed: who is about to sleep has the time.
 * What comes behind it waits for it.
 */
static bool is_late(struct double_cq *d, const struct shared_cq *cq, uint32_t head)
{
	if (likely(!settings.late) || load_relaxed(&((struct shared_cq *)cq)->armed) || !cq->ring[head % CQES_MAX].is_send)
		return false;
	if (!d->looks || d->looked_at != head) {
		d->looked_at = head;
		d->looks = 0;
	}
	return d->looks++ < settings.late;
}

int cq_poll(struct ibv_cq *ibcq, int most, struct ibv_wc *wc)
{
	struct double_cq *d = (struct double_cq *)ibcq;
	struct shared_cq *cq = &own->cqs[d->index];
	uint32_t head, tail;
	int n = 0;

	lock_take(&d->polling);
	head = load_relaxed(&cq->head);
	tail = load_acquire(&cq->tail);
	for (; n < most && head != tail; head++, n++) {
		const struct shared_cqe *e = &cq->ring[head % CQES_MAX];

		if (is_late(d, cq, head))
			break;
		wc[n] = e->wc;
		if (e->is_send)
			give_back(e);
	}
	store_release(&cq->head, head);
	lock_drop(&d->polling);
	return n;
}

int cq_arm(struct ibv_cq *ibcq, int solicited)
{
	struct shared_cq *cq = &own->cqs[((struct double_cq *)ibcq)->index];

	if (!solicited)
		exchange(&cq->armed, ARMED_ANY);
	else if (load_relaxed(&cq->armed) == ARMED_NOT)
		exchange(&cq->armed, ARMED_SOLICITED);
	return 0;
}

/* Bound to no name, a socket is given an abstract one. */
static int bind_channel(int fd, struct sockaddr_un *name, unsigned *len)
{
	static _Atomic uint32_t count;
	int r;

	*len = sizeof(sa_family_t);
	if (settings.room[0])
		*len = (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 +
				  (size_t)snprintf(name->sun_path, CHANNEL_NAME, "%s/channel-%d-%u", settings.room, sys_getpid(), fetch_add(&count, 1)));
	r = sys_bind(fd, name, *len);
	*len = sizeof(*name);
	return r < 0 ? r : sys_getsockname(fd, name, len);
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct double_channel *ch = calloc(1, sizeof(*ch));
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	unsigned len;
	int fd;

	if (!ch)
		return NULL;
	fd = sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind_channel(fd, &name, &len) < 0) {
		if (fd >= 0)
			sys_close(fd);
		free(ch);
		errno = EMFILE;
		return NULL;
	}
	teller_join();
	ch->channel.context = context;
	ch->channel.fd = fd;
	ch->name_len = (uint8_t)(len - offsetof(struct sockaddr_un, sun_path));
	memcpy(ch->name, name.sun_path, ch->name_len);
	return &ch->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct double_channel *ch = (struct double_channel *)channel;

	if (ch->cqs)
		return EBUSY;
	teller_leave();
	sys_close(channel->fd);
	if (settings.room[0])
		(void)sys_call3(SYS_unlinkat, AT_FDCWD, ch->name, 0);
	free(ch);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct double_cq *d = calloc(1, sizeof(*d));
	struct double_channel *ch = (struct double_channel *)channel;
	struct shared_cq *cq;
	uint32_t index = 0;

	if (!d || device_is_removed() || cqe < 1 || cqe > CQES_MAX) {
		errno = !d ? ENOMEM : device_is_removed() ? EIO : EINVAL;
		free(d);
		return NULL;
	}
	while (index < CQS_MAX && !compare_exchange(&own->cqs[index].cookie, &(uint64_t){ 0 }, 1))
		index++;
	if (index == CQS_MAX) {
		free(d);
		errno = ENOMEM;
		return NULL;
	}
	d->index = index;
	d->cq = (struct ibv_cq){ .context = ctx, .channel = channel, .cq_context = cq_context, .handle = index, .cqe = cqe };
	cq = &own->cqs[index];
	store_relaxed(&cq->lock.holder, 0);
	store_relaxed(&cq->head, 0);
	store_relaxed(&cq->tail, 0);
	store_relaxed(&cq->armed, ARMED_NOT);
	cq->entries = (uint32_t)cqe;
	cq->channel_len = 0;
	if (ch) {
		cq->channel_len = ch->name_len;
		memcpy(cq->channel, ch->name, ch->name_len);
		ch->cqs++;
	}
	cqs[index] = d;
	store_release(&cq->cookie, (fetch_add(&generation, 1) + 1) << 16 | index);
	return &d->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct double_cq *d = (struct double_cq *)cq;

	if (d->qps)
		return EBUSY;
	if (d->unacked)
		misuse("a completion queue is destroyed before its events were acknowledged; a real one waits for ever");
	if (cq->channel)
		((struct double_channel *)cq->channel)->cqs--;
	cqs[d->index] = NULL;
	store_release(&own->cqs[d->index].cookie, 0);
	free(d);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	uint64_t cookie;
	ssize_t n;

	/* An event of a queue that is gone says nothing. */
	do {
		n = sys_recvfrom(channel->fd, &cookie, sizeof(cookie), 0, NULL, NULL);
		if (n < 0) {
			errno = (int)-n;
			return -1;
		}
	} while (n != sizeof(cookie) || cookie < CQS_MAX || load_relaxed(&own->cqs[cookie % CQS_MAX].cookie) != cookie);
	*cq = &cqs[cookie % CQS_MAX]->cq;
	*cq_context = (*cq)->cq_context;
	cqs[cookie % CQS_MAX]->unacked++;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned nevents)
{
	struct double_cq *d = (struct double_cq *)cq;

	if (nevents > d->unacked)
		misuse("more events are acknowledged than were taken");
	d->unacked -= nevents < d->unacked ? nevents : d->unacked;
}
