/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_UNWOUND_H
#define RINGWAY_UNWOUND_H

/*
 * What must be given back by a thread that does not come back from a sleep: because it is cancelled or ends there, or because a signal
 * handler of the program jumps out of it. libc's older cleanup handlers are told of all three; pthread_cleanup_push() is not told of
 * jumps. UNWOUND_BEGIN declares a variable; a handler may have run already where control comes back after all.
 */

#include <pthread.h>

/* Exported, and in no header any more. */
void _pthread_cleanup_push(struct _pthread_cleanup_buffer *buffer, void (*routine)(void *), void *arg);
void _pthread_cleanup_pop(struct _pthread_cleanup_buffer *buffer, int execute);

#define UNWOUND_BEGIN(routine, arg)                                                                                    \
	struct _pthread_cleanup_buffer unwound_buffer_;                                                                \
	_pthread_cleanup_push(&unwound_buffer_, (routine), (arg))
#define UNWOUND_END() _pthread_cleanup_pop(&unwound_buffer_, 0)

#endif
