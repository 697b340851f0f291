/* SPDX-License-Identifier: MIT */
/* See conn_fin.h. */
#include "shim/conn_fin.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"
#include "shim/conn_end.h"
#include "shim/conn_far.h"
#include "shim/conn_lock.h"
#include "shim/conn_probe.h"
#include "shim/far.h"
#include "shim/log.h"
#include "shim/options.h"
#include "shim/ready.h"
#include "shim/retreat_far_go.h"
#include "shim/wait.h"

#define MORE_ROOM 4096	/* in the socket's buffer, for frames */
#define RESET_MS 20	/* that a reset waits for what says it to a peer that only sends */

/* The peer may not have read what was sent before the switch. */
static int wait_for_room(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	struct timespec t = { .tv_sec = options.patience_ms / 1000, .tv_nsec = options.patience_ms % 1000 * 1000000L };
	long nr = sys_call5(SYS_ppoll, &p, 1, &t, NULL, 8);

	return nr > 0 || nr == -EINTR ? 0 : nr ? (int)nr : -ETIMEDOUT;
}

static void widen(int fd)
{
	unsigned size = sizeof(int);
	int room = 0;

	/* What is told is twice what is to be set. */
	if (sys_getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, &size) == 0) {
		room = room / 2 + MORE_ROOM;
		sys_setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	}
}

static int send_whole(int fd, const uint8_t *bytes, size_t len)
{
	bool widened = false;
	size_t done = 0;

	while (done < len) {
		ssize_t n = sys_sendto(fd, bytes + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
		int r = n < 0 ? (int)n : 0;

		if (r == -EAGAIN && !widened) {
			widen(fd);
			widened = true;
			continue;
		}
		if (r == -EAGAIN)
			r = wait_for_room(fd);
		if (r < 0)
			return r;
		done += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

static bool sends_far(struct conn *c)
{
	return conn_is_linked(c) && conn_is_far(c) && load_relaxed(&c->tx.state) == TX_RING;
}

static int flush(struct conn *c, int limit_ms)
{
	return far_engine->flush(&c->link, limit_ms);
}

static bool begin(struct conn *c, bool *ends)
{
	if (!sends_far(c) || far_wait_fd(c) < 0 || conn_lock_tx(c) < 0)
		return false;
	*ends = *ends && sends_far(c) && !load_relaxed(&c->tx.fin);
	if (*ends) {
		store_relaxed(&c->tx.fin, TX_FIN_DUE);
		store_relaxed(&c->tx.alert, 1);
		retreat_far_frame_soon(c);
	}
	lane_unlock(&c->tx.lock);
	return true;
}

static void note_in_vain(struct conn *c)
{
	if (conn_lock_tx(c) < 0)
		return;
	if (load_relaxed(&c->tx.fin) == TX_FIN_DUE && far_engine->unacked(&c->link))
		store_relaxed(&c->tx.fin, TX_FIN_LOST);
	lane_unlock(&c->tx.lock);
}

void conn_fin_await(struct conn *c, bool ends)
{
	if (begin(c, &ends) && flush(c, (int)options.patience_ms) && ends)
		note_in_vain(c);
}

void conn_fin_reset(struct conn *c)
{
	if (load_relaxed(&c->tx.fin) == TX_FIN_NONE && conn_is_linked(c) && conn_is_far(c))
		store_relaxed(&c->tx.fin, TX_FIN_RESET);
}

/* How long its last words are waited for. */
static int settles_within_ms(struct conn *c)
{
	uint8_t fin = load_relaxed(&c->tx.fin);

	return fin == TX_FIN_RESET ? RESET_MS : fin == TX_FIN_DUE || fin == TX_FIN_SENT ? (int)options.patience_ms : 0;
}

void conn_fin_settle(struct conn *c)
{
	int limit_ms = settles_within_ms(c);

	if (limit_ms)
		flush(c, limit_ms);
}

/* One look at those that were rung for; `first`: at all. How many are not done yet. */
static unsigned look_at_all(struct fin_wait *w, struct pollfd *p, unsigned nr, bool first, bool *progress)
{
	unsigned waiting = 0;

	for (unsigned i = 0; i < nr; i++) {
		struct conn *c = w[i].c;
		uint64_t unacked;

		if (p[i].fd < 0)
			continue;
		if (first || p[i].revents) {
			if (!first)
				far_pump(c, VERBS_RUNG);
			if (far_engine->flush(&c->link, 0) != -ETIMEDOUT) {
				p[i].fd = -1;
				*progress = true;
				continue;
			}
			unacked = far_engine->unacked(&c->link);
			*progress |= unacked < w[i].unacked;
			w[i].unacked = unacked;
		}
		waiting++;
	}
	return waiting;
}

/* Until each is done, or none has come any further within the patience. */
static void wait_for_all(struct fin_wait *w, struct pollfd *p, unsigned nr, int patience_ms)
{
	const int64_t patience_ns = patience_ms * INT64_C(1000000);
	int64_t left, until = now_ns() + patience_ns;
	bool first = true;

	for (;;) {
		bool progress = false;
		struct timespec t;
		long n;

		if (!look_at_all(w, p, nr, first, &progress))
			return;
		first = false;
		if (progress)
			until = now_ns() + patience_ns;
		left = until - now_ns();
		if (left <= 0)
			return;
		t = (struct timespec){ .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
		n = sys_call5(SYS_ppoll, p, nr, &t, NULL, 8);
		if (n < 0 && n != -EINTR)
			return;
	}
}

void conn_fin_await_all(struct fin_wait *w, struct pollfd *p, unsigned nr)
{
	for (unsigned i = 0; i < nr; i++)
		p[i] = (struct pollfd){ .fd = w[i].c && begin(w[i].c, &w[i].ends) ? far_wait_fd(w[i].c) : -1, .events = POLLIN };
	wait_for_all(w, p, nr, (int)options.patience_ms);
	for (unsigned i = 0; i < nr; i++)
		if (w[i].c && w[i].ends)
			note_in_vain(w[i].c);
}

void conn_fin_settle_all(struct fin_wait *w, struct pollfd *p, unsigned nr)
{
	const int patiences_ms[] = { RESET_MS, (int)options.patience_ms };

	for (int k = 0; k < 2; k++) {
		for (unsigned i = 0; i < nr; i++)
			p[i] = (struct pollfd){ .fd = w[i].c && settles_within_ms(w[i].c) == patiences_ms[k] ? far_wait_fd(w[i].c) : -1, .events = POLLIN };
		wait_for_all(w, p, nr, patiences_ms[k]);
	}
}

int conn_fin_wait(struct conn *c)
{
	int r;

	if (load_relaxed(&c->tx.fin) == TX_FIN_LOST) {
		r = far_pump(c, 0);
		return r < 0 && r != -ESRCH ? r : -ETIMEDOUT;
	}
	/* Of the frame that follows who goes has to hear before. */
	if (!retreat_far_frame_soon(c) && load_relaxed(&c->tx.fin) == TX_FIN_DUE && !far_engine->unacked(&c->link))
		r = conn_pump_far(c, 0);
	else
		r = flush(c, (int)options.patience_ms);
	return r == -ESRCH ? 0 : r;
}

int conn_fin_send(struct conn *c, int fd)
{
	uint8_t frame[FRAME_SIZE];
	int r;

	if (!sends_far(c) || load_relaxed(&c->tx.fin) == TX_FIN_SENT)
		return 0;
	r = conn_fin_wait(c);
	conn_take_tx_attention_locked(c, fd);
	/*
	 * Who has closed, or shut both directions, waits for no end, and its kernel answers a frame with a reset. One that has let go of the link, too,
	 * may have had all bytes, and has not answered.
	 */
	if (load_relaxed(&c->tx.gone_hint) && (c->rx.fin_known || r == -ECONNRESET))
		return 0;
	while (!r && c->tx.probe_done) {
		r = (int)conn_write_probe(c, fd);
		if (r == -EAGAIN)
			r = wait_for_room(fd);
	}
	if (!r) {
		frame_make(frame, FRAME_FIN, c->nonce, c->peer_nonce, c->link.tx.tail_pos);
		r = send_whole(fd, frame, FRAME_SIZE);
	}
	if (r < 0) {
		log_info("connection %u: its end cannot be told (%m)", c->index, -r);
		return r;
	}
	/* Nothing may follow it, even where the kernel's end does not follow at once. */
	store_relaxed(&c->tx.fin, TX_FIN_SENT);
	c->tx.frames++;
	store_relaxed(&c->tx.alert, 1);
	return 0;
}

/* More than a ring can be ahead of no head of ours. */
bool conn_fin_came(struct conn *c, uint64_t pos)
{
	if (c->rx.fin_known || pos - ring_rx_freed(&c->link.rx) > ring_rx_comes(&c->link.rx))
		return false;
	c->rx.fin_pos = pos;
	c->rx.fin_known = 1;
	return true;
}

enum fin_sight conn_fin_sight(struct conn *c)
{
	int r;

	if (!c->rx.fin_known)
		return FIN_NEVER;
	/* What had arrived before the link died has been published then. */
	r = far_pump(c, VERBS_EMPTY);
	if (ring_rx_published(&c->link.rx) == (c->rx.fin_pos & TAIL_POS_MASK))
		return FIN_REACHED;
	/* A relative without the link cannot know: whoever has it may see the rest arrive. */
	return r < 0 && r != -ESRCH ? FIN_NEVER : FIN_MISSING;
}

void conn_cut(struct conn *c, int fd, enum reason why)
{
	if (load_relaxed(&c->rx.dead))
		return;
	log_info("connection %u: reset (%s)", c->index, reason_word(why));
	store_relaxed(&c->reason, (uint8_t)why);
	store_relaxed(&c->pinned, 1);
	store_relaxed(&c->rx.dead, 1);
	conn_set_pending(c, ECONNRESET);
	/* A lane of the peer's that is on TCP must not take it for an end. */
	conn_reset_kernel(c, fd);
	if (load_relaxed(&c->rx.state) != RX_ENDED)
		conn_rx_set(c, RX_ENDED);
	ready_changed(c);
}
