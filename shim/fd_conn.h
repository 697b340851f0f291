/* SPDX-License-Identifier: MIT */
/*
 * Which numbers of this process name which connection or epoll set: the fd table's upkeep, done by the wrappers of calls
 * that make, copy and close descriptors. A record hears of its process's last number, and of nothing in between.
 */
#ifndef RINGWAY_SHIM_FD_CONN_H
#define RINGWAY_SHIM_FD_CONN_H

#include "shim/conn.h"
#include "shim/fdtab.h"

#pragma GCC visibility push(hidden)

int fd_conn_init(void);

/* Libc's own streams are there, whose calls no wrapper sees, and what a program that is executed uses. */
static inline bool fd_is_standard(int fd)
{
	return fd >= 0 && fd <= 2;
}

/* Around fork: no change of the table or of its counts is half done in the child. */
void fd_fork_prepare(void);
void fd_fork_done(void);
void fd_fork_child(void);

/* fd, new in this process, is a TCP connection. Failing leaves it the kernel's. */
void fd_opened(int fd, enum conn_role role, bool nonblock);

/* fd, new in this process, is something else. What the table still has there was closed behind our back. */
void fd_fresh(int fd, enum fd_mark mark);

/* What fd names is no connection any more, but the same socket still, by whatever numbers. */
void fd_dissolved(int fd);

/*
 * Around a call that copies the number `fd`. The first holds what it names, so that a close() by another thread cannot
 * let it go meanwhile; the second enters `copy`, or where the call failed (-1) lets go again.
 */
struct fd_copy {
	struct conn *conn;
	struct epoll_set *set;
	int change;
	bool tcp;
};
struct fd_copy fd_copy_begin(int fd);
void fd_copy_end(const struct fd_copy *what, int copy);

/* fd, still open, is about to be closed by this process. */
void fd_closing(int fd);

/* Around what makes or closes an epoll set: no fork, and no look through the open files (unseen.h), finds one there that the table does not know. */
int fd_set_change_begin(void);
void fd_set_change_end(int change, int fd);

/* conn_pin() for what fd names, if that is a connection: false if one of its lanes is on a ring. Another thread may be
 * closing it meanwhile. */
bool fd_pin(int fd, enum reason why);

/* The same where the socket is about to be another's, or the kernel's: one on a ring comes back, if it can. */
bool fd_hand_on(int fd, enum reason why);

/*
 * The same where the program goes on with it, but a ring will not do from now on. What lies unread in the ring is read from there still: then false, and the
 * connection is on TCP as soon as that is done, and the peer has made a call.
 */
bool fd_come_back(int fd, enum reason why);

/* fd is not what the table says any more (closed behind our back, disconnected): only records are let go. */
void fd_forget(int fd);

/*
 * The distinct connections of this process, each with one of its numbers, in memory to be given back with fd_list_free();
 * an empty list if there is none or no memory.
 */
struct fd_list {
	struct conn **conns;
	int *fds;
	unsigned int nr;
	size_t bytes;
};
struct fd_list fd_list_conns(void);
void fd_list_free(struct fd_list *list);

#pragma GCC visibility pop

#endif
