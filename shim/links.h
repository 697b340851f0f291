/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_LINKS_H
#define RINGWAY_LINKS_H

/* How many connections of this process are on rings, or about to be, and whether there may be one more: RINGWAY_MAX. */

#include <stdbool.h>
#include <stdint.h>

/* One more: a place for a link that is being made, or is there. False: as many as there may be. */
bool links_take(void);
/* The link is down, or did not come. */
void links_give(void);

uint32_t links_nr(void);

#endif
