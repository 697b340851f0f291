/* SPDX-License-Identifier: MIT */
/* Two ends of one verbs link in one process, over the double of verbs_fake.h, made as a rendezvous makes them. */
#ifndef RINGWAY_TESTS_VERBS_FIXTURE_H
#define RINGWAY_TESTS_VERBS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ringbuf/verbs_engine.h"
#include "verbs_fake.h"

#define FAR_RING_BYTES 4096

extern const struct verbs_table ringway_verbs;
#define verbs (&ringway_verbs)

/* `a` accepted and dials, `b` connected and offers. In shared memory, as the shim's records are. */
struct far_pair {
	struct ring_link a, b;
	struct verbs_memory of_a, of_b;
};

static inline struct sockaddr_in far_address(uint16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { htonl(0x0a090001) } };
}

/* What a rendezvous does. Each tells the other where held bytes are to be fetched. */
static inline void far_join(struct ring_link *a, struct verbs_memory *of_a, struct ring_link *b, struct verbs_memory *of_b, uint32_t ring_bytes)
{
	struct sockaddr_in local = far_address(1000), peer = far_address(2000);
	struct verbs_attempt *dial, *offer;
	size_t len;

	assert_int_equal(verbs->offer(&offer, (struct sockaddr *)&local), VERBS_OK);
	assert_int_equal(verbs->dial(&dial, (struct sockaddr *)&peer, (struct sockaddr *)&local), VERBS_OK);
	assert_int_equal(verbs->step(dial), VERBS_ROUTED);
	assert_int_equal(verbs->equip(dial, a, ring_bytes, LANE_OF_CREATOR, of_a), VERBS_OK);
	assert_int_equal(verbs->ask(dial, of_a, sizeof(*of_a)), VERBS_OK);
	assert_int_equal(verbs->step(offer), VERBS_ASKED);
	assert_memory_equal(verbs->message(offer, &len), of_a, sizeof(*of_a));
	assert_int_equal(len, sizeof(*of_a));
	assert_int_equal(verbs->equip(offer, b, ring_bytes, LANE_OF_ATTACHER, of_b), VERBS_OK);
	verbs->meet(offer, of_a);
	assert_int_equal(verbs->answer(offer, of_b, sizeof(*of_b)), VERBS_OK);
	assert_int_equal(verbs->step(offer), VERBS_UP);
	assert_int_equal(verbs->step(dial), VERBS_ANSWERED);
	assert_memory_equal(verbs->message(dial, &len), of_b, sizeof(*of_b));
	verbs->meet(dial, of_b);
	verbs->end(dial);
	verbs->end(offer);
	assert_int_equal(verbs->pump(a, 0), 0);
	assert_int_equal(verbs->pump(b, 0), 0);
	assert_int_equal(verbs->pump(a, 0), 0);
}

static inline struct far_pair *far_open(uint32_t ring_bytes)
{
	struct far_pair *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	far_join(&p->a, &p->of_a, &p->b, &p->of_b, ring_bytes);
	return p;
}

static inline void far_close(struct far_pair *p)
{
	verbs->close(&p->a);
	verbs->close(&p->b);
	munmap(p, sizeof(*p));
	assert_int_equal(fake_live(), 0);
	assert_int_equal(fake.overruns, 0);
}

static inline uint64_t far_count(const struct ring_link *link, size_t offset)
{
	return load_relaxed((_Atomic uint64_t *)((uintptr_t)verbs->counts(link) + offset));
}
#define COUNT(link, field) far_count(link, offsetof(struct verbs_counts, field))

/* Of a test. */
static inline int fresh(void **state)
{
	fake_reset();
	return 0;
}

static inline struct ibv_qp *qp_of(const struct ring_link *link)
{
	return engine_of(link)->qp;
}

static inline bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* A byte stream that tells where it is. */
static inline uint8_t byte_at(uint64_t pos)
{
	return (uint8_t)(pos * 7 + (pos >> 8) * 31 + (pos >> 16));
}

static inline size_t far_put(struct ring_link *link, size_t len)
{
	uint8_t buf[65536];
	uint64_t pos = link->tx.tail_pos;
	ssize_t sent;

	for (size_t i = 0; i < len; i++)
		buf[i] = byte_at(pos + i);
	sent = link->ops->send(link, buf, len);
	assert_true(sent >= 0);
	return (size_t)sent;
}

static inline size_t far_take(struct ring_link *link, size_t len)
{
	uint8_t buf[65536];
	uint64_t pos = link->rx.head_pos;
	ssize_t got = link->ops->recv(link, buf, len);

	assert_true(got >= 0);
	for (ssize_t i = 0; i < got; i++)
		assert_int_equal(buf[i], byte_at(pos + (uint64_t)i));
	return (size_t)got;
}

#endif
