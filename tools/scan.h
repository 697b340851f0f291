/* SPDX-License-Identifier: MIT
 * Finds the live processes that run under Ringway, through the statistics segments that they hold open.
 */
#ifndef TOOLS_SCAN_H
#define TOOLS_SCAN_H

#include "ringbuf/stats.h"

/*
 * Calls SHOW for each process whose segment this user may read, in order of pid (as /proc of this PID namespace
 * numbers it; VIEW->pid is the process's own idea). The view is valid during the call only. What dies, changes or
 * turns out corrupt on the way is left out. The number of calls, or -errno when /proc cannot be read.
 */
int scan_processes(void (*show)(int pid, const struct stats_view *view, void *arg), void *arg);

/*
 * The segment of one process, writable: 0, -ENOENT where it has none (or is gone), else -errno: -EACCES where it is another user's. The caller detaches it.
 */
int scan_to_ask(int pid, struct stats_view *view);

#endif
