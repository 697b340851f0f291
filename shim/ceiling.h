/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CEILING_H
#define RINGWAY_CEILING_H

/*
 * Room for a link where there is none (RINGWAY_MAX, descriptors, memory): of the connections that are on rings, the one that has been busy least goes back to TCP for
 * another that is much busier. RETREAT.md, "Room for another".
 */

#include <stdbool.h>
#include <stdint.h>

#include "ringbuf/stats.h"

struct conn;

/*
 * `c` is busy, its peer is there, and the link fails for `why`. True: one is on its way back, and room will come. No lock of a connection held; never
 * blocks. Looks at the connections of the process at most once in a while, whoever asks. `now`: now_ns().
 */
bool ceiling_make_room(struct conn *c, enum reason why, int64_t now);

/*
 * A peer has no room. What it has taken back may be a connection of this process that nobody here makes calls on: those that have been asked back are served.
 */
void ceiling_help(int64_t now);

void ceiling_fork_child(void);

#endif
