/* SPDX-License-Identifier: MIT */
/*
 * What each fd number of this process means to us. Numbers are looked up without a lock on every socket call: one bound
 * check, one load. The table is private to the process (a forked child starts with a copy) and is only ever a claim:
 * the program can close a number behind our back, so every slow step that relies on it compares the socket's cookie.
 *
 * Numbers of FDTAB_MAX and above are never ours; a program with so many open files keeps those on TCP.
 */
#ifndef RINGWAY_SHIM_FDTAB_H
#define RINGWAY_SHIM_FDTAB_H

#include "ringbuf/atomic.h"

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct epoll_set;

#define FDTAB_MAX (1u << 20)

/*
 * The lowest bit of a connection's entry: both its lanes are on TCP for good, and it has never had a link. Nothing ends that but the record's end, so a
 * data call that finds it need not look at the record before it goes to the kernel. A claim as well: an entry without it may be pinned.
 */
#define FD_PINNED ((uintptr_t)1)

enum fd_mark {
	FD_MARK_NONE = 0,
	FD_MARK_HIDDEN = 1, /* one of ours, own_fd.h: the program sees a closed number; the rest is its holder */
	FD_MARK_TCP = 2,    /* a TCP socket of the program without a record: fresh or listening */
	FD_MARK_EPOLL = 3,  /* an epoll set; the rest of the word is its struct epoll_set */
	FD_MARK_BITS = 3,
	FD_MARK_COPIED = 6, /* FD_MARK_TCP of a socket that other numbers, or a stream, may name as well */
};

#pragma GCC visibility push(hidden)

/* Not for use outside fdtab.[hc]: here because the look-up is inline. nr is 0 until the table is mapped. */
extern struct fdtab {
	uint32_t nr;
	_Atomic uintptr_t *conns; /* with FD_PINNED */
	_Atomic uintptr_t *others;
	_Atomic uint32_t end; /* one more than the program's highest number ever entered */
	_Atomic uint32_t hidden_first, hidden_end; /* the hidden ones, which sit far above */
} fdtab;

int fdtab_init(void);

/* Both return false where fd is beyond the table: the caller leaves that number to the kernel. */
bool fdtab_install(int fd, struct conn *conn);
/* The connection, if it is still fd's, is pinned. The caller holds it, so that the record is not another's by now. */
void fdtab_set_pinned(int fd, struct conn *conn);
bool fdtab_install_epoll(int fd, struct epoll_set *set);
bool fdtab_install_hidden(int fd, int *holder);

/*
 * Takes the entry out and returns what was there, or NULL. The taker owns it alone: of two threads that close one
 * number, one gets it. TCP and HIDDEN marks have no owner and are just overwritten.
 */
struct conn *fdtab_remove(int fd);
struct epoll_set *fdtab_remove_epoll(int fd);
/* mark is NONE, TCP or COPIED. */
bool fdtab_mark(int fd, enum fd_mark mark);

/* The lowest number of at least `from` that has an entry but is not hidden; is a connection's; is hidden; or -1. */
int fdtab_next(unsigned int from);
int fdtab_next_conn(unsigned int from);
/* The same of this connection. */
int fdtab_next_of(const struct conn *conn, unsigned int from);
int fdtab_next_hidden(unsigned int from);

#pragma GCC visibility pop

/* For who knows that fd is in the table. */
static inline uintptr_t fdtab_word(uint32_t fd)
{
	return load_acquire(&fdtab.conns[fd]); /* pairs with fdtab_install() */
}

static inline struct conn *fdtab_get(int fd)
{
	if (unlikely((unsigned int)fd >= fdtab.nr))
		return NULL;
	return (struct conn *)(fdtab_word((uint32_t)fd) & ~FD_PINNED);
}

static inline uintptr_t fdtab_other(int fd)
{
	if (unlikely((unsigned int)fd >= fdtab.nr))
		return FD_MARK_NONE;
	return load_acquire(&fdtab.others[fd]); /* pairs with fdtab_install_epoll() */
}

static inline bool fdtab_hidden(int fd)
{
	return (fdtab_other(fd) & FD_MARK_BITS) == FD_MARK_HIDDEN;
}

static inline int *fdtab_holder(int fd)
{
	uintptr_t word = fdtab_other(fd);

	return (word & FD_MARK_BITS) == FD_MARK_HIDDEN ? (int *)(word & ~(uintptr_t)FD_MARK_BITS) : NULL;
}

static inline bool fdtab_tcp(int fd)
{
	return (fdtab_other(fd) & FD_MARK_BITS) == FD_MARK_TCP;
}

static inline bool fdtab_copied(int fd)
{
	return fdtab_other(fd) == FD_MARK_COPIED;
}

/* False: this process has never had a connection. */
static inline bool fdtab_was_used(void)
{
	return load_relaxed(&fdtab.end) != 0;
}

/* The epoll set behind fd, or NULL. */
static inline struct epoll_set *fdtab_epoll(int fd)
{
	uintptr_t word = fdtab_other(fd);

	return (word & FD_MARK_BITS) == FD_MARK_EPOLL ? (struct epoll_set *)(word & ~(uintptr_t)FD_MARK_BITS) : NULL;
}

#endif
