/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_SOCKOPT_H
#define RINGWAY_SOCKOPT_H

#include <stdint.h>
#include <sys/time.h>

/* SO_RCVTIMEO or SO_SNDTIMEO as a record keeps it: nanoseconds, 0 for ever. */
int64_t sockopt_timeout_ns(const struct timeval *tv);

#endif
