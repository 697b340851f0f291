/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_USE_H
#define RINGWAY_CONN_USE_H

/*
 * What this process has of a connection: how many of its threads look at the link without a lane lock, and whether the
 * link is to be taken down when the last has looked. Private to the process, one row a record.
 */

#include <stdbool.h>
#include <stdint.h>

#include "shim/counted.h"
#include "shim/unwound.h"

struct conn;

/* Makes place for what this process has of that record: 0 or -errno. */
int conn_use_reach(uint32_t index);
/* This process holds the record from now on. */
void conn_use_opened(struct conn *c);
/* In a forked child: the threads that used anything are the parent's. */
void conn_use_fork_child(void);
/* The caller holds a lane lock and has found the descriptor to be the connection's. */
void conn_hold_locked(struct conn *c);
/* The process is ending: true the first time. */
bool conn_use_flush(struct conn *c);
/* It goes on after all: true if it had been ending. */
bool conn_use_unflush(struct conn *c);

/*
 * A data call that sleeps. The kernel holds the socket for a call until that returns, whatever other threads close meanwhile: the call
 * goes on, and the peer hears of the end when it is over. So a close under a sleeping call keeps the socket by a hidden
 * descriptor, and the last of these calls does what the close has left.
 */
struct conn_sleep {
	struct conn *slept;	/* counted among its sleepers; NULL: not yet, or not any more */
	uint32_t passed;	/* the era in which it has no use of the link, see conn_use.c; 0: it has one */
	struct _pthread_cleanup_buffer unwound;	/* from then on until conn_call_ends() */
	uint64_t handled;	/* counted_now() when it began to wait, then what wait_lane() has told */
};
/* Before a sleep, under the lane's lock; counts once a call. */
void conn_call_sleeps(struct conn *c, struct conn_sleep *s);
/*
 * wait_lane() for `what`, an enum wait_for, or wait_briefly(); afterwards *fd is the number by which the call goes on. -EBADF where
 * there is none, and where the kernel would begin the call anew after a signal and find the number closed.
 */
int conn_call_waits(struct conn *c, struct conn_sleep *s, int *fd, int what, bool briefly, int64_t deadline_ns);
/* It has moved bytes, and a handler has run: where it found that it did not have to sleep, the kernel's would end all the same. */
static inline bool conn_call_is_due(const struct conn_sleep *s)
{
	return s->slept && unlikely(s->handled != counted_now());
}
/* The call is over. */
void conn_call_ends(struct conn *c, struct conn_sleep *s);
/*
 * The number by which a call that has slept goes on when its own has been closed: another of the connection, or the hidden one. -1: there is none.
 * No lane locked.
 */
int conn_call_number(const struct conn *c);
/* May `fd` be used for c? Its number in the table, or the hidden one of the calls that go on. */
bool conn_call_has(const struct conn *c, int fd);
/* Are there such calls now? */
bool conn_use_asleep(const struct conn *c);
/* conn_release(), both lanes locked: true if the rest is left to a sleeping call, which calls conn_release_kept(). */
bool conn_use_keep(struct conn *c, int fd);
void conn_release_kept(struct conn *c, int fd);
/* The process ends, with calls asleep: what conn_exit_flush() does, for the connections that only they hold. */
void conn_use_flush_kept(void);

/*
 * The link is given up, both lanes locked, `linked` is 0: nobody who holds the connection from now on looks at it, and it is taken down with the last use from
 * before. Around the change of `linked`: the first says false, and nothing has changed, if the one before it is not down yet.
 */
bool conn_use_parts(struct conn *c);
void conn_use_part(struct conn *c);
/* Not down yet? */
bool conn_use_is_leaving(const struct conn *c);
/* It is down, and another may come, both lanes locked: who slept through all of it is a user again. */
void conn_use_renew(struct conn *c);

/* The record is left as it is, since a call that a handler has interrupted needs it. */
void conn_use_bury(struct conn *c);
/* The process's hold ends: at once, or with the last use. */
void conn_use_close(struct conn *c);

#endif
