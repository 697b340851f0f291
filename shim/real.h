/* SPDX-License-Identifier: MIT */
/*
 * The functions that ours stand in front of: real_read() is read() of the next object. A pointer is never NULL: it
 * starts as a stub that looks its function up at the first call, so calls made before our constructor work, and a call
 * made from inside that look-up ends in the bare system call. Inside the shim a plain read() would be our own wrapper:
 * always say which one is meant, real_NAME() or a system call of ringbuf/sys.h.
 */
#ifndef RINGWAY_SHIM_REAL_H
#define RINGWAY_SHIM_REAL_H

#include <aio.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <wordexp.h>

/* Put in front of every wrapper's definition; all else in the object is hidden. */
#define EXPORT __attribute__((visibility("default")))

#pragma GCC visibility push(hidden)

#define CALL(ret, name, nr, params, ...) extern ret(*real_##name) params;
#define CALL_BARE(ret, name, nr, params, ...) extern ret(*real_##name) params;
#define CALL_VA(ret, name, nr, params, last, ...) extern ret(*real_##name) params;
#define EXPORT_ONLY(name)
#include "calls.def"
#undef CALL
#undef CALL_BARE
#undef CALL_VA
#undef EXPORT_ONLY

/*
 * Of two builds that are preloaded together (LD_PRELOAD keeps what is there) one has to stay dormant, since each would take the other's frames for bytes. It is the
 * one behind: what is here but never calls the next object (vfork, exec) would go past it. Whoever's constructor runs first, both find the same.
 */
bool real_is_first(void);
bool real_has_second(void);

/* Looks every name up, so that no later call has to. Called once by init.c; may allocate. */
void real_resolve_all(void);

/*
 * Opens the object `name` that lies beside this one and returns what its symbol stands for, or NULL; the object stays. It calls our wrappers like the
 * rest of the program. *alone: `needs`, which it needs, was not there before. May allocate.
 */
void *real_open_beside(const char *name, const char *needs, const char *symbol, bool *alone);

/* What the next object has under a name, for who jumps there. Kept in *pointer, which is NULL at first; libc has it. */
void *real_address(const char *name, void **pointer);

/* libc's own function of that name, whatever stands in front of it; NULL if there is none. Before main. */
void *real_of_libc(const char *name);

/* The bare system call in libc's convention (-1 and errno): for wrappers that pass on what libc has no function for. */
long raw_syscall(long nr, long a, long b, long c, long d, long e, long f);

#pragma GCC visibility pop

#endif
