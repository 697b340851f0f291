/* SPDX-License-Identifier: MIT */
/*
 * A double of libibverbs and librdmacm that works between processes: what its parts have in common. README.md says what it models.
 *
 * The adapter of a process is one piece of shared memory: its registrations, completion queues and queue pairs. A process that is connected to
 * another one maps the other's adapter. There is no thread: a work request is executed in the call that posts it, or in a call of the peer
 * that makes it possible.
 */
#ifndef RINGWAY_TESTS_VERBS_DOUBLE_H
#define RINGWAY_TESTS_VERBS_DOUBLE_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include "ringbuf/atomic.h"

enum {
	ADAPTER_MAGIC = 0x56443031,
	QPS_MAX = 1024,
	CM_RETRY_MS = 4700, /* as with soft-RoCE */
	CQS_MAX = 1024,
	MRS_MAX = 8192,
	SENDS_MAX = 256,
	RECVS_MAX = 256,
	CQES_MAX = 512,
	INLINE_MAX = 128,
	CHANNEL_NAME = 80,
	ROOM_MAX = 48,
};

/* ---- shared: what a peer's process sees of this one's adapter ---- */

/* The pid of who holds it. Taken from a process that has died. */
struct double_lock {
	_Atomic uint32_t holder;
};

struct shared_mr {
	uint64_t addr, length;
	_Atomic uint32_t key; /* 0: free; below MRS_MAX: being made */
	uint32_t access, pd;
};

struct shared_cqe {
	struct ibv_wc wc;
	uint32_t sends_done; /* of the queue pair wc.qp_num: its slots before this one are free */
	bool is_send;
};

struct shared_cq {
	struct double_lock lock; /* of who puts in */
	uint32_t entries;
	_Atomic uint64_t cookie; /* 0: there is none; below CQS_MAX: one is being made */
	_Atomic uint32_t head, tail;
	_Atomic uint32_t armed;  /* ARMED_* */
	uint8_t channel_len;     /* the name of the channel's socket, 0: it has none */
	char channel[CHANNEL_NAME];
	struct shared_cqe ring[CQES_MAX];
};

enum { ARMED_NOT, ARMED_ANY, ARMED_SOLICITED };

struct shared_send {
	uint64_t wr_id, addr, remote_addr;
	uint32_t opcode, flags, imm_data, length, lkey, rkey;
	uint8_t inlined[INLINE_MAX];
};

struct shared_recv {
	uint64_t wr_id, addr;
	uint32_t length, lkey;
};

struct shared_qp {
	/*
	 * Held by who executes our work requests, us or the peer; the peer's receive queue is emptied under it too. Order: this one, then a
	 * completion queue's.
	 */
	struct double_lock lock;
	_Atomic uint32_t again; /* who holds the lock goes round once more */
	_Atomic uint32_t state; /* enum ibv_qp_state */
	_Atomic uint32_t number; /* 0: there is none; below QPS_MAX: one is being made */
	uint32_t peer_number;
	uint32_t send_cq, recv_cq, pd;
	uint32_t max_sends, max_recvs;
	_Atomic uint32_t sends_done;            /* slots given back by a completion that was polled */
	_Atomic uint32_t sends_head, sends_tail; /* executed; posted */
	_Atomic uint32_t recvs_head, recvs_tail;
	struct shared_send sends[SENDS_MAX];
	struct shared_recv recvs[RECVS_MAX];
};

struct adapter {
	uint32_t magic;
	uint32_t bytes;
	uint64_t nonce;
	struct shared_mr mrs[MRS_MAX];
	struct shared_cq cqs[CQS_MAX];
	struct shared_qp qps[QPS_MAX];
};

/* ---- of this process ---- */

/* Another process's adapter, mapped here; or our own. */
struct far_adapter {
	struct adapter *memory;
	int pid;
	int users;
	struct far_adapter *next;
};

struct double_channel {
	struct ibv_comp_channel channel;
	uint8_t name_len;
	char name[CHANNEL_NAME];
	int cqs;
};

struct double_cq {
	struct ibv_cq cq;
	uint32_t index;
	struct double_lock polling;
	unsigned unacked;
	int qps;
	uint64_t looks; /* in vain at the completion looked_at, where they are late; `polling` has it */
	uint32_t looked_at;
};

/* Where the executor stopped, and why. */
enum stop {
	STOP_EMPTY,
	STOP_NOT_READY,  /* the peer has no receive request */
	STOP_SILENT,     /* nothing acknowledges: the path, the queue pair or the process is gone */
};

struct double_qp {
	struct ibv_qp qp;
	uint32_t index;
	struct far_adapter *far; /* connected to a queue pair of this one */
	uint32_t far_index;
	int wire;                /* readable when the peer has gone; -1 */
	uint8_t retries, rnr_retries;
	uint64_t timeout_ns;
	/* Since when the first work request waits, 0: it does not; and how often it was tried. */
	_Atomic uint64_t waits_since;
	uint32_t tries;
	/* The connection manager's: something waits, look again in so many nanoseconds. */
	void (*look_again)(struct double_qp *qp, uint64_t delay_ns);
	void *owner;
};

struct double_mr {
	struct ibv_mr mr;
	uint32_t index;
};

struct double_pd {
	struct ibv_pd pd;
	int users;
};

/* settings.c: VERBS_DOUBLE in the environment, and the file that it may name. */
struct double_settings {
	bool no_device, no_route, iwarp;
	bool nonce;                /* of our requests and answers is another one */
	char only[256];            /* addresses that have a device, separated by '+'; empty: every local one */
	char room[ROOM_MAX];       /* the directory of its sockets; empty: they have abstract names */
	uint64_t memlock;          /* bytes that can be registered at a time */
	uint32_t max_qps, max_inline;
	uint64_t fail_post, remove_at, lose_at, forget_at, rnr_at; /* the n-th call of ibv_post_send in this process; 0: none */
	uint64_t spoil, cut;       /* of the private data of our requests and answers: the byte that is wrong, how many are sent; UINT64_MAX: none, all */
	uint64_t late;             /* looks at a queue before a completion of the send queue is seen there */
	uint64_t timeout_ms;       /* instead of what the connection asks for; 0: none */
	uint64_t cm_delay_ms;      /* before an event of a connection is told */
	uint64_t cm_retry_ms;      /* before a request or an answer that was lost is said again */
	const volatile char *control; /* what the file says now */
	char control_path[256];
	/* counted, in this process */
	_Atomic uint64_t posts, pinned;
	_Atomic uint32_t live_qps;
};
extern struct double_settings settings;
void settings_read(void);
bool path_is_lost(void);
/* What we send finds no receive request of the peer's any more, and does not wait for one. */
bool receives_are_lost(void);
bool device_is_removed(void);
void device_remove(void);
/* The connection manager's: from within this process, with no lock held but a queue pair's. */
extern void (*device_has_gone)(void);
/* A descriptor that is readable once the file has changed; -1: there is no file. Each asks for its own: epoll sets have few ways to one file. */
int control_watch(void);
/* Misuse that a real device answers with undefined behaviour or a hang: said on standard error, and counted. */
void misuse(const char *what);

/* verbs.c: from now on nobody else reaches what is registered here. */
void mrs_forget(void);

/* adapter.c */
extern struct adapter *own;
/* The adapter of this process, made at the first call; false: there is no device. */
bool adapter_open(void);
/* A forked child has another adapter than its parent, and nothing of what was made with that. `of` says with which it was. */
void adapter_anew(uint64_t *of, void (*make_anew)(void));
int adapter_fd(void);
struct ibv_context *adapter_context(void);
/* Takes the descriptor. NULL: not an adapter. Of our own process: `own`. */
struct far_adapter *far_open(int fd, int pid);
void far_close(struct far_adapter *far);
/* 0, or -EFAULT, -ESRCH (dead), -EPERM. Pid 0: this process. */
int copy_memory(int to_pid, uint64_t to, int from_pid, uint64_t from, uint64_t length);
bool process_is_dead(int pid);
/* A descriptor of our own out of the program's way; forked children do not have it. */
int hide_fd(int fd);
void close_hidden(int fd);
uint64_t now_ns(void);
void lock_take(struct double_lock *lock);
bool lock_try(struct double_lock *lock);
void lock_drop(struct double_lock *lock);
/* The registration that the key names, if it allows this. */
bool mr_allows(struct adapter *a, uint32_t key, uint32_t pd, uint64_t addr, uint64_t length, int access);

/* cq.c */
void cq_put(struct adapter *a, uint32_t index, const struct ibv_wc *wc, const struct shared_qp *of_send, uint32_t sends_done, bool solicited);
int cq_poll(struct ibv_cq *cq, int most, struct ibv_wc *wc);
int cq_arm(struct ibv_cq *cq, int solicited);

/* qp.c: calls of the connection manager. */
int qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, struct double_qp **out);
void qp_destroy(struct double_qp *q);
void qp_connect(struct double_qp *q, struct far_adapter *far, uint32_t index, uint32_t number);
void qp_fail(struct double_qp *q);
/* The clock, or something that may have changed: when to look the next time, 0: nothing waits. */
uint64_t qp_look(struct double_qp *q);
int qp_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int qp_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* execute.c */
struct side {
	struct adapter *memory;
	struct shared_qp *qp;
	int pid; /* 0: this process */
};
/* Under from->qp's lock. */
enum stop execute(const struct side *from, const struct side *to);
/* Completes the first work request with an error; the queue pair is in error. Under the lock. */
void fail_first(const struct side *from, enum ibv_wc_status status);
void flush_sends(const struct side *from);
void flush_recvs(const struct side *to);

#endif
