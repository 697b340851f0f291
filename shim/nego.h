/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_NEGO_H
#define RINGWAY_NEGO_H

/*
 * The rendezvous: how the two ends of a TCP connection that both run the shim find each other on one host, without a byte in
 * the stream, a thread, a daemon or a wait. PROTOCOL.md has every message; this is what the rest of the shim calls.
 *
 * Everything makes progress inside calls that the program makes anyway. No function here blocks, touches errno or allocates
 * from the program's heap. Failure of any kind ends with the connection on TCP and a counted reason.
 */

#include <stdbool.h>
#include <stdint.h>

#include "shim/nego_state.h"

struct conn;

/* Sets the first due point from RINGWAY_AFTER; when the record is made (connect, accept). */
void nego_conn_init(struct nego_part *np);

/*
 * One step of progress on a connection of which nego_due() said yes, or whose nego_wait_fd() became readable. `fd` is any
 * descriptor number of the connection in this process. The caller holds no lane lock: both are tried for here, and if either
 * is taken the step is left for later. At most a few dozen system calls, and none once an attempt has ended; now and then the list of
 * the process's open files besides (unseen.h).
 */
void nego_poke(struct conn *c, int fd);

/* A call on plain TCP has failed with errno. */
void nego_came_back_dry(struct conn *c);

/*
 * The hidden fd that becomes readable when the peer has moved, or -1. A call that is about to sleep on the connection adds
 * it (POLLIN) to what it sleeps on, so that a client blocked in its recv() takes part. Ask again before every sleep.
 */
int nego_wait_fd(const struct conn *c);

/*
 * Ends what is under way and closes its sockets; the offer leaves the name space, and the connection never negotiates again. When
 * it is pinned. The caller holds both lane locks.
 */
void nego_abandon(struct conn *c);

/*
 * This process lets go of the connection (its last close here): ends what it has under way. Another holder may begin anew. The
 * caller holds both lane locks, or is the last in this process to use the connection.
 */
void nego_leave(struct conn *c);

/* In the child of a fork, before any other function here: drops the copies of what the parent has under way. */
void nego_fork_child(void);

#endif
