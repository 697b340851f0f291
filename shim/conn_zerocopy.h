/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_ZEROCOPY_H
#define RINGWAY_CONN_ZEROCOPY_H

#include <stddef.h>
#include <sys/uio.h>

/*
 * MSG_ZEROCOPY. The kernel numbers such sends, one a call, and tells in the socket's error queue when it needs the program's memory no more. It does so
 * only where the program has set SO_ZEROCOPY, which most do to ask whether there is such a thing: the option alone changes nothing.
 */

struct conn;

/*
 * Before a send of these bytes with MSG_ZEROCOPY. 0: the call may be made, and where it is to be numbered the lane is on TCP for good, and the call is the kernel's. Else
 * the call is over: -errno. Waits as the send itself would, for a ring that is left to be sent again. No lane locked.
 */
int conn_before_zerocopy(struct conn *c, int fd, const struct iovec *iov, size_t nr, int flags);

#endif
