/* SPDX-License-Identifier: MIT */
/*
 * Rings between hosts, as the shim sees them (VERBS.md). The engine is an object of its own, libringway-verbs.so, opened at the first use; it
 * exports one table, `ringway_verbs`. No header of libibverbs is needed here.
 *
 * A link belongs to the process that made it: in a forked child every function finds that it has none (-ESRCH), the rings stay
 * readable. No function blocks but verbs_table.flush.
 */
#ifndef RINGWAY_RINGBUF_VERBS_H
#define RINGWAY_RINGBUF_VERBS_H

#include "ringbuf/transport.h"

#define VERBS_ABI 1
#define VERBS_TABLE_SYMBOL "ringway_verbs"

struct sockaddr;
struct verbs_attempt;

/* Counted per link, by the engine alone; readable at any time. */
struct verbs_counts {
	_Atomic uint64_t wr;            /* work requests posted to the send queue */
	_Atomic uint64_t doorbells;     /* ibv_post_send() calls */
	_Atomic uint64_t cqes;          /* completions polled, of both queues */
	_Atomic uint64_t send_cqes;     /* of those, the send queue's */
	_Atomic uint64_t recv_posts;    /* ibv_post_recv() calls */
	_Atomic uint64_t recvs;         /* receive requests posted */
	_Atomic uint64_t messages;      /* that used one of the peer's receive requests */
	_Atomic uint64_t credits;       /* of those, sent for the sake of a credit alone */
	_Atomic uint64_t fetches;       /* tails read from the peer because bytes were held */
	_Atomic uint64_t arms;          /* ibv_req_notify_cq() calls */
	_Atomic uint64_t events;        /* taken from the completion channel */
	_Atomic uint64_t status;        /* enum ibv_wc_status of the first completion that failed, 0: none has */
};

/* What an end tells the other in the rendezvous about where it may write. */
struct verbs_memory {
	uint64_t ring_address;
	uint32_t ring_key;
	uint32_t ring_bytes;
};

/* Why a pump is asked for; 0: something was published or consumed. */
enum verbs_why {
	VERBS_EMPTY = 2,   /* the rx lane was found empty, or the tx lane full */
	VERBS_ARM = 4,     /* about to sleep: whatever comes from now on makes the wait fd readable; the gate holds nothing back */
	VERBS_RUNG = 8,    /* the wait fd was readable */
	VERBS_LEAVE = 16,  /* about to leave for long: nothing at all is held back */
	/* Ask the peer's device for a sign of life: the link is dead soon, or it is not. Asked now and then, if the device itself does not say. */
	VERBS_PROBE = 32,
	VERBS_GOING = 64,  /* nothing will be read any more: from now on the peer is granted no room, as a close grants none */
};

/* What a step of a rendezvous has come to. */
enum verbs_step {
	VERBS_WAIT,      /* nothing yet: when attempt_fd() is readable, or later */
	VERBS_ASKED,     /* offer: somebody dials, message() is what it says; then equip() and answer(), or refuse() */
	VERBS_ROUTED,    /* dial: the peer's device is found; then equip() and ask() */
	VERBS_ANSWERED,  /* dial: agreed, message() is the answer; then meet() */
	VERBS_UP,        /* offer: the dialler has heard the answer; then meet() has been called already */
	VERBS_FAILED,    /* for good: attempt_error() says why */
};

/* What went wrong in a rendezvous, for the reason. */
enum verbs_error {
	VERBS_OK,
	VERBS_NO_DEVICE,  /* no RDMA device for this address, or none at all */
	VERBS_NO_ROUTE,   /* the peer's address is not reached through a device */
	VERBS_NO_LISTENER, /* nobody offers there */
	VERBS_REFUSED,    /* somebody does, and said no */
	VERBS_MEMLOCK,    /* the memory could not be pinned */
	VERBS_NO_MEMORY,
	VERBS_ADDRESS_IN_USE,
	VERBS_SYSTEM,     /* anything else */
	VERBS_FULL,       /* somebody offers there, and has no room just now */
};

#define VERBS_MESSAGE_MAX 56	/* private data of a dial in RDMA_PS_TCP */

/*
 * What who loads the engine may do with the descriptors that it and libibverbs and librdmacm make: move them out of the program's sight. hide() returns the
 * new number, or -errno with the old one left as it was; reveal() comes before one is closed. Both are called once for each.
 */
struct verbs_host {
	int (*hide)(int fd);
	void (*reveal)(int fd);
	/* This thread calls a function of theirs that may close what was hidden, or is back from it. */
	void (*inside)(bool in);
};

struct verbs_table {
	uint32_t abi;
	uint32_t bytes;	/* of this table */

	/* Before all else; NULL: descriptors stay where they are. */
	void (*set_host)(const struct verbs_host *host);

	/* ---- rendezvous ---- */

	/* The end that connected: under the connection's own address. 0, or a VERBS_* error. */
	enum verbs_error (*offer)(struct verbs_attempt **out, const struct sockaddr *local);
	/* The end that accepted. `peer` is the connector's address and port; `local`'s port is not used. */
	enum verbs_error (*dial)(struct verbs_attempt **out, const struct sockaddr *local, const struct sockaddr *peer);
	int (*attempt_fd)(const struct verbs_attempt *a);
	enum verbs_step (*step)(struct verbs_attempt *a);
	enum verbs_error (*attempt_error)(const struct verbs_attempt *a);
	/* Does who dials come from this address? The port says nothing. */
	bool (*asked_by)(const struct verbs_attempt *a, const struct sockaddr *peer);
	const void *(*message)(const struct verbs_attempt *a, size_t *len);
	/*
	 * Makes what this end brings: a segment with rings of `ring_bytes`, registered; queues. `tx_lane` as in layout.h. `link` stays where it
	 * is until close(); the bells' fds are then the caller's to move.
	 */
	enum verbs_error (*equip)(struct verbs_attempt *a, struct ring_link *link, uint32_t ring_bytes, enum lane_index tx_lane,
				  struct verbs_memory *own);
	/* The ring sizes must be equal. After it the link carries bytes as soon as the step said ANSWERED or UP. */
	void (*meet)(struct verbs_attempt *a, const struct verbs_memory *peer);
	/* How long the device tries to reach the peer before the link is dead; before ask() or answer(). A second if it is never called. */
	void (*set_patience)(struct verbs_attempt *a, unsigned ms);
	enum verbs_error (*ask)(struct verbs_attempt *a, const void *msg, size_t len);
	enum verbs_error (*answer)(struct verbs_attempt *a, const void *msg, size_t len);
	/* Offer: turns the dialler away, `full` for want of room, and goes on offering. */
	void (*refuse)(struct verbs_attempt *a, bool full);
	/* Ends an attempt. A link that was met and is up lives on; any other goes with it. */
	void (*end)(struct verbs_attempt *a);

	/* ---- the link ---- */

	/*
	 * 0; -errno where the link is dead, what had arrived having been published: -ECONNRESET where the peer has let go, -EPROTO where it lied,
	 * -ENODEV, -EIO; -ESRCH in a process that did not make it.
	 */
	int (*pump)(struct ring_link *link, unsigned why);
	/* Readable: pump(VERBS_RUNG). -1 in a process that did not make the link. */
	int (*wait_fd)(const struct ring_link *link);
	/*
	 * Waits until the peer's device has acknowledged everything that was published and every word: 0, -ETIMEDOUT after `limit_ms` without
	 * progress, -errno of a dead link.
	 */
	int (*flush)(struct ring_link *link, int limit_ms);
	/* Published bytes that the peer's device is not known to have. Asking makes it acknowledge them. 0 in a process that did not make the link. */
	uint64_t (*unacked)(struct ring_link *link);
	/*
	 * The link is dead from now on (-ESHUTDOWN): no late write lands, and what had arrived is in the ring. Where another thread is in its pump just
	 * now, once that is through: pump() says when.
	 */
	void (*stop)(struct ring_link *link);
	const struct verbs_counts *(*counts)(const struct ring_link *link);
	/*
	 * Takes down all that is the engine's, the wait fd too; the bells and the segment are left. Nobody else uses the link by now. Writes nothing into
	 * `link`, which forked processes may share.
	 */
	void (*leave)(struct ring_link *link);
	/* The same, then the bells and the segment. */
	void (*close)(struct ring_link *link);
};

#endif
