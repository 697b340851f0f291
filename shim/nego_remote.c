/* SPDX-License-Identifier: MIT */
/*
 * The rendezvous between hosts, a step a poke: the connector listens on the connection's own address in RDMA's port space, the acceptor dials it. What
 * an attempt has in hand is the engine's; here is who may be agreed with, and why not.
 *
 * An acceptor makes its queues and pins its rings before it knows that anybody listens, since a dial carries where they are. Hosts where nobody ever
 * did are therefore remembered for a while, and left alone.
 */
#include "shim/nego_remote.h"

#include <errno.h>
#include <linux/socket.h>
#include <string.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/clock.h"
#include "shim/far.h"
#include "shim/handler.h"
#include "shim/nego_remote_msg.h"
#include "shim/options.h"
#include "shim/own_fd.h"
#include "shim/ready.h"

enum {
	MAX_DIALS = 8,		/* of a peer that says no */
	MAX_STRANGERS = 16,
	NEAR_DIALS = 4,		/* of a peer that is known, before it is left alone for a while */
	FDS = 5,		/* two channels, what waits for both, two bells */
};

/* Pinning is ours to pay, so a dialler may not ask for any size. */
#define RING_MOST (UINT32_C(1) << 26)
#define RING_ASKED_MOST (UINT32_C(1) << 20)	/* it is pinned, and a program may ask for any buffer */

/* ---- hosts that have never answered -------------------------------------------------------------------------------- */

enum { SILENT_HOSTS = 64, SILENT_AFTER = 3 };
#define SILENT_NS UINT64_C(10000000000)

static struct silent_host {
	uint8_t address[16];
	uint32_t times;		/* attempts in a row that nobody answered */
	uint64_t until_ns;
} silent_hosts[SILENT_HOSTS];
/* Only tried: who finds it taken does without. */
static _Atomic int silent_lock;

/* In the form that nego_tuple_make() gives an address, so that a mapped one is the one that it stands for. */
static void peer_address(const struct conn *c, uint8_t out[16])
{
	const struct sockaddr_in6 *in6 = &c->peer.in6;

	memset(out, 0, 16);
	if (c->peer.any.sa_family == AF_INET)
		memcpy(out, &c->peer.in.sin_addr, 4);
	else if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
		memcpy(out, in6->sin6_addr.s6_addr + 12, 4);
	else
		memcpy(out, &in6->sin6_addr, 16);
}

/* Its entry, or with `make` the place of the oldest. */
static struct silent_host *silent_find(const uint8_t address[16], bool make)
{
	struct silent_host *oldest = silent_hosts;

	for (int i = 0; i < SILENT_HOSTS; i++) {
		if (!memcmp(silent_hosts[i].address, address, 16))
			return &silent_hosts[i];
		if (silent_hosts[i].until_ns < oldest->until_ns)
			oldest = &silent_hosts[i];
	}
	if (!make)
		return NULL;
	*oldest = (struct silent_host){ 0 };
	memcpy(oldest->address, address, 16);
	return oldest;
}

static bool is_silent(const struct conn *c)
{
	const struct silent_host *h;
	uint8_t address[16];
	bool silent;

	if (exchange(&silent_lock, 1))
		return false;
	peer_address(c, address);
	h = silent_find(address, false);
	silent = h && h->times >= SILENT_AFTER && coarse_ns() < h->until_ns;
	store_release(&silent_lock, 0);
	return silent;
}

static void note_answer(const struct conn *c, bool answered)
{
	struct silent_host *h;
	uint8_t address[16];

	if (exchange(&silent_lock, 1))
		return;
	peer_address(c, address);
	h = silent_find(address, !answered);
	if (answered && h) {
		*h = (struct silent_host){ 0 };
	} else if (h && (h->times < SILENT_AFTER || coarse_ns() >= h->until_ns)) {
		h->times++;
		h->until_ns = coarse_ns() + SILENT_NS;
	}
	store_release(&silent_lock, 0);
}

void nego_remote_over(const struct conn *c, enum reason why)
{
	if (c->nego.remote && why == REASON_PEER_SILENT && !nego_is_known(c))
		note_answer(c, false);
}

/* ---- addresses ----------------------------------------------------------------------------------------------------- */

/* rdma_cm knows no mapped addresses. */
static void plain_address(union conn_addr *out, const union conn_addr *in)
{
	*out = *in;
	if (in->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&in->in6.sin6_addr))
		return;
	*out = (union conn_addr){ .in = { .sin_family = AF_INET, .sin_port = in->in6.sin6_port } };
	memcpy(&out->in.sin_addr, in->in6.sin6_addr.s6_addr + 12, 4);
}

bool nego_remote_may_be(const struct nego_tuple *t)
{
	static const uint8_t loopback[16] = { [15] = 1 };

	if (!(options.transports & TRANSPORT_BIT_VERBS) || !memcmp(t->connector_addr, t->acceptor_addr, 16))
		return false;
	if (t->family == 4)
		return t->connector_addr[0] != 127 && t->acceptor_addr[0] != 127;
	return memcmp(t->connector_addr, loopback, 16) && memcmp(t->acceptor_addr, loopback, 16);
}

/* ---- what both sides do -------------------------------------------------------------------------------------------- */

static enum reason reason_of(enum verbs_error e)
{
	switch (e) {
	case VERBS_NO_DEVICE:
		return REASON_NO_DEVICE;
	case VERBS_NO_ROUTE:
		return REASON_NO_ROUTE;
	case VERBS_MEMLOCK:
		return REASON_MEMLOCK;
	case VERBS_NO_MEMORY:
		return REASON_NO_MEMORY;
	case VERBS_ADDRESS_IN_USE:
		return REASON_NAME_TAKEN;
	case VERBS_NO_LISTENER:
		return REASON_PEER_SILENT;
	case VERBS_REFUSED:
	case VERBS_FULL:
		return REASON_PEER_REFUSED;
	default:
		return REASON_NO_QUEUES;
	}
}

static void unwatch(struct conn *c, struct nego_row *row)
{
	if (row->watched >= 0)
		ready_unwatch(c, row->watched);
	row->watched = -1;
}

/* What nego_row_equip() has done; the link is the engine's to take down, and is blank after that. */
static void unequip(struct conn *c, struct nego_row *row)
{
	if (row->adopted)
		ready_link_over(c);
	own_fd_let_go(row->data_bell);
	own_fd_let_go(row->room_bell);
	row->adopted = false;
	row->data_bell = -1;
	row->room_bell = -1;
	row->segment = (struct segment){ 0 };
}

void nego_remote_drop(struct conn *c, struct nego_row *row)
{
	if (!row->attempt)
		return;
	unwatch(c, row);
	unequip(c, row);
	row->attempt_fd = -1;
	far_engine->end(row->attempt);
	row->attempt = NULL;
	nego_link_blank(c);
}

/* All that this end brings. 0, -EAGAIN for not now, or -errno with the reason in *why; the caller ends the attempt, or refuses the dialler. */
static int equip(struct conn *c, struct nego_row *row, uint32_t ring_bytes, enum lane_index tx_lane, const struct nego_tuple *t,
		 uint8_t wire[NEGO_REMOTE_SIZE], enum reason *why)
{
	struct nego_remote_self self;
	struct verbs_memory own;
	enum verbs_error e;
	int rc;

	if (own_fd_room() < FDS) {
		*why = REASON_NO_FDS;
		return -EMFILE;
	}
	e = far_engine->equip(row->attempt, &c->link, ring_bytes, tx_lane, &own);
	if (e) {
		*why = reason_of(e);
		return -ENOMEM;
	}
	far_engine->set_patience(row->attempt, options.patience_ms);
	self = (struct nego_remote_self){
		.ring_address = own.ring_address,
		.ring_key = own.ring_key,
		.ring_bytes = row->waits ? 0 : ring_bytes,
		.read_bytes = load_relaxed(&c->rx.tcp_bytes),
		.epoch = load_relaxed(&c->switches),
	};
	rc = nego_row_equip(c, row, why);
	if (rc)
		return rc;
	memcpy(self.nonce, row->nonce, sizeof(self.nonce));
	nego_remote_encode(wire, t, &self);
	return 0;
}

static void meet(struct nego_row *row)
{
	struct verbs_memory theirs = {
		.ring_address = row->peer.ring_address,
		.ring_key = row->peer.ring_key,
		.ring_bytes = row->peer.ring_bytes,
	};

	far_engine->meet(row->attempt, &theirs);
}

/* The device has carried a message each way. */
static enum nego_outcome link_up(struct conn *c, struct nego_row *row, enum reason *why)
{
	unwatch(c, row);
	row->attempt_fd = -1;
	far_engine->end(row->attempt);
	row->attempt = NULL;
	if (!c->link.ops) {
		unequip(c, row);
		nego_link_blank(c);
		*why = REASON_NO_MEMORY;
		return NEGO_FAILED;
	}
	note_answer(c, true);
	conn_linked(c, row->nonce, row->peer.nonce);
	nego_row_done(c, row);
	return NEGO_LINKED;
}

/* Is it about this connection, and does it say what can be? */
static bool hear(struct conn *c, struct nego_row *row, const struct nego_tuple *t)
{
	size_t len;
	const void *msg = far_engine->message(row->attempt, &len);

	return !nego_remote_decode(&row->peer, t, msg, len) && row->peer.read_bytes <= load_relaxed(&c->tx.tcp_bytes) &&
	       row->peer.epoch == load_relaxed(&c->switches);
}

/* Begins anew at a later step. */
static enum nego_outcome once_more(struct conn *c)
{
	nego_row_drop(c);
	c->nego.phase = NEGO_IDLE;
	return NEGO_LATER;
}

/* It has failed, but a peer that is known is looked for again: a path that is cut for a while looks like this, and so does the end that was the last to hear of it. */
static enum nego_outcome not_now(struct conn *c, enum reason *why)
{
	if (nego_is_known(c) && *why != REASON_NO_DEVICE) {
		c->nego.dials = 0;
		*why = REASON_PEER_SILENT;
	}
	return NEGO_FAILED;
}

static enum nego_outcome begin(struct conn *c, enum reason *why)
{
	bool offers = c->role == CONN_CONNECTED;
	union conn_addr local, peer;
	enum nego_outcome out;
	struct nego_row *row;
	enum verbs_error e;
	int rc;

	/* The step that found the peer to be on another host. */
	if (handler_inside())
		return NEGO_SOON;
	rc = far_loaded(why);
	if (rc)
		return rc == -EAGAIN ? NEGO_SOON : NEGO_FAILED;
	*why = nego_silent_reason(c);
	if (!nego_is_known(c) && is_silent(c))
		return NEGO_FAILED;
	row = nego_row_claim(c, &out, why);
	if (!row)
		return out == NEGO_FAILED && nego_is_short(c, -EMFILE, *why) ? NEGO_LATER : out;
	plain_address(&local, &c->local);
	plain_address(&peer, &c->peer);
	e = offers ? far_engine->offer(&row->attempt, &local.any) : far_engine->dial(&row->attempt, &local.any, &peer.any);
	if (!e) {
		row->attempt_fd = far_engine->attempt_fd(row->attempt);
		c->nego.phase = offers ? NEGO_OFFERED : NEGO_DIALLED;
		c->nego.dial_ns = coarse_ns();
		return NEGO_LATER;
	}
	row->attempt = NULL;
	nego_row_drop(c);
	*why = reason_of(e);
	/* An earlier connection of the same addresses, whose owner has not noticed its end. */
	return e == VERBS_ADDRESS_IN_USE ? NEGO_LATER : NEGO_FAILED;
}

/* ---- the connector ------------------------------------------------------------------------------------------------- */

/* The dialler is turned away, the offer stands. */
static void refuse(struct conn *c, struct nego_row *row, bool full)
{
	unequip(c, row);
	nego_row_uncount(row);
	far_engine->refuse(row->attempt, full);
	nego_link_blank(c);
}

static enum nego_outcome refuse_stranger(struct conn *c, struct nego_row *row, enum reason *why)
{
	refuse(c, row, false);
	*why = REASON_BAD_HELLO;
	return ++row->strangers < MAX_STRANGERS ? NEGO_LATER : NEGO_FAILED;
}

static enum nego_outcome judge(struct conn *c, int fd, struct nego_row *row, const struct nego_tuple *t, enum reason *why)
{
	uint8_t wire[NEGO_REMOTE_SIZE];
	union conn_addr peer;
	int rc;

	plain_address(&peer, &c->peer);
	if (!far_engine->asked_by(row->attempt, &peer.any) || !hear(c, row, t))
		return refuse_stranger(c, row, why);
	if (!row->peer.ring_bytes) {
		refuse(c, row, false);
		*why = REASON_CEILING;
		nego_has_met(c);
		c->nego.peer_short = true;
		return NEGO_LATER;
	}
	rc = nego_counts(c, fd, why);
	row->undecided = rc == -EAGAIN;
	if (row->undecided)
		return NEGO_SOON;
	if (!rc && row->peer.ring_bytes > RING_MOST && row->peer.ring_bytes > options.ring_bytes) {
		*why = REASON_NO_MEMORY;
		rc = -EFBIG;
	}
	if (!rc)
		rc = nego_row_count(row, why);
	if (!rc)
		rc = equip(c, row, row->peer.ring_bytes, LANE_OF_ATTACHER, t, wire, why);
	/* The dialler shows its nonce, and nobody may answer with it. */
	if (!rc && !memcmp(row->nonce, row->peer.nonce, sizeof(row->nonce)))
		return refuse_stranger(c, row, why);
	if (rc) {
		bool full = nego_is_short(c, rc, *why);

		refuse(c, row, full);
		return full ? NEGO_LATER : rc == -EAGAIN ? NEGO_SOON : NEGO_FAILED;
	}
	meet(row);
	if (far_engine->answer(row->attempt, wire, sizeof(wire)))
		return refuse_stranger(c, row, why);
	c->nego.attempts = 0;	/* somebody is there: patience begins anew */
	return NEGO_SOON;
}

/* Counts that move decide nothing, and move for as long as a stream is saturated: then the other end waits, and they are looked at at each call. */
static enum verbs_step next_step(struct nego_row *row, enum verbs_step undecided)
{
	enum verbs_step step = far_engine->step(row->attempt);

	return step == VERBS_WAIT && row->undecided ? undecided : step;
}

static enum nego_outcome offer_step(struct conn *c, int fd, struct nego_row *row, const struct nego_tuple *t, enum reason *why)
{
	switch (next_step(row, VERBS_ASKED)) {
	case VERBS_ASKED:
		return judge(c, fd, row, t, why);
	case VERBS_UP:
		return link_up(c, row, why);
	case VERBS_FAILED:
		*why = reason_of(far_engine->attempt_error(row->attempt));
		/* The dialler has gone again; the next one finds a new offer. */
		return *why == REASON_NO_DEVICE || ++c->nego.dials > MAX_DIALS ? not_now(c, why) : once_more(c);
	default:
		return NEGO_LATER;
	}
}

/* ---- the acceptor -------------------------------------------------------------------------------------------------- */

/*
 * As large as the buffers that the program had the kernel make, both together: a ring stands for what the kernel keeps at the two ends of a lane. On one host there are
 * overflow rings for what is not read soon, and a larger ring would only take more of the cache.
 */
static uint32_t ring_bytes_for(int fd)
{
	static const int option[] = { SO_SNDBUF, SO_RCVBUF }, lock[] = { SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK };
	uint32_t size = nego_ring_bytes();
	uint64_t asked = 0;
	int locked, bytes;
	socklen_t len = sizeof(locked);

	/* Sizes that the kernel chose itself grow with the stream, and mean nothing. Kernels before 5.14 do not tell them apart. */
	if (options.ring_bytes != OPTION_RING_AUTO || sys_getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locked, &len))
		return size;
	for (int i = 0; i < 2; i++) {
		len = sizeof(bytes);
		if (locked & lock[i] && !sys_getsockopt(fd, SOL_SOCKET, option[i], &bytes, &len) && bytes > 0)
			asked += (uint64_t)bytes;
	}
	while (size < RING_ASKED_MOST && size < asked)
		size <<= 1;
	return size;
}

static enum nego_outcome ask(struct conn *c, int fd, struct nego_row *row, const struct nego_tuple *t, enum reason *why)
{
	uint8_t wire[NEGO_REMOTE_SIZE];
	enum verbs_error e;
	int rc = nego_counts(c, fd, why);

	row->undecided = rc == -EAGAIN;
	if (row->undecided)
		return NEGO_SOON;
	if (rc)
		return NEGO_FAILED;
	/* Who offers is told, and hears of a ring of no size. */
	row->waits = nego_row_count(row, why) != 0;
	rc = equip(c, row, row->waits ? RING_BYTES_MIN : ring_bytes_for(fd), LANE_OF_CREATOR, t, wire, why);
	if (rc == -EAGAIN) {
		once_more(c);
		return NEGO_SOON;
	}
	if (rc)
		return nego_is_short(c, rc, *why) ? once_more(c) : NEGO_FAILED;
	e = far_engine->ask(row->attempt, wire, sizeof(wire));
	if (!e)
		return NEGO_LATER;
	*why = reason_of(e);
	return NEGO_FAILED;
}

static enum nego_outcome dial_failed(struct conn *c, struct nego_row *row, enum reason *why)
{
	enum verbs_error e = far_engine->attempt_error(row->attempt);

	*why = reason_of(e);
	/* A peer that is known comes by again, and then for long enough; but if it has been silent, too, this end may only have been the first. */
	if (e == VERBS_NO_LISTENER || (e == VERBS_REFUSED && nego_is_known(c) && !row->waits)) {
		if (nego_is_known(c) && ++c->nego.again > NEAR_DIALS)
			return not_now(c, why);
		*why = nego_silent_reason(c);
		return once_more(c);
	}
	if (e != VERBS_REFUSED && e != VERBS_FULL)
		return not_now(c, why);
	note_answer(c, true);
	if (e == VERBS_FULL || row->waits) {
		*why = REASON_CEILING;
		nego_has_met(c);
		c->nego.peer_short = e == VERBS_FULL;
		if (row->waits)
			c->nego.short_of = REASON_CEILING;
		return once_more(c);
	}
	return ++c->nego.dials > MAX_DIALS ? NEGO_FAILED : once_more(c);
}

static enum nego_outcome dial_step(struct conn *c, int fd, struct nego_row *row, const struct nego_tuple *t, enum reason *why)
{
	switch (next_step(row, VERBS_ROUTED)) {
	case VERBS_ROUTED:
		return ask(c, fd, row, t, why);
	case VERBS_ANSWERED:
		if (!hear(c, row, t) || row->peer.ring_bytes != row->segment.ring_bytes ||
		    !memcmp(row->nonce, row->peer.nonce, sizeof(row->nonce))) {
			*why = REASON_BAD_HELLO;
			return NEGO_FAILED;
		}
		meet(row);
		return link_up(c, row, why);
	case VERBS_FAILED:
		return dial_failed(c, row, why);
	default:
		return NEGO_LATER;
	}
}

enum nego_outcome nego_remote_step(struct conn *c, int fd, const struct nego_tuple *t, enum reason *why)
{
	struct nego_row *row = nego_row_of(c);

	if (!row || !row->attempt) {
		enum nego_outcome out = begin(c, why);

		/* What is near is resolved at once, and a program that moves megabytes a call makes few. */
		row = nego_row_of(c);
		if (out != NEGO_LATER || !row || !row->attempt)
			return out;
	}
	return c->role == CONN_CONNECTED ? offer_step(c, fd, row, t, why) : dial_step(c, fd, row, t, why);
}
