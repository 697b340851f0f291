/* SPDX-License-Identifier: MIT */
/* What the waiting steps share: arguments. */
#ifndef CONFORM_VERBS_WAIT_H
#define CONFORM_VERBS_WAIT_H

#include <signal.h>
#include <time.h>

/* NULL (wait for ever) for a negative number of milliseconds. */
struct timespec *parse_timeout(const char *text, struct timespec *room);
/* "-": no mask, "empty", or the one signal that is blocked meanwhile. */
sigset_t *parse_mask(const char *text, sigset_t *room);

#endif
