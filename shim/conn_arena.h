/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_ARENA_H
#define RINGWAY_CONN_ARENA_H

struct conn;

/* A free record, its index and generation set and the rest as it was left; NULL where there is none to be had. */
struct conn *arena_take(void);
void arena_give_back(struct conn *c);

#endif
