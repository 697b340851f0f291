/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TEST_RETREAT_FIXTURE_H
#define RINGWAY_TEST_RETREAT_FIXTURE_H

/* What the tests of the retreat have in common. */
#include "tests/unit/conn_bench.h"

#include <errno.h>
#include <string.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shim/conn_end.h"
#include "shim/frame.h"
#include "shim/retreat.h"
#include "shim/switch.h"

static inline void assert_back(struct conn *c)
{
	enum tx_state tx = load_relaxed(&c->tx.state);
	enum rx_state rx = load_relaxed(&c->rx.state);

	assert_true(tx == TX_SEEK || tx == TX_PINNED);
	assert_true(rx == RX_SEEK || rx == RX_PINNED);
	assert_true(load_relaxed(&c->pinned));
}

static inline uint8_t byte_at(uint64_t pos)
{
	return (uint8_t)(pos * 131 >> 3);
}

static inline void end(struct bench *b)
{
	bench_close(b);
}

/* A relative of a was killed after the kernel had taken some bytes, and before the record said so. */
static inline void killed_in_the_middle(struct bench *b, enum piece what, const void *bytes, size_t len)
{
	store_relaxed(&b->a->shared, 1);
	assert_true(retreat_move_try(b->a, b->a_fd));
	assert_true(retreat_piece_begin(b->a, b->a_fd, what));
	assert_int_equal(send(b->a_fd, bytes, len, 0), len);
}

#endif
