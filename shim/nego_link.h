/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_NEGO_LINK_H
#define RINGWAY_NEGO_LINK_H

/* One packet over the link, with at most one descriptor: raw system calls, nothing waited for. Included by nego*.c only. */

#include <stddef.h>
#include <stdint.h>

/*
 * One packet into `buf`. Returns its size, 0 for a closed link, -EAGAIN if there is none yet, -EPROTO if it was longer than `room` or came
 * with more descriptors than *fd takes, -EMFILE if a descriptor came that this process has no room for, other -errno. *fd is the
 * descriptor (close-on-exec) or -1; fd NULL: none may come. Whatever else arrived is closed.
 */
int nego_link_recv(int link, void *buf, size_t room, int *fd);

/* 0 or -errno. fd -1: none is sent. Raises no SIGPIPE. */
int nego_link_send(int link, const void *buf, size_t len, int fd);

#endif
