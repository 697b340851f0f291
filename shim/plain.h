/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_PLAIN_H
#define RINGWAY_PLAIN_H

/*
 * A data call on a lane that is on TCP and not being moved: the real call, and a count. What a program pays whose peer has no
 * Ringway: a look-up, a test, an addition.
 *
 * While a rendezvous is still possible the calls inside the kernel are counted as well, so that nobody declares the count of
 * bytes to be S while a call is about to change it. A thread that is cancelled in there, or jumps out, leaves the
 * count too high: the lane then stays on TCP.
 */

#include <errno.h>
#include <sys/socket.h>

#include "shim/conn.h"
#include "shim/nego.h"
#include "shim/pinned.h"

enum plain_pass {
	PASS_NOT,	/* not this way */
	PASS_COUNT,	/* pinned: only count the bytes */
	PASS_COUNT_IN,	/* counted among the calls inside */
};

/* Flags with which a received byte does not leave the stream. */
#define PLAIN_NO_BYTES (MSG_PEEK | MSG_ERRQUEUE | MSG_OOB)

static inline void plain_add(_Atomic uint64_t *to, uint64_t n, bool alone)
{
	if (likely(alone))
		count_add(to, n);
	else
		fetch_add(to, n);
}

/*
 * Do n bytes make a lane's count pass a power of two from 4 KiB on, or a multiple of 64 KiB? Then conn_tell_stats() is due, since `ringway ps` is
 * asked most often about a connection that stays on TCP. Not before, because its row costs two system calls.
 */
static inline bool plain_is_step(uint64_t had, uint64_t n)
{
	uint64_t step = had < 4095 ? 4095 : had > 65535 ? 65535 : had;

	return (had ^ (had + n)) > step;
}

/* Bytes of the program that the kernel carried. True where conn_tell_stats() is due. */
static inline bool plain_count(_Atomic uint64_t *bytes, uint64_t n, bool alone)
{
	uint64_t had = load_relaxed(bytes);

	plain_add(bytes, n, alone);
	return plain_is_step(had, n);
}

static inline enum plain_pass plain_enter(struct conn *c, _Atomic uint8_t *mode, _Atomic int32_t *in_calls)
{
	uint8_t m = load_relaxed(mode);

	if (m == MODE_PINNED)
		return PASS_COUNT;
	if (m != MODE_PLAIN)
		return PASS_NOT;
	if (likely(lane_is_alone(load_relaxed(&c->shared)))) {
		count_add(in_calls, 1);
		return PASS_COUNT_IN;
	}
	/* In before the second look; pairs with conn_tx_set() and conn_rx_set(), which look at in_calls after they store. */
	fetch_add(in_calls, 1);
	m = load_acquire(mode);
	if (likely(m == MODE_PLAIN))
		return PASS_COUNT_IN;
	fetch_sub(in_calls, 1);
	return m == MODE_PINNED ? PASS_COUNT : PASS_NOT;
}

static inline bool conn_nego_due(struct conn *c)
{
	return nego_due(&c->nego, load_relaxed(&c->tx.calls) + load_relaxed(&c->rx.calls),
			load_relaxed(&c->tx.tcp_bytes) + load_relaxed(&c->rx.tcp_bytes));
}

static inline void plain_leave(struct conn *c, int fd, enum plain_pass pass, ssize_t n, _Atomic int32_t *in_calls,
			       _Atomic uint64_t *bytes, _Atomic uint64_t *calls)
{
	bool alone = lane_is_alone(load_relaxed(&c->shared));
	bool tell = n > 0 && plain_count(bytes, (uint64_t)n, alone);

	if (pass == PASS_COUNT_IN) {
		if (likely(alone))
			count_add(in_calls, -1);
		else
			fetch_sub(in_calls, 1);
		plain_add(calls, 1, alone);
		if (unlikely(n < 0))
			nego_came_back_dry(c);
		else if (unlikely(c->nego.dry))
			c->nego.dry = 0;
		if (unlikely(conn_nego_due(c)))
			nego_poke(c, fd);
	} else {
		pinned_note(c, fd);
	}
	if (unlikely(tell))
		conn_tell_stats(c, fd);
}

/* What the kernel has told matters where a ring could tell it again. */
static inline void plain_failed(struct conn *c)
{
	if (unlikely(load_relaxed(&c->linked)))
		conn_kernel_told(c, errno);
}

/*
 * A call on a lane that stays on TCP has come to the end of the stream, as the libc call. If the end is one that we made, because the other
 * lane was lost, it is the reset that it stands for.
 */
static inline ssize_t plain_end(struct conn *c, ssize_t n)
{
	int err;

	if (likely(n > 0))
		return n;
	if (n < 0)
		plain_failed(c);
	if (n < 0)
		return n;
	err = conn_take_rx_error(c);
	if (!err)
		return 0;
	errno = err;
	return -1;
}

static inline enum plain_pass plain_rx_enter(struct conn *c)
{
	return plain_enter(c, &c->rx.mode, &c->rx.in_calls);
}

static inline ssize_t plain_rx_leave(struct conn *c, int fd, enum plain_pass pass, ssize_t n, int flags)
{
	plain_leave(c, fd, pass, flags & PLAIN_NO_BYTES ? 0 : n, &c->rx.in_calls, &c->rx.tcp_bytes, &c->rx.calls);
	return plain_end(c, n);
}

static inline enum plain_pass plain_tx_enter(struct conn *c)
{
	return plain_enter(c, &c->tx.mode, &c->tx.in_calls);
}

static inline ssize_t plain_tx_leave(struct conn *c, int fd, enum plain_pass pass, ssize_t n)
{
	if (unlikely(n < 0))
		plain_failed(c);
	plain_leave(c, fd, pass, n, &c->tx.in_calls, &c->tx.tcp_bytes, &c->tx.calls);
	return n;
}

#endif
