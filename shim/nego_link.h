/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_NEGO_LINK_H
#define RINGWAY_NEGO_LINK_H

/* The link: its socket, and one packet over it, with at most one descriptor. Nothing is waited for. Included by nego*.c only. */

#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

#include "shim/nego_msg.h"

/* The name of the connection's rendezvous, as bind() and connect() take it. */
struct nego_address {
	struct sockaddr_un un;
	unsigned int len;
};

/* A socket for either end, at a low number, or -errno; *at is its address. */
int nego_link_socket(struct nego_address *at, const struct nego_tuple *t);

/*
 * One packet into `buf`. Returns its size, 0 for a closed link, -EAGAIN if there is none yet, -EPROTO if it was longer than `room` or came
 * with more descriptors than *fd takes, -EMFILE if a descriptor came that this process has no room for, other -errno. *fd is the
 * descriptor (close-on-exec) or -1; fd NULL: none may come. Whatever else arrived is closed.
 */
int nego_link_recv(int link, void *buf, size_t room, int *fd);

/* 0 or -errno. fd -1: none is sent. Raises no SIGPIPE. */
int nego_link_send(int link, const void *buf, size_t len, int fd);

#endif
