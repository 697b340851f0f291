/* SPDX-License-Identifier: MIT */
/*
 * The double's half of librdmacm. Ids talk over connected unix sockets: the name of a listener's is made of its address and port, and the end
 * of a process is the end of its sockets.
 */
#ifndef RINGWAY_TESTS_VERBS_DOUBLE_CM_H
#define RINGWAY_TESTS_VERBS_DOUBLE_CM_H

#include <rdma/rdma_cma.h>

#include "double.h"

enum {
	REQUEST_DATA = 56, /* what RDMA_PS_TCP leaves */
	ANSWER_DATA = 196,
	REFUSAL_DATA = 148,
	EVENT_DATA = 224,
};

enum id_state {
	ID_NEW,
	ID_BOUND,
	ID_LISTENS,
	ID_RESOLVED,
	ID_ROUTED,
	ID_ASKS,     /* has sent a request */
	ID_CALLED,   /* the wire of a request that has not been read yet */
	ID_ASKED,    /* its request is with the program */
	ID_ANSWERED, /* has sent an answer */
	ID_UP,
	ID_LEAVES,   /* has said that it goes, and was not answered */
	ID_OVER,
};

struct cm_id {
	struct rdma_cm_id id;
	struct cm_id *next;  /* of the channel */
	enum id_state state;
	int fd;              /* the listener's socket, or the wire to the other id; -1 */
	bool watched;        /* is in the channel's epoll set */
	struct far_adapter *far;
	uint32_t far_index, far_number;
	uint8_t retries, rnr_retries, timeout;
	unsigned unacked;
	bool told_removal;
	struct cm_id *listener; /* that was called, until the program has the id */
	struct wire *lost;      /* a request or an answer that was lost on its way, and is said again */
	uint64_t again_at;      /* ... then */
	unsigned tries;         /* ... so many times more */
};

struct cm_event {
	struct rdma_cm_event event;
	struct cm_event *next;
	uint64_t due; /* 0: at once */
	uint8_t data[EVENT_DATA];
};

struct cm_channel {
	struct rdma_event_channel channel; /* an epoll set: the wires, the clock, the device */
	struct cm_id *ids;
	struct cm_event *first, *last;
	struct double_lock lock;
	int clock, control;
	struct cm_channel *next;
	struct double_lock clock_lock;
	uint64_t clock_at; /* 0: stands */
};

enum wire_kind { WIRE_REQUEST = 1, WIRE_ANSWER, WIRE_READY, WIRE_REFUSAL, WIRE_LEAVE, WIRE_LEFT };

struct wire {
	uint32_t kind;
	uint32_t qp_index, qp_number;
	uint8_t retries, rnr_retries, timeout, responder_resources, initiator_depth, length;
	struct sockaddr_in6 from, to;
	uint8_t data[EVENT_DATA];
};

/* cm_events.c; the channel's lock is held. */
struct cm_event *cm_push(struct cm_id *id, enum rdma_cm_event_type type, int status);
void cm_watch(struct cm_id *id);
void cm_unwatch(struct cm_id *id);
/* Forgets what is queued of it. */
void cm_forget(struct cm_id *id);
void cm_clock_set(struct cm_channel *ch, uint64_t at);

/* cm.c */
struct cm_id *cm_new_id(struct cm_channel *ch, enum rdma_port_space ps);
void cm_drop_id(struct cm_id *id);
void cm_link_qp(struct cm_id *id);
int cm_say(struct cm_id *id, struct wire *w, bool with_adapter);
/* What was lost is said again, if it is time. */
void cm_say_again(struct cm_id *id);

/* cm_address.c */
size_t address_bytes(const struct sockaddr *addr);
bool address_is_local(const struct sockaddr *addr);
bool address_has_device(const struct sockaddr *addr);
/* Is there a way to it? In a room to every address, since a far one is another namespace's. */
bool address_is_reachable(const struct sockaddr *addr);
/* A hidden socket bound to the listener's name, or -errno. A port of 0 is filled in. */
int address_bind(struct sockaddr *addr);
/* What is left of the name when the socket has gone. */
void address_unbind(const struct sockaddr *addr);
/* A hidden wire to who listens there, or -errno. */
int address_connect(const struct sockaddr *addr);
uint16_t address_any_port(void);

/* nonce.c: a message of Ringway's that is right in all it says, but for whose it is. */
void say_another_nonce(struct wire *w);

#endif
