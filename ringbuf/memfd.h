/* SPDX-License-Identifier: MIT */
/* Sealed memfds, for segments and for the statistics. */
#ifndef RINGWAY_RINGBUF_MEMFD_H
#define RINGWAY_RINGBUF_MEMFD_H

#include <stdint.h>

/*
 * A close-on-exec memfd of `bytes` bytes that can neither shrink nor grow nor lose these seals. -EFBIG where
 * RLIMIT_FSIZE is smaller (the kernel would raise SIGXFSZ), or -errno.
 */
int memfd_create_sealed(const char *name, uint64_t bytes);

/* Is `fd` one, so that a mapping of its `bytes` can be touched without SIGBUS? 0 or -EPROTO. */
int memfd_check_sealed(int fd, uint64_t *bytes);

#endif
