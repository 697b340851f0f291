/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_RENDEZVOUS_H
#define RINGWAY_TESTS_RENDEZVOUS_H

/* The place where two ends of one host meet (PROTOCOL.md), as anybody can reach it who knows a connection's addresses. */

#include <stddef.h>
#include <sys/types.h>

#include "shim/nego_msg.h"

/* A link to whoever offers under the connection's name, or -1. */
int rendezvous_dial(const struct nego_tuple *tuple);
/* An offer under that name, non-blocking, or -1. */
int rendezvous_listen(const struct nego_tuple *tuple);
#define RENDEZVOUS_FDS 12
/* A message with `nr` descriptors, at most RENDEZVOUS_FDS; as sendmsg(). */
ssize_t rendezvous_send(int link, const void *buf, size_t len, const int *fds, size_t nr);

#endif
