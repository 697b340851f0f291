/* SPDX-License-Identifier: MIT */
/*
 * A vfork child runs in the memory of its parent, which waits for it, and has descriptors of its own: at first a copy of the parent's. So what the fd
 * table says is the parent's, and must stay so. Of what the child does to its numbers as little is noted here as tells, before it becomes another
 * program, which of them are connections. The notes are the thread's, and are over with the exec.
 */
#ifndef RINGWAY_SHIM_VFORK_CHILD_H
#define RINGWAY_SHIM_VFORK_CHILD_H

#include <stdbool.h>

struct conn;

#pragma GCC visibility push(hidden)

/* In the parent: before there is a child; when it has gone. */
void vfork_child_begins(void);
void vfork_child_over(void);

/* ---- In the child. */

/* It has made `copy` of the number `from`, unless that is negative. Returns copy; anywhere else it does no more. */
int vfork_child_copied(int from, int copy);

/* The lowest number of at least `from` that may be a connection's, or -1. */
int vfork_child_next(unsigned int from);

/* The parent's connection whose socket the child has under `fd`, or NULL. */
struct conn *vfork_child_conn(int fd);

/* The next program is to have `fd`: the connection there, if it is one, comes back to TCP if it can, and stays there. */
void vfork_child_hands_on(int fd);

/* O_NONBLOCK of `fd` was set or cleared: it belongs to the file, which the parent has as well. */
void vfork_child_nonblock(int fd, bool on);

#pragma GCC visibility pop

#endif
