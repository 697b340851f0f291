/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TEST_CONN_BENCH_H
#define RINGWAY_TEST_CONN_BENCH_H

/*
 * Two connections of one process over a real TCP connection on the loopback interface, linked by hand: what lies above and
 * beside the core (rendezvous, readiness, log, statistics) is replaced by stand-ins that remember what they were told.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shim/conn.h"

struct bench {
	struct conn *a, *b;	/* a connected, b accepted */
	int a_fd, b_fd;
};

struct told {
	unsigned changed, sleeps, reasons[NR_REASONS];
	uint64_t tcp_tx, tcp_rx, ring_tx, ring_rx;
	uint64_t wr, doorbells, cqes;
	unsigned retreated, switches, retreats;
	bool off;		/* said by bench_off() */
	int no_part;		/* what ready_part() answers */
	void (*looks)(void);	/* asked whether the connection is off, see bench_when_looked() */
	void (*sleeps_for)(int64_t ns);
};
extern struct told told;

int bench_setup_group(void **state);

/* Both non-blocking, so that no test can hang. */
struct bench bench_open(void);
/* The last step of a rendezvous, for links that are made. */
void bench_agree(struct bench *b);
/* The rendezvous, as if it had succeeded. */
void bench_link(struct bench *b);
/* Exchanges a byte each way until both lanes are on the ring. */
void bench_switch(struct bench *b);
/* All of it, and bytes that go by the socket go at once. */
struct bench bench_on_rings(void);
/* As `ringway off` and `on` do. */
void bench_off(bool off);
/* From now on whoever looks whether a connection is to come back, or arms it, does `looks` there; NULL: no more. */
void bench_when_looked(void (*looks)(void));
void bench_close_a(struct bench *b);
void bench_close_b(struct bench *b);
void bench_close(struct bench *b);

#define assert_sends(c, fd, text) \
	assert_int_equal(conn_send(c, fd, text, sizeof(text) - 1, MSG_NOSIGNAL), sizeof(text) - 1)
#define assert_receives(c, fd, text) \
	do { \
		char got_[sizeof(text) + 8] = ""; \
		assert_int_equal(conn_recv(c, fd, got_, sizeof(got_), 0), sizeof(text) - 1); \
		assert_string_equal(got_, text); \
	} while (0)
#define assert_nothing(c, fd) \
	do { \
		char got_[8]; \
		assert_int_equal(conn_recv(c, fd, got_, sizeof(got_), 0), -EAGAIN); \
	} while (0)

/* What whoever gets the descriptor finds in it. */
#define assert_finds(fd, text) \
	do { \
		char got_[sizeof(text) + 64] = ""; \
		assert_int_equal(recv(fd, got_, sizeof(got_), MSG_DONTWAIT), sizeof(text) - 1); \
		assert_string_equal(got_, text); \
	} while (0)
#define assert_finds_nothing(fd) assert_int_equal(recv(fd, &(char){ 0 }, 1, MSG_DONTWAIT), -1)

#endif
