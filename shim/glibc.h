/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_GLIBC_H
#define RINGWAY_GLIBC_H

/*
 * What glibc alone has. A program of another libc (musl) that is preloaded with us, as the child of a shell may be, must start all the same: its loader finds none of
 * these, so they are weak, and we stay dormant there (init.c). Nothing else may name them, or include their headers' strong declarations.
 */

#include <gnu/libc-version.h>
#include <stdlib.h>
#include <string.h>
#include <sys/single_threaded.h>

/* What at_quick_exit() and pthread_atfork() are made of: those themselves come from a static library, and are not weak. */
int __cxa_at_quick_exit(void (*function)(void *), void *object);
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *object);

#pragma weak gnu_get_libc_version
#pragma weak __libc_single_threaded
#pragma weak __cxa_at_quick_exit
#pragma weak __register_atfork
#pragma weak on_exit
#pragma weak strerrorname_np

#endif
