/* SPDX-License-Identifier: MIT */
/*
 * The connector's side: a listener under the connection's own name, and judgement over whoever comes. Strangers cost the
 * offer nothing but a bounded count; only one that the kernel says is the owner of the peer's socket, and that sends a HELLO without a
 * fault, is answered.
 */
#include <errno.h>
#include <sys/socket.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/nego_link.h"
#include "shim/nego_row.h"
#include "shim/ready.h"

enum { BACKLOG = 4, MAX_STRANGERS = 16, MAX_ACCEPTS = 8 };

static int listener_make(const struct nego_tuple *t)
{
	struct nego_address at;
	int rc, fd = nego_link_socket(&at, t);

	if (fd < 0)
		return fd;
	rc = sys_bind(fd, &at.un, at.len);
	if (!rc)
		rc = (int)sys_call2(SYS_listen, fd, BACKLOG);
	if (rc) {
		sys_close(fd);
		return rc;
	}
	return fd;
}

static enum nego_outcome offer_make(struct conn *c, const struct nego_tuple *t, enum reason *why)
{
	enum nego_outcome out;
	struct nego_row *row;
	uint32_t uid;
	int rc = nego_find_peer(c, t, &uid, why);

	if (rc)
		return rc == -EAGAIN ? NEGO_LATER : NEGO_FAILED;
	if (ready_waits_to_be_armed(c)) {
		*why = REASON_ONE_SHOT;
		return NEGO_LATER;
	}
	row = nego_row_claim(c, &out, why);
	if (!row)
		return out == NEGO_FAILED && nego_is_short(c, -EMFILE, *why) ? NEGO_LATER : out;
	rc = nego_hide(listener_make(t), &row->listener);
	if (rc >= 0) {
		c->nego.phase = NEGO_OFFERED;
		return NEGO_LATER;
	}
	nego_row_drop(c);
	/* A name that is taken may belong to an earlier connection of the same addresses whose owner has not noticed its end. */
	if (rc == -EADDRINUSE) {
		*why = REASON_NAME_TAKEN;
		return NEGO_LATER;
	}
	*why = nego_reason_of(rc, REASON_NO_RENDEZVOUS);
	return NEGO_FAILED;
}

/* Refusals. A link that does not take one closes anyway. */
static void answer(int link, enum nego_verdict verdict)
{
	struct nego_verdict_msg v = { .verdict = verdict };
	uint8_t wire[NEGO_VERDICT_SIZE];

	nego_verdict_encode(wire, &v);
	nego_link_send(link, wire, sizeof(wire), -1);
}

/* Is it about this connection, and a segment of a size that we can have? */
static bool hello_fits(struct conn *c, const struct nego_hello *h, const struct nego_tuple *t)
{
	return nego_tuple_equal(&h->tuple, t) && h->ring_bytes <= RING_BYTES_MAX && h->ring_bytes >= RING_BYTES_MIN &&
	       segment_ring_bytes(h->ring_bytes) == h->ring_bytes && h->segment_bytes == SEGMENT_BYTES(h->ring_bytes) &&
	       h->self.read_bytes <= load_relaxed(&c->tx.tcp_bytes);
}

/* The last look before the answer; `segment_fd` stays the caller's. */
static enum nego_outcome hello_take(struct conn *c, int fd, struct nego_row *row, int link, const struct nego_hello *h, int segment_fd,
				    enum reason *why)
{
	struct nego_verdict_msg v = { .verdict = NEGO_AGREE };
	uint8_t wire[NEGO_VERDICT_SIZE];
	/* One that has not counted all of an old link's frames yet, or has counted others. */
	int rc = h->epoch == load_relaxed(&c->switches) ? nego_counts(c, fd, why) : -EAGAIN;

	if (rc) {
		answer(link, rc == -EAGAIN ? NEGO_NOT_NOW : NEGO_COUNTS);
		return rc == -EAGAIN ? NEGO_SOON : NEGO_FAILED;
	}
	rc = nego_row_count(row, why);
	if (!rc)
		rc = nego_row_attach(c, row, (uint32_t)h->ring_bytes, segment_fd, why);
	if (rc == -EAGAIN) {
		nego_row_uncount(row);
		answer(link, NEGO_NOT_NOW);
		return NEGO_SOON;
	}
	if (rc == -EPROTO) {
		nego_row_uncount(row);
		answer(link, NEGO_MALFORMED);
		row->strangers++;
		return NEGO_LATER;
	}
	if (rc) {
		bool full = nego_is_short(c, rc, *why);

		nego_row_uncount(row);
		answer(link, full ? NEGO_FULL : NEGO_RESOURCES);
		return full ? NEGO_LATER : NEGO_FAILED;
	}
	nego_row_self(c, row, &v.self);
	nego_verdict_encode(wire, &v);
	if (nego_link_send(link, wire, sizeof(wire), -1)) {
		/* It has gone: as if it had not come. */
		nego_row_unequip(c, row);
		nego_row_uncount(row);
		row->strangers++;
		return NEGO_LATER;
	}
	nego_row_link(c, row, &h->self);
	return NEGO_LINKED;
}

/* One accepted link of a peer of the right uid. NEGO_SOON with `*silent`: it has said nothing yet; else the caller closes it. */
static enum nego_outcome hear(struct conn *c, int fd, struct nego_row *row, int link, const struct nego_tuple *t, bool *silent,
			      enum reason *why)
{
	uint8_t wire[NEGO_HELLO_SIZE];
	struct nego_hello h;
	enum nego_outcome out = NEGO_LATER;
	int segment_fd, n = nego_link_recv(link, wire, sizeof(wire), &segment_fd);

	*silent = n == -EAGAIN;
	if (*silent)
		return NEGO_SOON;
	if (n == -EMFILE) {
		bool full = nego_is_short(c, n, *why = REASON_NO_FDS);

		answer(link, full ? NEGO_FULL : NEGO_RESOURCES);
		return full ? NEGO_LATER : NEGO_FAILED;
	}
	if (n > 0 && segment_fd < 0 && nego_is_wait(wire, (size_t)n)) {
		*why = REASON_CEILING;
		nego_has_met(c);
		c->nego.peer_short = true;
		return NEGO_LATER;
	}
	if (n <= 0 || segment_fd < 0 || nego_hello_decode(&h, wire, (size_t)n) || !hello_fits(c, &h, t)) {
		row->strangers++;
		if (n) {
			*why = REASON_BAD_HELLO;
			answer(link, NEGO_MALFORMED);
		}
	} else {
		out = hello_take(c, fd, row, link, &h, segment_fd, why);
	}
	if (segment_fd >= 0)
		sys_close(segment_fd);
	return out;
}

/* A row that led to a link is gone with all its sockets. */
static enum nego_outcome hear_silent(struct conn *c, int fd, struct nego_row *row, const struct nego_tuple *t, enum reason *why)
{
	for (int i = 0; i < NEGO_MAX_SILENT; i++) {
		enum nego_outcome out;
		bool silent;

		if (row->silent[i] < 0)
			continue;
		out = hear(c, fd, row, row->silent[i], t, &silent, why);
		if (out == NEGO_LINKED)
			return out;
		if (!silent)
			nego_row_close(c, row, &row->silent[i]);
		if (out == NEGO_FAILED)
			return out;
	}
	return NEGO_LATER;
}

static void keep_silent(struct conn *c, struct nego_row *row, int link)
{
	int *slot = &row->silent[row->next_silent];

	if (*slot >= 0)
		row->strangers++;
	nego_row_close(c, row, slot);
	if (nego_hide(link, slot) >= 0)
		row->next_silent = (row->next_silent + 1) % NEGO_MAX_SILENT;
}

static enum nego_outcome accept_some(struct conn *c, int fd, struct nego_row *row, const struct nego_tuple *t, enum reason *why)
{
	enum nego_outcome out = NEGO_LATER;

	for (int i = 0; i < MAX_ACCEPTS; i++) {
		int link = (int)sys_call4(SYS_accept4, row->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), rc;
		bool silent = false;
		uint32_t uid;

		if (link < 0) {
			if (link != -EAGAIN)
				*why = nego_reason_of(link, REASON_NO_RENDEZVOUS);
			return out;
		}
		rc = nego_find_peer(c, t, &uid, why);
		if (!rc && nego_peer_is(link, uid)) {
			out = hear(c, fd, row, link, t, &silent, why);
		} else if (!rc) {
			row->strangers++;
			*why = REASON_PEER_UID;
		} else if (rc != -EAGAIN) {
			out = NEGO_FAILED;
		}
		if (silent)
			keep_silent(c, row, link);
		else
			sys_close(link);
		if (out == NEGO_LINKED || out == NEGO_FAILED)
			return out;
	}
	return out;
}

enum nego_outcome nego_offer_step(struct conn *c, int fd, const struct nego_tuple *t, enum reason *why)
{
	struct nego_row *row = nego_row_of(c);
	enum nego_outcome heard, came;

	if (!row || row->listener < 0)
		return offer_make(c, t, why);
	heard = hear_silent(c, fd, row, t, why);
	if (heard == NEGO_LINKED || heard == NEGO_FAILED)
		return heard;
	came = accept_some(c, fd, row, t, why);
	if (came == NEGO_LINKED || came == NEGO_FAILED)
		return came;
	return row->strangers >= MAX_STRANGERS ? NEGO_FAILED : came;
}
