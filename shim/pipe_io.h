/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_PIPE_IO_H
#define RINGWAY_PIPE_IO_H

/*
 * The program's pipes, read and written by splice() with a lane locked: never asleep, and so that what was taken out of one is
 * in the caller's memory, and what is still in the caller's memory was not put into one. Counts or -errno.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What splice() says of something that is no pipe: 0, -EBADF or -EINVAL. */
int pipe_check(int pipe_fd);

/* `flags` are splice()'s. */
bool pipe_never_blocks(int pipe_fd, unsigned flags);

/* 0 when the pipe is ready, -EAGAIN where it is not and must not be waited for, -EINTR; `handled` as in wait.h. No lane is locked. */
int pipe_await(int pipe_fd, short event, bool block, uint64_t *handled);

/*
 * From a pipe, where `pos` is -1, or from a file. 0 at the end; -EAGAIN: nothing at once; -EOPNOTSUPP: a file that cannot be read
 * without perhaps sleeping.
 */
ssize_t pipe_or_file_read(int fd, off_t pos, uint8_t *to, size_t len);

/* The first bytes of it, which stay there. */
ssize_t pipe_peek(int pipe_fd, uint8_t *to, size_t len);

/* Part of it, or -EAGAIN. */
ssize_t pipe_write(int pipe_fd, const void *from, size_t len);

#endif
