/* SPDX-License-Identifier: MIT */
/*
 * Epoll sets of the program: each is a true kernel set, and a record beside it of the TCP connections in it.
 * READINESS.md says how the two make one answer.
 */
#ifndef RINGWAY_SHIM_EPOLL_H
#define RINGWAY_SHIM_EPOLL_H

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct epoll_set;

/* A record for a new epoll fd of the program, which the caller puts into the fd table; NULL: the set stays the kernel's. */
struct epoll_set *epoll_set_create(int epfd);

/*
 * For the fd table: one more number of this process names the set; the number `epfd` is about to be closed (called before
 * the kernel's close, in the order in which the table forgets it). The last one frees the record.
 */
void epoll_set_dup(struct epoll_set *set, int epfd);
void epoll_set_drop(struct epoll_set *set, int epfd);

/* connect() has made a connection of this number: what the program had registered before is the connection's now. */
void epoll_early_bind(struct conn *c, int fd);
/* The number is a new socket's. */
void epoll_early_forget(int fd);

/* Around fork: no set is half changed in the child. The child calls _child, the parent _parent, whether it failed or not. */
void epoll_fork_prepare(void);
void epoll_fork_parent(void);
void epoll_fork_child(void);

#endif
