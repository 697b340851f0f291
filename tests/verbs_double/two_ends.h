/* SPDX-License-Identifier: MIT */
/*
 * Two processes that know each other by an address only, for tests by verbs alone: one dials, one listens, a pipe each way keeps them in step.
 */
#ifndef RINGWAY_TESTS_VERBS_DOUBLE_TWO_ENDS_H
#define RINGWAY_TESTS_VERBS_DOUBLE_TWO_ENDS_H

/* cmocka.h needs these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <sys/types.h>

enum { BYTES = 8192, SLOTS = 16 };

#define NEED(condition) need(condition, #condition, __LINE__)

/* This process's end, and what it needs. */
extern struct end {
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener, *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	uint8_t *memory;
	uint64_t far_addr;
	uint32_t far_key;
} end;

extern pid_t peer;            /* of who listens */
extern uint8_t rnr_retries;   /* that the dialler asks for */
extern int access_flags;      /* of the memory */

/* Else the process ends with status 1. */
void need(bool good, const char *what, int line);
/* A letter through the pipe to the other process; the next one from it, which must be this. */
void say(char word);
void hear(char word);
/* A whole end that is up: that of who listens, that of who dials. */
void listener(void);
void dialler(void);
/* The steps of these. */
void listen_there(void);
void be_called(void);
void route(void);
void dial(void);
struct rdma_cm_event *next_event(enum rdma_cm_event_type type);
void expect_event(enum rdma_cm_event_type type, int status);
/* With ids from 100 on, all into the first 64 bytes. */
void post_recvs(int count);
/* From or to `off` of our memory, to or from `off` of the peer's. What ibv_post_send() says. */
int post(enum ibv_wr_opcode opcode, uint64_t id, uint64_t off, uint32_t length, unsigned flags);
/* The next completion, slept for. */
void expect_wc(uint64_t id, enum ibv_wc_status status);
/* Of the send queue and the receive queue: in which order is nobody's promise. */
void expect_both(uint64_t one, uint64_t other);
void take_cq_event(void);
bool channel_is_readable(void);
/* Runs the one as the process that is judged, the other as its peer, which may be killed; both in processes of their own. */
void between(void (*ours)(void), void (*theirs)(void));
void take_down(void);

#endif
