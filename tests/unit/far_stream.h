/* SPDX-License-Identifier: MIT */
/* Two streams between two ends over a ring of two hosts, of which every byte is compared. */
#ifndef RINGWAY_TESTS_FAR_STREAM_H
#define RINGWAY_TESTS_FAR_STREAM_H

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "ringbuf/verbs_engine.h"
#include "shim/switch.h"
#include "tests/unit/far_bench.h"

#define RING 16384

/* One byte of a stream in which a byte that is lost, doubled or out of place shows. */
static inline uint8_t byte_at(uint64_t pos)
{
	return (uint8_t)(pos * 167 + (pos >> 8) * 13 + (pos >> 16));
}

struct stream {
	struct conn *from, *to;
	int from_fd, to_fd;
	uint64_t sent, got;
};

static inline struct bench open_far(void)
{
	struct bench b = bench_open();
	int one = 1;

	setsockopt(b.a_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(b.b_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	bench_link_far_of(&b, RING);
	bench_switch(&b);
	return b;
}

static inline struct stream a_to_b(struct bench *b)
{
	return (struct stream){ b->a, b->b, b->a_fd, b->b_fd, 0, 0 };
}

static inline struct stream b_to_a(struct bench *b)
{
	return (struct stream){ b->b, b->a, b->b_fd, b->a_fd, 0, 0 };
}

/* At most `len` bytes, as many as go. */
static inline ssize_t stream_send(struct stream *s, size_t len)
{
	uint8_t bytes[RING];
	ssize_t n;

	len = len < sizeof(bytes) ? len : sizeof(bytes);
	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(s->sent + i);
	n = conn_send(s->from, s->from_fd, bytes, len, MSG_NOSIGNAL);
	s->sent += n > 0 ? (uint64_t)n : 0;
	return n;
}

static inline ssize_t stream_take(struct stream *s, size_t len)
{
	uint8_t bytes[RING];
	ssize_t n = conn_recv(s->to, s->to_fd, bytes, len < sizeof(bytes) ? len : sizeof(bytes), 0);

	for (ssize_t i = 0; i < n; i++)
		assert_int_equal(bytes[i], byte_at(s->got + (uint64_t)i));
	s->got += n > 0 ? (uint64_t)n : 0;
	return n;
}

/* One end sends and the other takes, until that lane is on the ring. With `back`, the sender looks for an answer in between, and finds none. */
static inline void stream_moves_out(struct stream *s, struct stream *back)
{
	for (int i = 0; i < 8 && !conn_tx_on_ring(s->from); i++) {
		stream_send(s, 1);
		stream_take(s, 1);
		if (back)
			assert_int_equal(stream_take(back, 1), -EAGAIN);
	}
}

/* Everything that was sent, and nothing else. */
static inline void stream_end(struct stream *s)
{
	for (int tries = 0; s->got < s->sent && tries < 20000; tries++) {
		struct pollfd p = { .fd = s->to_fd, .events = POLLIN };

		conn_ready(s->from, s->from_fd, POLLIN, 0);
		if (stream_take(s, RING) < 0)
			poll(&p, 1, 1);
	}
	assert_int_equal(s->got, s->sent);
	assert_int_equal(stream_take(s, 1), -EAGAIN);
}

/* Both ways, with more under way now and then than is taken, and to the end. */
static inline void streams_talk(struct stream *there, struct stream *back, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		stream_send(there, 1000);
		stream_send(back, 700);
		stream_take(back, 900);
		stream_take(there, 300);
	}
	stream_end(there);
	stream_end(back);
}

static inline struct ibv_qp *qp_of(struct conn *c)
{
	return engine_of(&c->link)->qp;
}

#endif
