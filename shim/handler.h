/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_HANDLER_H
#define RINGWAY_HANDLER_H

/*
 * Does the calling thread run one of the program's signal handlers? Who is about to allocate, or to take a lock of libc's, must know: the handler may
 * have interrupted just that.
 */

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/*
 * Some system calls, in a program that catches signals. Where it is not sure, true: something on the stack may look like a handler's frame. A handler that
 * was installed behind the wrappers is not seen, nor one that has let its own signal in again.
 */
bool handler_inside(void);

#pragma GCC visibility pop

#endif
