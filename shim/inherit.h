/* SPDX-License-Identifier: MIT */
/*
 * fork, exec and the end of the process, told to every part in order. fork() reaches us through fork handlers,
 * registered before any of the program's, so that daemon() and forkpty() are covered too; the end through an exit
 * handler that outlives all destructors.
 */
#ifndef RINGWAY_SHIM_INHERIT_H
#define RINGWAY_SHIM_INHERIT_H

#include <sys/types.h>

#include "shim/fd_conn.h"

#pragma GCC visibility push(hidden)

/* The process that owns this memory; a vfork child is not it. */
extern pid_t inherit_pid;

int inherit_init(void);

void inherit_before_fork(void);
void inherit_in_parent(void);
void inherit_in_child(void);

/*
 * The process is about to become another program (that exec is expected to succeed: exec_calls.c), which keeps the fds
 * that are not close-on-exec. Other threads still run. In a vfork child only the child's own fds are touched. If the
 * exec fails all the same, inherit_exec_failed() takes it back.
 */
#define INHERIT_FEW 16
struct inherit_exec {
	struct inherit_shield {
		int *fds; /* made close-on-exec by us */
		unsigned int nr;
		size_t bytes;
	} shield;
	int few[INHERIT_FEW]; /* the shield's, in a vfork child, which maps no memory of its own */
	struct fd_list gone;
	int low[3]; /* where 0, 1 and 2 were moved to, or -1 */
};
void inherit_before_exec(struct inherit_exec *undo);
void inherit_exec_failed(struct inherit_exec *undo);

/*
 * Around posix_spawn, system, popen and wordexp, whose children exec inside libc. What is still on TCP and would be inherited
 * stays there; what is on a ring is kept out of the child.
 */
void inherit_before_spawn(struct inherit_shield *shield);
void inherit_after_spawn(struct inherit_shield *shield);
/* The same for vfork: only the first half, since the child has fds of its own. */
void inherit_before_vfork(void);

/* Once; later calls return at once. The wrappers still work afterwards. */
void inherit_at_exit(void);

#pragma GCC visibility pop

#endif
