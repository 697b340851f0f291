/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_USE_H
#define RINGWAY_CONN_USE_H

/*
 * What this process has of a connection: how many of its threads look at the link without a lane lock, and whether the
 * link is to be taken down when the last has looked. Private to the process, one row a record.
 */

#include <stdbool.h>

struct conn;

int conn_use_init(void);
/* This process holds the record from now on. */
void conn_use_opened(struct conn *c);
/* In a forked child: the threads that used anything are the parent's. */
void conn_use_fork_child(void);
/* The caller holds a lane lock and has found the descriptor to be the connection's. */
void conn_hold_locked(struct conn *c);
/* The process is ending: true the first time. */
bool conn_use_flush(struct conn *c);
/* It goes on after all: true if it had been ending. */
bool conn_use_unflush(struct conn *c);
/* The process's hold ends: at once, or with the last use. */
void conn_use_close(struct conn *c);

#endif
