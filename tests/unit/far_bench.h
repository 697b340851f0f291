/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_FAR_BENCH_H
#define RINGWAY_TESTS_FAR_BENCH_H

/* conn_bench.h's two connections, linked as if they were on two hosts: the real engine over the double of verbs_fake.h. */

#include "tests/unit/conn_bench.h"
#include "tests/unit/verbs_fake.h"

#define FAR_BENCH_RING 4096

/* In place of bench_link(). */
void bench_link_far(struct bench *b);
void bench_link_far_of(struct bench *b, uint32_t ring_bytes);
/* The same with a device that is in use already. */
void bench_join_far(struct bench *b, uint32_t ring_bytes);
/* A pair that has switched. */
struct bench bench_open_far(void);
/* conn_recv(), until it says something else than "not yet". */
ssize_t bench_receive(struct conn *c, int fd, char *buf, size_t len);
ssize_t bench_end_of(struct conn *c, int fd);
void bench_gets(struct conn *c, int fd, const char *text);
/* In place of bench_close(): nothing of the device's is left. */
void bench_close_far(struct bench *b);

#endif
