/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_DIAG_H
#define RINGWAY_DIAG_H

/*
 * What the kernel knows about a TCP connection: who owns the socket at an exact 4-tuple (NETLINK_SOCK_DIAG), and how many
 * bytes have passed through a socket of ours (TCP_INFO, SIOCINQ, SIOCOUTQ). Works without privileges. Never blocks: the kernel
 * answers a look-up inside the request's own sendto().
 */

#include <stdbool.h>
#include <stdint.h>

#include "shim/nego_msg.h"

struct diag_socket {
	uint32_t uid;
	uint32_t inode;		/* 0: nobody has accepted it, or it is being closed */
	uint64_t cookie;
	bool open;		/* bytes can still flow in one direction at least */
};

enum diag_side { DIAG_CONNECTOR, DIAG_ACCEPTOR };

/*
 * Looks up the socket at one side of the connection, in this network namespace. `scope` is the interface of a link-local
 * address, else 0. Returns 0; -ENOENT if no socket has exactly this 4-tuple (or the kernel has no look-up: the caller tells the
 * two apart by asking for its own socket); any other -errno if the kernel refuses to say.
 */
int diag_lookup(struct diag_socket *out, const struct nego_tuple *t, enum diag_side side, uint32_t scope);

/* Program bytes as the kernel counts them; SYN and FIN, which it counts as bytes here and there, are taken off. */
struct diag_bytes {
	uint64_t written;	/* given to TCP by us, acknowledged or not */
	uint64_t read;		/* taken from TCP by us */
	bool writable;		/* connected, and we have not ended our direction */
	bool readable;		/* connected, and the peer has not ended its direction */
};

/*
 * The counts of our own socket. They are exact only while nobody reads or writes it, so the caller holds both lane locks.
 * Returns 0; -EAGAIN if acknowledgements or data kept moving while we looked; another -errno if the kernel does not tell.
 */
/* Has the peer's FIN, or a reset, come in? (What it cannot tell counts as yes.) */
bool diag_peer_ended(int fd);
int diag_counts(int fd, bool connector, struct diag_bytes *out);

/* True if `uid` as the kernel reported it names one user: not so for the overflow uid in a user namespace that maps not all. */
bool diag_uid_is_exact(uint32_t uid);

#endif
