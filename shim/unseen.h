/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_UNSEEN_H
#define RINGWAY_UNSEEN_H

/*
 * Does something in this process wait for its sockets by system calls of its own? Runtimes and libraries that make them inline
 * (Go's, Rust's rustix, liburing) may still read and write through libc, or hand their sockets to code that does. Their waits would
 * never be over once a connection is on a ring.
 *
 * What they wait with is among the open files: an epoll set that no wrapper of ours has made, or an io_uring. A set that was there before us is
 * the leaving of whoever started this program: no runtime of its own can have made it.
 */

#include <stdbool.h>

#include "ringbuf/atomic.h"
#include "ringbuf/stats.h"

#pragma GCC visibility push(hidden)

enum unseen {
	UNSEEN_NONE,
	UNSEEN_MAYBE,	/* ask again later, and move nothing meanwhile */
	UNSEEN_EPOLL,
	UNSEEN_IO_URING,
};

/*
 * Looks through the open files, unless that was done a moment ago: looking takes a sixty-fourth of the time at most. Where they
 * cannot be listed nothing is found. The caller holds no lock.
 */
enum unseen unseen_look(void);

/* Before main: takes note of the sets that are there. */
int unseen_init(void);

/*
 * Around what leaves a set open that is not known, for a moment: it was just made by a call of ours, or is about to be closed by one. `fd` is the number that was
 * concerned, -1 any. begin() returns what end() wants to know.
 */
int unseen_change_begin(void);
void unseen_change_end(int change, int fd);

/* Sets from before main are known by their numbers, as long as none of these is closed. */
extern _Atomic bool unseen_leavings;
void unseen_forget(unsigned int first, unsigned int last);

/* In the child of a fork: another thread of the parent may have been looking. */
void unseen_fork_child(void);

#pragma GCC visibility pop

/* What is there is about to be closed, by whatever call. */
static inline void unseen_closing(unsigned int first, unsigned int last)
{
	if (unlikely(load_relaxed(&unseen_leavings)))
		unseen_forget(first, last);
}

#endif
