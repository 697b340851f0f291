/* SPDX-License-Identifier: MIT */
/*
 * The pump: what the peer's process does on one host, done here for a peer that is on another. It runs in whatever call the program
 * makes, in one thread at a time, and never waits. VERBS.md has the protocol; tests/model/verbs.pml checks the sleeping, the holding and the lock.
 */
#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <time.h>

#include "ringbuf/sys.h"
#include "ringbuf/verbs_engine.h"

enum { ASKED_LOOK = 1 };

#define DRAIN_NS 20000000
#define LOOK_NS INT64_C(1000000000)

static int64_t clock_ns(void)
{
	struct timespec t = { 0 };

	sys_call2(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void verbs_die(struct verbs_link *v, int err)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int32_t alive = 0;

	if (!compare_exchange(&v->dead, &alive, err < 0 ? err : -err))
		return;
	v->up = false;
	if (v->qp)
		ibv_modify_qp(v->qp, &attr, IBV_QP_STATE);
}

static void arm(struct verbs_link *v)
{
	count_add(&v->counts.arms, 1);
	v->armed = true;
	v->came = false;
	if (ibv_req_notify_cq(v->cq, 0))
		verbs_die(v, -EIO);
}

/* As if it had left its lane, and gone. */
static void publish_gone(struct verbs_link *v, uint64_t tail)
{
	struct lane_ctl *rx = v->link->rx.ctl;

	peer_publish_u64(&rx->tx_state.left_at, v->gone_left);
	peer_publish_u64(&rx->tx_state.resent_to, tail);
	peer_publish_u32(&rx->tx_state.frames, v->gone_frames);
	peer_publish_u32(&rx->tx_state.left, v->gone_left == tail ? LEFT_CUT : LEFT_RESENDS);
	peer_publish_u32(&v->link->tx.ctl->rx_state.asked, v->gone);
}

/*
 * What came goes where the peer would have written it, and whoever sleeps here is woken as the peer would. The dead link asks for attention
 * on both lanes, since nothing else would wake them.
 */
static void publish(struct verbs_link *v, bool died)
{
	struct ring_link *link = v->link;
	uint64_t tail = verbs_tail(v);
	bool rx = v->words_came || died, tx = v->words_came || v->credit_came || died;

	if (died) {
		fetch_or(&link->rx.ctl->tx_state.wake.peer_word, WAKE_ATTN_WORDS);
		fetch_or(&link->tx.ctl->rx_state.wake.peer_word, WAKE_ATTN_WORDS);
	}
	if (tail != v->shown_tail) {
		v->shown_tail = tail;
		v->empties = 0;
		peer_publish_u64(&link->rx.front->tail_pos, tail);
		rx = true;
	}
	if (v->credit_came || v->gone)
		peer_publish_u64(&link->tx.ctl->rx.head_pos, v->head_pos);
	if (unlikely(v->gone))
		publish_gone(v, tail);
	v->words_came = false;
	v->credit_came = false;
	/* Pairs with verbs_pump(): who is told of the death finds all that had come. */
	if (died)
		store_release(&v->told_dead, load_relaxed(&v->dead));
	if (rx)
		ring_rx_arrived(&link->rx);
	if (tx)
		ring_tx_arrived(&link->tx);
}

/* Has the program taken everything, and was told that more may be held? */
static bool wants_fetch(struct verbs_link *v, unsigned asked)
{
	if (asked & VERBS_EMPTY && v->empties < EMPTIES)
		v->empties++;
	if (!v->held || v->fetching || verbs_head(v) != verbs_tail(v))
		return false;
	return asked & (VERBS_ARM | VERBS_LEAVE) || v->empties >= EMPTIES;
}

/*
 * The queue pair is in error, so nothing lands any more, and what has landed is in the completion queue before the receive requests come back that
 * were not used. A device that is being removed may give none back: it is not waited for for long.
 */
static void settle(struct verbs_link *v)
{
	int64_t end = clock_ns() + DRAIN_NS;

	verbs_poll(v);
	while (v->recvs_back < v->batches * RECV_BATCH && clock_ns() < end) {
		sys_call0(SYS_sched_yield);
		verbs_poll(v);
	}
	publish(v, true);
	verbs_release(v);
}

/* The device has its own timer for what nobody acknowledges, but is not to be trusted with it alone. */
static bool is_silent(struct verbs_link *v)
{
	uint64_t cqes = load_relaxed(&v->counts.cqes);
	int64_t now;

	/* What has no completion to come is no sign. */
	if (v->wrs == v->wrs_done || v->probe_due) {
		v->silent_since = 0;
		return false;
	}
	now = clock_ns();
	if (v->silent_since && v->silent_cqes == cqes)
		return now - v->silent_since > v->patience_ms * INT64_C(1250000);
	v->silent_since = now;
	v->silent_cqes = cqes;
	return false;
}

/*
 * The tail is shown before the queue is polled, with a full fence between: either the peer's REOPEN is seen here, or its READ, which comes
 * after that, sees the tail.
 */
static void work(struct verbs_link *v, unsigned asked)
{
	if (load_relaxed(&v->dead))
		return;
	if (load_relaxed(&v->stop)) {
		verbs_die(v, -ESHUTDOWN);
		settle(v);
		return;
	}
	if (asked & VERBS_RUNG) {
		/* Armed again at once: another thread may sleep on, and what it waits for be polled by nobody. */
		verbs_drain(v);
		arm(v);
	} else if (asked & VERBS_ARM && !v->armed) {
		arm(v);
	}
	store_relaxed(&v->shown->tail_pos, peer_read_u64(&v->link->tx.front->tail_pos));
	fence_full();
	verbs_poll(v);
	/* What came took the arming with it, and an edge-triggered set may have heard of it already. */
	if (asked & VERBS_ARM && v->came && !load_relaxed(&v->dead)) {
		verbs_drain(v);
		arm(v);
		verbs_poll(v);
	}
	if (load_relaxed(&v->dead)) {
		settle(v);
		return;
	}
	publish(v, false);
	if (!v->up)
		return;
	if (asked & VERBS_PROBE)
		v->probe_due = true;
	if (asked & VERBS_GOING)
		v->going = true;
	verbs_post(v, asked, wants_fetch(v, asked));
	if (asked & VERBS_PROBE && is_silent(v))
		verbs_die(v, -EIO);
	if (load_relaxed(&v->dead))
		settle(v);
}

/*
 * Leaves a mark, then tries the lock. Who finds it taken may go: the holder looks at the marks once more after it has let go. The exchanges
 * are full fences, so the mark is seen, or the lock is found free.
 */
int verbs_pump(struct ring_link *link, unsigned why)
{
	struct verbs_link *v = engine_of(link);
	KEEPS_ERRNO;

	if (!v)
		return -ESRCH;
	fetch_or(&v->asked, why | ASKED_LOOK);
	while (load_relaxed(&v->asked)) {
		if (exchange(&v->locked, 1))
			break;
		work(v, exchange(&v->asked, 0));
		fetch_add(&v->rounds, 1);
		exchange(&v->locked, 0);
	}
	return load_acquire(&v->told_dead);
}

void verbs_stop(struct ring_link *link)
{
	struct verbs_link *v = engine_of(link);

	if (!v || load_relaxed(&v->dead))
		return;
	/* A pump in another thread goes round once more and finds the link dead. */
	store_relaxed(&v->stop, 1);
	verbs_pump(link, 0);
}

static uint32_t far_published(struct ring_tx *tx)
{
	struct ring_link *link = (struct ring_link *)((char *)tx - offsetof(struct ring_link, tx));

	verbs_pump(link, 0);
	return peer_read_u32(&tx->ctl->rx_state.wake) & WAKE_ATTN_MASK;
}

static uint32_t far_consumed(struct ring_rx *rx)
{
	struct ring_link *link = (struct ring_link *)((char *)rx - offsetof(struct ring_link, rx));

	verbs_pump(link, 0);
	return peer_read_u32(&rx->ctl->tx_state.wake) & WAKE_ATTN_MASK;
}

const struct ring_far verbs_far = { .published = far_published, .consumed = far_consumed };

int verbs_wait_fd(const struct ring_link *link)
{
	const struct verbs_link *v = engine_of(link);

	return v ? v->wait_fd : -1;
}

const struct verbs_counts *verbs_counts(const struct ring_link *link)
{
	const struct verbs_link *v = engine_of(link);

	return v ? &v->counts : NULL;
}

static bool all_done(struct verbs_link *v)
{
	return load_unlocked(&v->wrs_done) == load_unlocked(&v->wrs) &&
	       load_unlocked(&v->posted_pos) == peer_read_u64(&v->link->tx.front->tail_pos) && !load_unlocked(&v->words_due) &&
	       !load_unlocked(&v->probe_due) &&
	       (peer_read_u32(&v->link->rx.ctl->rx_state.asked) < ASKED_GONE || load_unlocked(&v->told_gone));
}

uint64_t verbs_unacked(struct ring_link *link)
{
	struct verbs_link *v = engine_of(link);
	uint64_t acked;

	if (!v)
		return 0;
	acked = load_unlocked(&v->acked_pos);
	if (load_unlocked(&link->tx.tail_pos) == acked)
		return 0;
	verbs_pump(link, VERBS_LEAVE | VERBS_PROBE);
	acked = load_unlocked(&v->acked_pos);
	return load_unlocked(&link->tx.tail_pos) - acked;
}

/* A round that began after the call did, by whichever thread: what the queue had then has been taken. False: its thread does not come through. */
static bool look_whole(struct verbs_link *v)
{
	uint32_t before = load_acquire(&v->rounds);
	int64_t end = clock_ns() + LOOK_NS;

	/* One that is under way may have looked already. */
	while (load_acquire(&v->rounds) - before < 2) {
		uint32_t so_far = load_acquire(&v->rounds);

		verbs_pump(v->link, 0);
		if (load_acquire(&v->rounds) != so_far)
			continue;
		if (clock_ns() >= end)
			return false;
		sys_call0(SYS_sched_yield);
	}
	return true;
}

/*
 * A probe's completion stands for all that was posted before it; what a pump posts besides, a credit, asks for another one. A peer that closes
 * says so by rdma_cm long before the device gives up. Probes are answered by a device whose program posts no more receive requests, so only bytes that
 * arrive prolong the wait.
 */
int verbs_flush(struct ring_link *link, int limit_ms)
{
	struct verbs_link *v = engine_of(link);
	const int64_t limit_ns = limit_ms * INT64_C(1000000);
	int64_t left_ns, end = clock_ns() + limit_ns;
	uint64_t acked;
	int r;

	if (!v)
		return -ESRCH;
	acked = load_unlocked(&v->acked_pos);
	r = verbs_pump(link, VERBS_LEAVE);
	while (!r && !all_done(v)) {
		struct pollfd p = { .fd = v->wait_fd, .events = POLLIN };
		struct timespec left;

		r = verbs_pump(link, VERBS_ARM | VERBS_LEAVE | VERBS_PROBE);
		if (r || all_done(v))
			break;
		if (load_unlocked(&v->acked_pos) != acked)
			end = clock_ns() + limit_ns;
		acked = load_unlocked(&v->acked_pos);
		left_ns = end - clock_ns();
		if (left_ns <= 0)
			return -ETIMEDOUT;
		left = (struct timespec){ .tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000 };
		sys_call5(SYS_ppoll, &p, 1, &left, NULL, 8);
		r = verbs_pump(link, VERBS_RUNG);
	}
	/* Whoever has not heard of this by now, has said so to whom looks from now on. */
	if (!r)
		r = look_whole(v) ? load_acquire(&v->told_dead) : -ETIMEDOUT;
	/* Who takes the last message lets go of the link, perhaps at once. */
	return load_unlocked(&v->heard_gone) ? 0 : r;
}

/* ---- As a transport: what ring.h does, with a pump where a lane is found empty or full. ---- */

static ssize_t far_send(struct ring_link *link, const void *buf, size_t len)
{
	ssize_t room = ring_tx_room(&link->tx, len), sent;

	if (room >= 0 && (size_t)room < len)
		verbs_pump(link, VERBS_EMPTY);
	sent = ring_write(&link->tx, buf, len);
	if (sent > 0)
		ring_tx_notify(&link->tx);
	return sent;
}

static ssize_t far_avail(struct ring_link *link, size_t want)
{
	if (link->rx.tail_seen - link->rx.head_pos < want)
		verbs_pump(link, VERBS_EMPTY);
	return ring_rx_avail_min(&link->rx, want);
}

static ssize_t far_recv(struct ring_link *link, void *buf, size_t len)
{
	ssize_t avail = far_avail(link, 1);

	return avail > 0 ? ring_read(&link->rx, buf, len) : avail;
}

static ssize_t far_peek(struct ring_link *link, size_t offset, void *buf, size_t len)
{
	ssize_t avail = far_avail(link, offset + len);

	if (avail < 0)
		return avail;
	if (offset >= (size_t)avail)
		return 0;
	if (len > (size_t)avail - offset)
		len = (size_t)avail - offset;
	ring_get(&link->rx, link->rx.head_pos + offset, buf, len);
	return (ssize_t)len;
}

static ssize_t far_room(struct ring_link *link, size_t want)
{
	ssize_t room = ring_tx_room(&link->tx, want);

	if (room < 0 || (size_t)room >= want)
		return room;
	verbs_pump(link, VERBS_EMPTY);
	return ring_tx_room(&link->tx, want);
}

static ssize_t far_queued(struct ring_link *link)
{
	verbs_pump(link, 0);
	return ring_tx_queued(&link->tx);
}

static bool far_rx_sleep_begin(struct ring_link *link)
{
	verbs_pump(link, VERBS_ARM);
	return ring_rx_sleep_begin(&link->rx);
}

static bool far_tx_sleep_begin(struct ring_link *link, size_t want)
{
	verbs_pump(link, VERBS_ARM);
	return ring_tx_sleep_begin(&link->tx, want);
}

const struct transport_ops verbs_transport = {
	.name = "verbs",
	.close = verbs_close,
	.send = far_send,
	.recv = far_recv,
	.peek = far_peek,
	.room = far_room,
	.avail = far_avail,
	.queued = far_queued,
	.rx_sleep_begin = far_rx_sleep_begin,
	.tx_sleep_begin = far_tx_sleep_begin,
};
