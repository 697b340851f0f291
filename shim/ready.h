/* SPDX-License-Identifier: MIT */
/*
 * Readiness of connections whose bytes do not all come through the kernel. READINESS.md has the whole picture; this is
 * what the rest of the shim calls.
 *
 * A connection is *adopted* from the moment its segment is agreed on: from then on the kernel's word about its fd is not
 * the program's (frames look like data, the send buffer of an idle socket looks like room), and poll, select and epoll
 * derive their answer from the rings and the kernel together. Before that they are the kernel's own.
 */
#ifndef RINGWAY_SHIM_READY_H
#define RINGWAY_SHIM_READY_H

#include <stdbool.h>
#include <stdint.h>

struct conn;

/*
 * Called by the rendezvous when both bells exist and before the peer is told that we agree. Takes the connection's
 * registrations out of the program's epoll sets and under derivation. May be called with both lane locks held, and so waits
 * for a set's lock briefly only, as all of these do. 0, or why it cannot be now, in which case nothing has changed:
 *   -EAGAIN   a one-shot registration whose state only the kernel knows; possible after the program's next EPOLL_CTL_MOD.
 *             Or a set is locked for long
 *   -EXDEV    a registration under a number that the connection no longer has in this process
 *   -EMFILE, -ENOMEM, -ELOOP and others of the kernel: no room for the inner set
 */
int ready_adopt(struct conn *c);

/*
 * Before the peer is troubled: would ready_adopt() be refused for a one-shot registration? Then that one is taken in with the program's next EPOLL_CTL_MOD,
 * before there is a link.
 */
bool ready_waits_to_be_armed(struct conn *c);
bool ready_is_adopted(const struct conn *c);

/* The opposite: the link came to nothing, or both lanes are back on TCP. Registrations return to the kernel. -EAGAIN: not all just now. */
int ready_disown(struct conn *c);

/*
 * Both lanes are back, and the link goes: as ready_disown(). But where a registration is edge-triggered they all stay under derivation, without bells: the kernel, which would
 * take it for a new one, would tell once more of what holds.
 */
int ready_part(struct conn *c);
/* A rendezvous has come to nothing: the one or the other. */
int ready_link_over(struct conn *c);

/*
 * Something may have made the connection readable or writable, or ended it, without a ring of its bells and without an
 * edge on its TCP socket: a lane changed roads, this process wrote or took the frame that did it, a waiter drained the
 * bells for somebody else. Callable with any lock held and from a signal handler; never blocks.
 */
void ready_changed(struct conn *c);

/*
 * The number `fd` of the connection is about to be closed by this process (`last`: no other number of this process
 * names it). Called before the kernel's close, because a registration can only be removed under a living number.
 */
void ready_forget(struct conn *c, int fd, bool last);

/* The connection is dissolved, and its socket lives on under its numbers, which still name c: the caller holds it. */
void ready_dissolved(struct conn *c);

/* The record is a new connection's: what a rendezvous that came too late has noted of the former one is forgotten. */
void ready_opened(struct conn *c);

/*
 * The rendezvous waits for `fd` (hidden) to become readable: it joins, or leaves, every wait for the connection. False: not every one, so to be
 * said again. One that it does not leave it leaves when it is closed.
 */
bool ready_watch(struct conn *c, int fd);
void ready_unwatch(struct conn *c, int fd);

#endif
