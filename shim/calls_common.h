/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CALLS_COMMON_H
#define RINGWAY_CALLS_COMMON_H

/* What every data wrapper begins with: ready? ours? still plain TCP? */

#include "shim/fdtab.h"
#include "shim/guard.h"
#include "shim/pinned.h"
#include "shim/plain.h"
#include "shim/real.h"

static inline struct conn *conn_of(int fd)
{
	if (guard_is_clear())
		return fdtab_get(fd);
	if (!guard_ready())
		return NULL;
	guard_test_cancel();
	return fdtab_get(fd);
}

/* On a ring, and with flags that leave it there: all that remains to be done is the call on the connection. */
#define LANE_IS_BUSY(c, lane, flags) \
	(likely(load_relaxed(&(c)->lane.mode) == MODE_RING) && likely(!((flags) & (MSG_OOB | MSG_ZEROCOPY))))

/* Returns from the wrapper with the real call's result, counted, unless the lane needs more than that. */
#define RETURN_IF_PLAIN_RX(c, fd, flags, call) \
	do { \
		enum plain_pass plain_pass_ = plain_rx_enter(c); \
		if (plain_pass_ != PASS_NOT) \
			return plain_rx_leave(c, fd, plain_pass_, call, flags); \
	} while (0)

#define RETURN_IF_PLAIN_TX(c, fd, call) \
	do { \
		enum plain_pass plain_pass_ = plain_tx_enter(c); \
		if (plain_pass_ != PASS_NOT) \
			return plain_tx_leave(c, fd, plain_pass_, call); \
	} while (0)

#endif
