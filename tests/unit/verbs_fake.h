/* SPDX-License-Identifier: MIT */
/*
 * A double of libibverbs and librdmacm over plain memory, linked in place of both: the few calls that the engine makes, and a device that does
 * exactly what it is told, in this thread. Each queue pair executes its work requests in order; when is up to the test.
 */
#ifndef RINGWAY_TESTS_VERBS_FAKE_H
#define RINGWAY_TESTS_VERBS_FAKE_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>

struct fake {
	bool by_hand;      /* work requests wait for fake_run(); else they are executed when they are posted */
	bool hold_acks;    /* completions of the send queue wait for fake_ack() */
	bool late_reads;   /* what a READ reads is taken when it is executed, and arrives with fake_land() */
	bool iwarp;        /* devices without immediates */
	bool no_device;    /* no address has a device */
	bool no_devices;   /* there is none at all, and rdma_cm does not begin */
	bool no_route;     /* and none leads anywhere */
	bool removed;      /* the device has gone: posting fails, channels hang up */
	unsigned posts_left; /* ... with the n-th post from here on; 0: with none */
	int fail_reg_mr;   /* this errno, from the n-th registration on */
	unsigned reg_mr_left;
	unsigned ack_timeout; /* that was asked for: 4.096 us, so many times doubled */
	/* what happened */
	unsigned rnr;      /* messages that found no receive request */
	unsigned overruns; /* completion queues that overflowed, send queues that were posted to when full */
	unsigned outside;  /* accesses that a key did not allow */
};
extern struct fake fake;

void fake_reset(void);
/* Executes up to `most` work requests of the queue pair. The number. */
int fake_run(struct ibv_qp *qp, int most);
/* Both ends until nothing moves any more. */
void fake_settle(void);
/* Lets held acknowledgements through. */
void fake_ack(struct ibv_qp *qp);
/* The device under it is about to go, and waits until nobody uses it. */
void fake_remove(struct rdma_cm_id *id);
/* What the queue pair has read arrives. */
void fake_land(struct ibv_qp *qp);
/* The next work request to be executed fails; then the queue pair is in error, as is the peer's. */
void fake_fail(struct ibv_qp *qp, enum ibv_wc_status status);
/* Says a message to the queue pair's peer as a hostile engine would: the immediate, or 32 bytes. */
void fake_say_word(struct ibv_qp *from, uint32_t word);
void fake_say(struct ibv_qp *from, const void *bytes, uint32_t len);
/* Things made and not destroyed. */
int fake_live(void);

#endif
