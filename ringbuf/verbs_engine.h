/* SPDX-License-Identifier: MIT */
/*
 * Inside the verbs engine: one link. Included by verbs*.c only.
 *
 * A link's state lies in memory that a fork wipes, so that a child finds `live` at 0 and touches nothing. Whoever holds the pump owns all of it but
 * the atomic words.
 */
#ifndef RINGWAY_RINGBUF_VERBS_ENGINE_H
#define RINGWAY_RINGBUF_VERBS_ENGINE_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "ringbuf/verbs.h"
#include "ringbuf/verbs_word.h"

enum {
	SEND_SLOTS = 128,
	RECV_SLOTS = 128,
	RECV_BATCH = 8,
	SLOTS_KEPT = 8,    /* of the send queue: bytes leave them to the rest */
	RECVS_KEPT = 4,    /* of the peer's receive requests */
	RECVS_OWED_MAX = 32, /* as many again at most, for the rest of a ring */
	SIGNAL_EVERY = 32,
	WINDOW = 4,        /* small messages that nothing answered before the gate closes */
	PIECE_MAX = 1 << 15,
	HELD_MAX = 1 << 14, /* so many bytes go out whatever the gate says, and are not counted for it */
	EMPTIES = 64,      /* looks at an empty lane before held bytes are fetched by who does not sleep */
	POLL_BATCH = 16,
	CHAIN_MAX = 16,    /* work requests in one ibv_post_send() */
};

/* What a work request's completion is for: the top byte of its id. The rest counts, so that a completion tells all before it. */
enum verbs_tag {
	TAG_PLAIN,
	TAG_GATE,  /* the gate opens */
	TAG_TAIL,  /* the peer's tail was read */
	TAG_BYTES, /* the peer's bytes were read */
	TAG_GONE,  /* the peer's device has our last message */
	TAG_RECV,
};
#define TAG_SHIFT 56
#define ID_MASK ((UINT64_C(1) << TAG_SHIFT) - 1)

#define ENGINE_LIVE UINT32_C(0x52574531)

/* Read by the peer's device: in a page that holds nothing else. */
struct verbs_shown {
	_Atomic uint64_t tail_pos;
};

enum { WAIT_CHANNEL, WAIT_EVENTS };

struct verbs_batch {
	struct ibv_send_wr wr[CHAIN_MAX];
	struct ibv_sge sge[CHAIN_MAX];
	int nr;
};

struct verbs_link {
	_Atomic uint32_t live;
	_Atomic uint32_t locked, asked; /* the pump */
	_Atomic uint32_t rounds;        /* that it has gone */
	_Atomic uint32_t stop;          /* the pump is to end it */
	_Atomic int32_t dead;           /* -errno; set once */
	_Atomic int32_t told_dead;      /* the same, once what had arrived has been published */
	struct ring_link *link;
	enum lane_index tx_lane;
	uint64_t ring_bytes;
	uint32_t credit_shift;

	/* verbs objects, NULL where not made */
	struct rdma_event_channel *events; /* of the rendezvous; kept for as long as the id lives */
	struct rdma_cm_id *id;
	int wait_fd;                       /* an epoll set: the channel, and the events once the link is up */
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	struct ibv_qp *qp;
	struct ibv_mr *tx_mr, *rx_mr, *box_mr, *shown_mr, *tail_mr;
	uint32_t max_inline;
	bool no_immediates; /* WRITE, then SEND */
	bool up;            /* may post */

	/* the peer */
	uint64_t peer_ring;
	uint32_t peer_ring_key;
	uint32_t peer_shown_key, peer_tx_key;
	uint64_t peer_shown, peer_tx;
	bool have_memory;

	/* sending */
	uint64_t posted_pos;   /* bytes before it have been posted */
	uint64_t head_units;   /* the peer's head, as last told */
	uint64_t head_pos;     /* as far as it may be used */
	bool head_ahead;       /* it counts as far as our bytes are known to have landed */
	uint64_t peer_batches; /* receive requests that the peer has posted, in batches, as last told */
	uint64_t messages;     /* that used them */
	uint64_t wrs, wrs_done;
	uint64_t pos_at[SEND_SLOTS]; /* of each work request: bytes before it have been posted by then */
	uint64_t acked_pos;    /* bytes before it are at the peer */
	uint32_t unsignalled;
	uint32_t burst;        /* small messages in a row that nothing answered */
	bool closed;           /* the gate */
	uint32_t told_announce, told_void, told_ack, told_frames;
	uint32_t attention;    /* of our words, to be sent: bits of a message */
	bool words_due, memory_due, probe_due;
	bool told_gone;        /* the last message: nothing is said behind it */
	bool told_soon;        /* ... is about to be said */
	bool heard_gone;       /* the peer's device has it, whatever has become of the link since */
	bool going;            /* no room is granted any more */
	unsigned patience_ms;  /* with a device that says nothing */
	int64_t silent_since;  /* requests were under way when it was asked, and nothing has completed since; 0: it was not asked */
	uint64_t silent_cqes;  /* ... since so many completions */

	/* receiving */
	uint64_t announced_pos, fetched_pos;
	uint64_t shown_tail;   /* what the front line says */
	uint64_t told_units;   /* our head, as last told */
	uint64_t batches, told_batches;
	uint32_t taken;        /* receive requests used since the last batch */
	uint64_t recvs_back;   /* receive requests that have completed, one way or the other */
	bool held, fetching;
	uint64_t fetch_from, fetch_to; /* while fetching: what is being read from the peer */
	uint32_t empties;
	bool words_came, credit_came;
	uint32_t gone;         /* the peer has gone: what it asks for; 0: it has not */
	uint32_t gone_frames;  /* ... frames of its lane */
	uint64_t gone_left;    /* ... and where TCP goes on with that */

	bool armed;            /* and no event taken since */
	bool came;             /* completions have, since it was armed */
	struct verbs_counts counts;
	struct verbs_shown *shown;
	_Atomic uint64_t peer_tail; /* where a READ puts it */
	uint8_t inbox[RECV_SLOTS][MESSAGE_BYTES] __attribute__((aligned(64)));
	uint8_t outbox[SEND_SLOTS][MESSAGE_BYTES];
};

/* The libraries set errno, and a call that succeeds leaves the program's alone: at the top of whatever the shim calls and they are called from, in front
 * of the first call. */
static inline void errno_back(const int *kept)
{
	errno = *kept;
}
#define KEEPS_ERRNO __attribute__((unused, cleanup(errno_back))) const int kept_errno = errno

static inline struct verbs_link *engine_of(const struct ring_link *link)
{
	struct verbs_link *v = link->tx.bells.engine;

	return v && load_acquire(&v->live) == ENGINE_LIVE ? v : NULL;
}

static inline uint64_t verbs_tail(const struct verbs_link *v)
{
	return v->announced_pos > v->fetched_pos ? v->announced_pos : v->fetched_pos;
}

/* How far the rx ring is free: what the program has taken, or what was spilled for it. */
static inline uint64_t verbs_head(const struct verbs_link *v)
{
	uint64_t head = peer_read_u64(&v->link->rx.ctl->rx.head_pos), spilled = load_unlocked(&v->link->rx.spill_pos);

	return (int64_t)(spilled - head) > 0 ? spilled : head;
}

/*
 * How much of what was taken may be told without more ado, and so overwritten at the sender. Not what was fetched and is not announced: the sender has
 * yet to write it, into the same place here (WORD_AHEAD).
 */
static inline uint64_t verbs_head_announced(const struct verbs_link *v)
{
	uint64_t head = verbs_head(v);

	return head > v->announced_pos ? v->announced_pos : head;
}

/* Bytes of the peer's are on their way into the rx ring, and what is told reaches behind their beginning: it must not arrive before them. */
static inline bool verbs_needs_fence(const struct verbs_link *v)
{
	return v->fetching && v->fetch_from != UINT64_MAX && v->told_units << v->credit_shift > v->fetch_from;
}

static inline uint32_t slots_free(const struct verbs_link *v)
{
	return SEND_SLOTS - (uint32_t)(v->wrs - v->wrs_done);
}

static inline uint64_t receives_known(const struct verbs_link *v)
{
	return v->peer_batches * RECV_BATCH - v->messages;
}

/* verbs.c */
extern const struct ring_far verbs_far;
extern const struct transport_ops verbs_transport;
int verbs_pump(struct ring_link *link, unsigned why);
int verbs_wait_fd(const struct ring_link *link);
int verbs_flush(struct ring_link *link, int limit_ms);
uint64_t verbs_unacked(struct ring_link *link);
const struct verbs_counts *verbs_counts(const struct ring_link *link);
void verbs_stop(struct ring_link *link);
void verbs_close(struct ring_link *link);
/* The first reason stays. No late write lands afterwards. */
void verbs_die(struct verbs_link *v, int err);

/* verbs_poll.c: takes what the queue has, until it is empty. What came is in the private words, not published. */
void verbs_poll(struct verbs_link *v);
/* Takes what made the wait fd readable. */
void verbs_drain(struct verbs_link *v);

/* verbs_post.c */
/* Posts receive requests in batches, as many as were used; `all`: the first ones. 0 or -errno. */
int verbs_post_receives(struct verbs_link *v, bool all);
/* Everything that is due and has room, with one doorbell unless it is more than a chain. `asked`: of enum verbs_why; `fetch`: held bytes are fetched. */
void verbs_post(struct verbs_link *v, unsigned asked, bool fetch);
/* Reads the bytes up to fetch_to into the rx ring. */
void verbs_post_fetch(struct verbs_link *v);

/* verbs_cm.c: a disconnect, or a device that has gone. */
void verbs_look_at_events(struct verbs_link *v);

/* verbs_make.c: the link's rings, bells and queues on the device that `id` has found; all or nothing. */
enum verbs_error verbs_make(struct verbs_link **out, struct ring_link *link, struct rdma_cm_id *id, uint32_t ring_bytes,
			    enum lane_index tx_lane);
void verbs_unmake(struct verbs_link *v);
void verbs_leave(struct ring_link *link);
/* A descriptor that a library has made: *fd follows it out of the program's sight. */
void verbs_hide_fd(int *fd);
/* ... and is about to be closed. */
void verbs_reveal_fd(int fd);
/* Around calls that may close a device. */
void verbs_inside(bool in);
void verbs_set_host(const struct verbs_host *host);
/* Without one the libraries are the program's as well. */
bool verbs_has_host(void);
/* Joins the wait fd, as WAIT_CHANNEL or WAIT_EVENTS. */
bool verbs_wait_for(struct verbs_link *v, int fd, uint32_t which);
/* Ours never blocks, and is not inherited. */
void verbs_set_fd(int fd);
enum verbs_error verbs_error_of(int err, enum verbs_error otherwise);
/* Of a dead link: gives back all that is the device's. One that is being removed waits for this. */
void verbs_release(struct verbs_link *v);


/* verbs_device.c: for each id of ours, whose `context` it uses, once it is bound to a device; and for its end, in the place of rdma_destroy_id(). */
void verbs_device_use(struct rdma_cm_id *id);
void verbs_destroy_id(struct rdma_cm_id *id);
/* The device of this id is being removed. With the last id of ours it is let go of. */
void verbs_device_gone(struct rdma_cm_id *id);
/* The same for those that have gone while nothing of ours was on them, of which nobody tells. */
void verbs_devices_look(void);

#endif
