/* SPDX-License-Identifier: MIT */
/*
 * The sleeps of waits of ours: the system call, entered so that a handler that has run since the wait began ends it, whether it runs before or in it (counted.h).
 * Cancellation points. errno is left alone.
 */
#ifndef RINGWAY_SHIM_ASLEEP_H
#define RINGWAY_SHIM_ASLEEP_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#pragma GCC visibility push(hidden)

/*
 * For ns, negative is for ever; `mask` as ppoll() has it; `since` is what counted_now() said. How many are ready; 0: the time is over; -EINTR: nothing is ready, and
 * a handler has run since then, or one that is not counted now; -errno.
 */
int asleep_in_poll(struct pollfd *fds, nfds_t nr_fds, int64_t ns, const sigset_t *mask, uint64_t since);

/* The same on a set. `caged`: the process may make no system calls but those that it is known to make; what comes before the sleep is then forgotten. */
int asleep_in_epoll(int epfd, struct epoll_event *events, int nr_events, int64_t ns, const sigset_t *mask, uint64_t since, bool caged);

#pragma GCC visibility pop

#endif
