/* SPDX-License-Identifier: MIT */
/*
 * Which numbers the children of posix_spawn() are to get copies of. libc carries the actions out in the child, unseen; and between their
 * making and the spawn a number may have become that of a connection on a ring.
 */
#ifndef RINGWAY_SHIM_SPAWN_ACTIONS_H
#define RINGWAY_SHIM_SPAWN_ACTIONS_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

void spawn_actions_note(const void *actions, int fd);
void spawn_actions_forget(const void *actions);

/* They are about to be carried out. False: a connection among them cannot come back to TCP. */
bool spawn_actions_hand_on(const void *actions);

#pragma GCC visibility pop

#endif
