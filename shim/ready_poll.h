/* SPDX-License-Identifier: MIT */
/*
 * The engine of poll and select. A call without an adopted connection in it goes to the kernel as it is.
 */
#ifndef RINGWAY_SHIM_READY_POLL_H
#define RINGWAY_SHIM_READY_POLL_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* Must the kernel's answer about these be mended? A look-up each. */
bool ready_concerns_us(const struct pollfd *fds, uint64_t nr_fds);

/*
 * As ppoll(), -errno in the value; timeout_ns < 0 is for ever. For `select` POLLERR and POLLHUP count only where they are asked for, and
 * a number that is closed when the call begins is -EBADF; one that is closed later is POLLNVAL as ever.
 */
int ready_poll(struct pollfd *fds, uint64_t nr_fds, int64_t timeout_ns, const sigset_t *mask, bool select);

#endif
