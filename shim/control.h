/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONTROL_H
#define RINGWAY_CONTROL_H

/*
 * Control messages beside received bytes: what recvmsg(2) tells of a TCP socket that was told TCP_INQ or SO_TIMESTAMP. What is left is known of a ring as well. When bytes
 * came is known to the kernel alone, but few who ask for it look (iperf sets it on every socket): a connection goes back to TCP when a message with
 * room for it is received, and what is on its way through a ring then is given the time at which it is read.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

struct conn;

/* Which option asks for time stamps, which is also their type; 0: none of them. */
#define CONTROL_STAMPS(name) ((name) == SO_TIMESTAMP_OLD || (name) == SO_TIMESTAMPNS_OLD || (name) == SO_TIMESTAMP_NEW || (name) == SO_TIMESTAMPNS_NEW ? (name) : 0)

#pragma GCC visibility push(hidden)

/* A message is about to be received that has `room` bytes for control messages. */
void control_wanted(struct conn *c, int fd, size_t room);
/* n bytes of it came, and what else the kernel tells of them is in *m, where there were `room` bytes. */
void control_tell(struct conn *c, int fd, struct msghdr *m, size_t room, ssize_t n);
/* The kernel has received *m for the program, n bytes or -1. */
void control_of_plain(int fd, const struct msghdr *m, ssize_t n);

#pragma GCC visibility pop

#endif
