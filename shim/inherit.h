/* SPDX-License-Identifier: MIT */
/*
 * fork, exec and the end of the process, told to every part in order. fork() reaches us through fork handlers,
 * registered before any of the program's, so that daemon() and forkpty() are covered too; the end through an exit
 * handler that outlives all destructors.
 */
#ifndef RINGWAY_SHIM_INHERIT_H
#define RINGWAY_SHIM_INHERIT_H

#include <sys/types.h>

#pragma GCC visibility push(hidden)

/* The process that owns this memory; a vfork child is not it. */
extern pid_t inherit_pid;

int inherit_init(void);

void inherit_before_fork(void);
void inherit_in_parent(void);
void inherit_in_child(void);

/*
 * The process is about to become another program that keeps the fds which are not close-on-exec. Other threads still
 * run. Works in a vfork child too, where it touches nothing but the child's own fds. If the exec then fails,
 * inherit_exec_failed() makes it undone.
 */
void inherit_before_exec(void);
void inherit_exec_failed(void);

/* Around posix_spawn, system and popen, whose children exec inside libc: they must not inherit a connection on a ring. */
void inherit_before_spawn(void);
void inherit_after_spawn(void);

/* Once; later calls return at once. The wrappers still work afterwards. */
void inherit_at_exit(void);

#pragma GCC visibility pop

#endif
