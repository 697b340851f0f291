/* SPDX-License-Identifier: MIT */
/* What is mapped into this process, as the kernel lists it. Raw calls only: for signal handlers, and for a child that was just forked. */
#ifndef RINGWAY_SHIM_MAPS_H
#define RINGWAY_SHIM_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct maps {
	int fd;
	size_t len, next;
	char bytes[4096];
};

/* False: it cannot be read. */
bool maps_open(struct maps *m);
/*
 * The next mapping, [*from, *to), in the order of addresses, and up to `size` - 1 bytes of what the kernel says of it: access, offset, device, inode and path. `said`
 * may be NULL. False: no more.
 */
bool maps_next(struct maps *m, uintptr_t *from, uintptr_t *to, char *said, size_t size);
void maps_close(struct maps *m);

#pragma GCC visibility pop

#endif
