/* SPDX-License-Identifier: MIT */
/* See spawn_actions.h. libc's own list is no interface; of this one the oldest are forgotten where a program keeps many. */
#include "shim/spawn_actions.h"

#include "shim/fd_conn.h"

#define NOTES 64

static struct {
	_Atomic(const void *) actions;
	_Atomic int fd;
} notes[NOTES];
static _Atomic uint32_t next;

void spawn_actions_note(const void *actions, int fd)
{
	unsigned int at;

	for (unsigned int i = 0; i < NOTES; i++) {
		const void *none = NULL;

		if (compare_exchange(&notes[i].actions, &none, actions)) {
			store_relaxed(&notes[i].fd, fd);
			return;
		}
	}
	at = fetch_add(&next, 1) % NOTES;
	store_relaxed(&notes[at].fd, fd);
	store_relaxed(&notes[at].actions, actions);
}

void spawn_actions_forget(const void *actions)
{
	for (unsigned int i = 0; i < NOTES; i++)
		if (load_relaxed(&notes[i].actions) == actions)
			store_relaxed(&notes[i].actions, NULL);
}

bool spawn_actions_hand_on(const void *actions)
{
	bool all = true;

	for (unsigned int i = 0; i < NOTES; i++)
		if (load_relaxed(&notes[i].actions) == actions)
			all &= fd_hand_on(load_relaxed(&notes[i].fd), REASON_EXEC);
	return all;
}
