/* SPDX-License-Identifier: MIT */
/*
 * The acceptor's side: it creates the segment, dials the connector's name and introduces itself. A name that nobody listens on is the
 * common case, a peer without the shim, and costs one refused connect().
 */
#include <errno.h>
#include <sys/socket.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/nego_link.h"
#include "shim/nego_row.h"
#include "shim/options.h"
#include "shim/ready.h"

/* A peer that answers "not now" for ever must not cost for ever. */
enum { MAX_DIALS = 8 };

static int link_dial(const struct nego_tuple *t)
{
	struct nego_address at;
	int rc, fd = nego_link_socket(&at, t);

	if (fd < 0)
		return fd;
	rc = (int)sys_call3(SYS_connect, fd, &at.un, at.len);
	if (rc) {
		sys_close(fd);
		return rc;
	}
	return fd;
}

static int hello_send(struct conn *c, struct nego_row *row, const struct nego_tuple *t, int segment_fd)
{
	struct nego_hello h = {
		.tuple = *t,
		.ring_bytes = row->segment.ring_bytes,
		.segment_bytes = row->segment.bytes,
		.epoch = load_relaxed(&c->switches),
	};
	uint8_t wire[NEGO_HELLO_SIZE];

	nego_row_self(c, row, &h.self);
	nego_hello_encode(wire, &h);
	return nego_link_send(row->link, wire, sizeof(wire), segment_fd);
}

/* There is no room for a link here: the peer is told that somebody comes by again, and that it is not alone. */
static enum nego_outcome put_off(int link)
{
	uint8_t wire[NEGO_WAIT_SIZE];

	nego_wait_encode(wire);
	nego_link_send(link, wire, sizeof(wire), -1);
	return NEGO_LATER;
}

/* Somebody listens, and owns the peer's socket: make what the link needs, all of it, before a word is said. */
static enum nego_outcome introduce(struct conn *c, int fd, struct nego_row *row, const struct nego_tuple *t, enum reason *why)
{
	int segment_fd = -1, rc = nego_counts(c, fd, why);

	if (rc)
		return rc == -EAGAIN ? NEGO_SOON : NEGO_FAILED;
	rc = nego_row_count(row, why);
	if (!rc)
		rc = nego_row_create(c, row, nego_ring_bytes(), &segment_fd, why);
	if (rc == -EAGAIN)
		return NEGO_SOON;
	if (rc)
		return nego_is_short(c, rc, *why) ? put_off(row->link) : NEGO_FAILED;
	rc = hello_send(c, row, t, segment_fd);
	/* A listener that has gone meanwhile is dialled again. */
	if (rc == -EPIPE || rc == -ECONNRESET || rc == -ECONNREFUSED)
		rc = -EAGAIN;
	if (rc && rc != -EAGAIN)
		*why = nego_reason_of(rc, REASON_NO_RENDEZVOUS);
	sys_close(segment_fd);
	if (rc)
		return rc == -EAGAIN ? NEGO_LATER : NEGO_FAILED;
	c->nego.phase = NEGO_DIALLED;
	c->nego.attempts = 0;	/* somebody is there: patience begins anew */
	return NEGO_SOON;
}

static enum nego_outcome dial(struct conn *c, int fd, const struct nego_tuple *t, enum reason *why)
{
	struct nego_row *row;
	enum nego_outcome out;
	uint32_t uid;
	int link, rc, few;

	/* Once, to learn whether the peer is on this host at all; and again below, where the answer must be fresh. */
	if (c->nego.attempts == 1) {
		rc = nego_find_peer(c, t, &uid, why);
		if (rc)
			return rc == -EAGAIN ? NEGO_LATER : NEGO_FAILED;
	}
	if (ready_waits_to_be_armed(c)) {
		*why = REASON_ONE_SHOT;
		return NEGO_LATER;
	}
	/* Before the peer is troubled: a dial that cannot be followed by a word counts against us there. */
	few = nego_row_room(c, why);
	if (few == -EAGAIN)
		return NEGO_LATER;
	if (few && !nego_others_have_links())
		return NEGO_FAILED;
	link = link_dial(t);
	if (link == -ECONNREFUSED || link == -EAGAIN)
		return NEGO_LATER;
	if (link < 0) {
		*why = nego_reason_of(link, REASON_NO_RENDEZVOUS);
		return nego_is_short(c, link, *why) ? NEGO_LATER : NEGO_FAILED;
	}
	rc = nego_find_peer(c, t, &uid, why);
	if (!rc && !nego_peer_is(link, uid)) {
		*why = REASON_PEER_UID;
		rc = -EACCES;
	}
	if (!rc && few) {
		*why = REASON_NO_FDS;
		out = nego_is_short(c, few, *why) ? put_off(link) : NEGO_LATER;
		sys_close(link);
		return out;
	}
	if (!rc && ++c->nego.dials > MAX_DIALS) {
		*why = REASON_PEER_REFUSED;
		rc = -ECONNREFUSED;
	}
	row = rc ? NULL : nego_row_take(c);
	if (!row) {
		sys_close(link);
		return rc && rc != -EAGAIN ? NEGO_FAILED : NEGO_LATER;
	}
	rc = nego_hide(link, &row->link);
	if (rc < 0) {
		*why = nego_reason_of(rc, REASON_NO_FDS);
		out = NEGO_FAILED;
	} else {
		out = introduce(c, fd, row, t, why);
	}
	if (c->nego.phase != NEGO_DIALLED)
		nego_row_drop(c);
	return out;
}

static enum nego_outcome redial(struct conn *c)
{
	nego_row_drop(c);
	c->nego.phase = NEGO_IDLE;
	return NEGO_LATER;
}

static enum nego_outcome hear_verdict(struct conn *c, struct nego_row *row, enum reason *why)
{
	uint8_t wire[NEGO_VERDICT_SIZE];
	struct nego_verdict_msg v;
	int n = nego_link_recv(row->link, wire, sizeof(wire), NULL);

	if (n == -EAGAIN)
		return NEGO_LATER;
	if (!n || n == -ECONNRESET)
		return redial(c);
	if (n < 0 || nego_verdict_decode(&v, wire, (size_t)n)) {
		*why = REASON_BAD_HELLO;
		return NEGO_FAILED;
	}
	switch (v.verdict) {
	case NEGO_AGREE:
		/* It cannot have read what we have not written. */
		if (v.self.read_bytes > load_relaxed(&c->tx.tcp_bytes)) {
			*why = REASON_BAD_HELLO;
			return NEGO_FAILED;
		}
		nego_row_link(c, row, &v.self);
		return NEGO_LINKED;
	case NEGO_FULL:
		*why = REASON_CEILING;
		nego_has_met(c);
		c->nego.peer_short = true;
		return redial(c);
	case NEGO_NOT_NOW:
		return redial(c);
	default:
		*why = REASON_PEER_REFUSED;
		return NEGO_FAILED;
	}
}

enum nego_outcome nego_dial_step(struct conn *c, int fd, const struct nego_tuple *t, enum reason *why)
{
	struct nego_row *row = nego_row_of(c);

	if (row && c->nego.phase == NEGO_DIALLED)
		return hear_verdict(c, row, why);
	return dial(c, fd, t, why);
}
