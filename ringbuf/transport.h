/* SPDX-License-Identifier: MIT */
/*
 * The operations of a transport: what carries the bytes of a connection whose lanes have left TCP. The shim knows a link by
 * this table, so that another transport joins as one more table.
 *
 * A link has a tx lane and an rx lane. Calls on one lane are serialised by its lock; the two lanes are independent. All
 * return a value or -errno; -EPROTO means that the peer lied, other errors that the transport failed; either way the
 * connection is over or back on TCP, and no byte outside the rings has been touched.
 *
 * Where the table costs: an 8-byte send is a copy, a store and a load, and an indirect call through the table would be a
 * third of that. So `struct ring_link` begins with the shared-memory halves themselves, and the shim's hot path calls
 * ring.h's inlines directly where link->ops == &shm_transport; everything else goes through the table.
 */
#ifndef RINGWAY_RINGBUF_TRANSPORT_H
#define RINGWAY_RINGBUF_TRANSPORT_H

#include "ringbuf/lane.h"
#include "ringbuf/ring.h"
#include "ringbuf/segment.h"
#include "ringbuf/wake.h"

struct transport_ops;

struct ring_link {
	const struct transport_ops *ops; /* NULL = no link */
	struct ring_tx tx;
	struct ring_rx rx;
	struct segment segment;
};

/* What one end tells the other in the rendezvous, besides the memfd. */
struct link_bells {
	struct bell_address data; /* rung when bytes arrive for this end */
	struct bell_address room; /* rung when this end's peer has made room */
};

struct transport_ops {
	const char *name; /* "shm", "verbs": the words of `ringway ps` and of RINGWAY_TRANSPORTS */

	/*
	 * The end that accepted creates: an fd for the peer, or -errno. The other end attaches what it was given. Both make
	 * their bells and say in `own` how to reach them; the fds are in tx.bells.bell_fd and rx.bells.bell_fd, and
	 * the caller may move them to other numbers.
	 */
	int (*create)(struct ring_link *link, uint32_t ring_bytes, struct link_bells *own);
	int (*attach)(struct ring_link *link, int fd, uint32_t ring_bytes, struct link_bells *own);
	/* Where the peer's bells are. Until then nobody is rung. */
	void (*meet)(struct ring_link *link, const struct link_bells *peer);
	/* Closes bells and unmaps, in this process. Relatives keep theirs. */
	void (*close)(struct ring_link *link);

	/* Bytes taken or given, 0 = full or empty. Published and notified. */
	ssize_t (*send)(struct ring_link *link, const void *buf, size_t len);
	ssize_t (*recv)(struct ring_link *link, void *buf, size_t len);
	/* Copies without taking, from `offset` bytes past the head. */
	ssize_t (*peek)(struct ring_link *link, size_t offset, void *buf, size_t len);
	ssize_t (*room)(struct ring_link *link, size_t want);   /* bytes that send() would take now */
	ssize_t (*avail)(struct ring_link *link, size_t want);  /* bytes that recv() would give now */
	ssize_t (*queued)(struct ring_link *link);              /* sent and not yet taken by the peer */

	/* See wake.h. The fds to sleep on are link_rx_fd(), link_tx_fd(); readable = woken. */
	bool (*rx_sleep_begin)(struct ring_link *link);
	bool (*tx_sleep_begin)(struct ring_link *link, size_t want);
};

/* What is the same whoever carries the bytes. */

static inline void link_rx_sleep_end(struct ring_link *link, bool rung)
{
	ring_rx_sleep_end(&link->rx, rung);
}

static inline void link_tx_sleep_end(struct ring_link *link, bool rung)
{
	ring_tx_sleep_end(&link->tx, rung);
}

static inline int link_rx_fd(const struct ring_link *link)
{
	return link->rx.bells.bell_fd;
}

static inline int link_tx_fd(const struct ring_link *link)
{
	return link->tx.bells.bell_fd;
}

#endif
