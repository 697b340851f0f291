/* SPDX-License-Identifier: MIT */
/* What of this process's address space is ours: counted where it is mapped, for who limits it. */
#ifndef RINGWAY_RINGBUF_MAPPED_H
#define RINGWAY_RINGBUF_MAPPED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The limit that the process was started under. -ENOMEM: it is the program's, all of it.
 */
int mapped_init(void);
/* May so many more be mapped, without taking from the program what it counts on? Where it has no limit, always. */
bool mapped_may(size_t bytes);

void mapped_add(size_t bytes);
void mapped_sub(size_t bytes);
uint64_t mapped_bytes(void);

/*
 * Another part of the file of which `mapped` is a shared mapping, `from` bytes behind it: without a descriptor, and of an anonymous one as well, which has
 * no other name. Both in whole pages. An address, or something for which sys_failed() is true; needs `from` bytes more of address space for a moment.
 * Not counted.
 */
long mapped_more(void *mapped, size_t from, size_t bytes);

#endif
