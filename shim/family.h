/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_SHIM_FAMILY_H
#define RINGWAY_SHIM_FAMILY_H

/*
 * The processes that one process became by forks: which of them is meant, and does it live still? They share connection
 * records, and not always a PID namespace, where a process number names another process or none. So members have numbers of their own.
 *
 * A member is alive while the kernel holds a lock on the byte of its number, in a file that the whole family has. The lock belongs to an
 * open file description that is made before the fork and that only the child keeps: there is no moment at which a living child
 * is without it, and the kernel drops it with the process, however that ends. Roads not taken: process numbers (namespaces, numbers
 * given anew, zombies), pidfds (a sibling born later has none), robust futexes (a thread's, not a process's).
 *
 * Where the file or a description cannot be had (no descriptors, no /proc) nobody is ever called gone.
 *
 * The kernel also tells of such a description's end: one inotify instance, made by the first process that forks with connections in its
 * hands and inherited by its descendants, watches the file. Nobody reads it, or it would be silent for the others; each process
 * has an epoll set around it, edge-triggered, and that is its watch. The kernel merges an event with an equal one before it and then wakes
 * nobody, so who has been woken writes a byte into the file: an event of another kind, after which a death is news again.
 */

#include <stdbool.h>
#include <stdint.h>

#include "ringbuf/atomic.h"
#include "shim/circle.h"

/* Shared by the family, beside the connection records. */
struct family {
	_Atomic uint32_t last_member;
	struct circle circle;
};

#define FAMILY_MAX UINT32_C(0x3fffffff)
#define FAMILY_UNSURE UINT32_C(0x40000000)	/* in a number: it has no lock */

#pragma GCC visibility push(hidden)

/* This process. 0: a child that has not held a connection yet. */
extern _Atomic uint32_t family_me;

/* Before main. A process that never forks takes nothing: it has nobody who could ask. */
void family_init(struct family *shared);

/* Gives this process a number if it has none: before it first holds a record. */
void family_join(void);

/*
 * Around a fork. prepare returns the number that the child will have; 0 where it is no heir of any record, and takes its
 * number when it needs one. A fork that failed is told as parent.
 */
uint32_t family_fork_prepare(bool heir);
void family_fork_parent(void);
void family_fork_child(void);

/* Is nobody left who had this number? False in doubt. */
bool family_is_gone(uint32_t member);

/*
 * Readable once a member has ended, however, which then runs no more code, though family_is_gone() may come a moment later; and
 * now and then for nothing. -1: this process has never shared a connection, or it cannot be had.
 */
int family_watch(void);
/* Silences it until the next end. What the dead may have left undone is looked for after this. */
void family_watch_clear(void);

#pragma GCC visibility pop

#endif
