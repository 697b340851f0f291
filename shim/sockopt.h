/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_SOCKOPT_H
#define RINGWAY_SOCKOPT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "ringbuf/stats.h"

/* SO_RCVTIMEO or SO_SNDTIMEO as a record keeps it: nanoseconds, 0 for ever. */
int64_t sockopt_timeout_ns(const struct timeval *tv);

/* An option that a ring cannot carry. */
struct sockopt_unfit {
	int level, name;
	enum reason why;
	int refused;	/* errno where the connection is on a ring already; 0: nothing is said */
	enum sockopt_off {
		OFF_ZERO,	/* a number, and off where it is 0 */
		OFF_NEGATIVE,	/* or below 0 */
		OFF_NEVER,	/* no number: to set it switches it on, and the kernel does not say whether it is */
	} off;
};

/* NULL: a ring can carry it. */
const struct sockopt_unfit *sockopt_find_unfit(int level, int name);
bool sockopt_switches_on(const struct sockopt_unfit *option, const void *value, socklen_t len);

/* Of a socket without a record. */
void sockopt_set_early(int level, int name);

#endif
