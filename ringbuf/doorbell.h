/* SPDX-License-Identifier: MIT */
/*
 * Bells: how a sleeper is woken. A bell is a NETLINK_USERSOCK socket of the sleeper, which the peer reaches by its port
 * number. Its filter lets in only datagrams that start with the bell's random key, so a stranger's datagram vanishes in
 * the kernel. It is readable while rung; it wakes ppoll, select and epoll like any socket.
 *
 * Not an eventfd: both ends would hold one open file, and a hostile peer could clear O_NONBLOCK or fill the counter, so
 * that our write blocks. Not a unix datagram socket: its queue holds the sender's credentials and its sockets are in
 * flight when the fds travel. A netlink bell shares nothing: the peer holds a number, no file.
 */
#ifndef RINGWAY_RINGBUF_DOORBELL_H
#define RINGWAY_RINGBUF_DOORBELL_H

#include "ringbuf/atomic.h"

/* What somebody needs to ring a bell; travels to the peer. Port 0 is nobody's: ringing it is a no-op. */
struct bell_address {
	uint64_t key;
	uint32_t port;
	uint32_t reserved;
};

/* A random key from the kernel. 0 or -errno. */
int bell_key(uint64_t *key);

/*
 * A new bell that listens for `key`: its fd (close-on-exec, non-blocking) or -errno, and its port. The number of the fd
 * is the lowest free one; the shim moves it up among its own.
 */
int bell_create(uint64_t key, uint32_t *port);

/*
 * Rings the peer's bell from `fd`, any bell of our own. Never blocks. 0 where the peer will wake or needs no
 * waking: a full receive buffer counts as rung. -ECONNREFUSED when nobody has the port any more, which
 * shows on the TCP socket, too; any other -errno means that a sleeper sleeps on.
 */
int bell_ring(int fd, const struct bell_address *to);

/*
 * Takes what was rung; the bell is not readable afterwards, but for rings that come meanwhile. Never blocks; bounded
 * even while somebody rings without end. The number of datagrams taken.
 */
unsigned bell_drain(int fd);

/* Of this process, for tests and statistics. */
struct bell_counts {
	_Atomic uint64_t rings;
	_Atomic uint64_t full;   /* of those, found a full buffer */
	_Atomic uint64_t drains; /* system calls spent draining */
};
extern struct bell_counts bell_counts;

#endif
