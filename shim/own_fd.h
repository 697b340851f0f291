/* SPDX-License-Identifier: MIT */
/*
 * The shim's own file descriptors. The program must never meet them: they are close-on-exec, sit above its soft limit
 * where the hard limit allows (own_fd.c says how), and to every wrapper their numbers are closed ones. Where a program
 * asks for such a number itself (dup2), ours moves away first; hence the holder, which is told the new number.
 */
#ifndef RINGWAY_SHIM_OWN_FD_H
#define RINGWAY_SHIM_OWN_FD_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

int own_fd_init(void);

/*
 * Takes over fd (just created by us, close-on-exec, still at a low number) and moves it out of the program's sight.
 * Returns the new number, or -EMFILE where there is no room that would not starve the program; the old number is closed
 * in either case. *holder (may be NULL: then the fd cannot move later, and dup2 onto it is refused with EBUSY) is
 * written with the new number now, and again should it have to move; it must stay valid until own_fd_close().
 * Async-signal-safe, no allocation.
 */
int own_fd_adopt(int fd, int *holder);

/* For what a call that TCP would not refuse cannot do without: where there is no room it is hidden at the number it has. */
int own_fd_insist(int fd, int *holder);

/* As own_fd_adopt() where a library goes on with the old number if there is no room: then fd is left as it was. */
int own_fd_take(int fd);

/* What was hidden is about to be closed by whom it belongs to. */
void own_fd_let_go(int fd);

/* How many more there is room for, about. */
int own_fd_room(void);

/* Closes a hidden fd and frees its number. Quietly ignores a negative one. */
void own_fd_close(int fd);

/* The program claims this hidden number: 0 once ours has moved away, or -EBUSY. */
int own_fd_evict(int fd);

/* The soft limit of open files as the program set it. */
unsigned long own_fd_limit(void);

/*
 * The kernel looks at no more numbers in one poll() than that, and refuses a longer array before it reads it. What it was when it was last set here, and no more
 * than fdtab's numbers.
 */
extern _Atomic uint32_t own_fd_polled;
void own_fd_limit_set(void);

#pragma GCC visibility pop

#endif
