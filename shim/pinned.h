/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_PINNED_H
#define RINGWAY_PINNED_H

/*
 * Calls in which we have nothing to do: on files and pipes, and on connections that stay on TCP for good and have never had a link, of which the fd
 * table says so (FD_PINNED). They gain nothing, so they pay as little as can be: a comparison, one look-up of two loads behind each other,
 * since the kernel is not entered before they have come, and a count.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shim/conn.h"
#include "shim/fdtab.h"
#include "shim/guard.h"

_Static_assert(GUARD_READY == FDTAB_MAX, "one comparison tells both");

/*
 * Returns from the wrapper unless `word` is a connection that is not known to be pinned; `slow` is for numbers that have to be looked at more
 * closely. What stands for `pinned` and `slow` is out of line (NOINLINE): a wrapper that must save registers for it costs as much again.
 */
#define RETURN_IF_KERNELS(word, fd, real, pinned, slow) \
	do { \
		int64_t state_ = load_relaxed(&guard_state); \
		if (unlikely((int64_t)(uint32_t)(fd) >= state_)) { \
			if (likely(!state_)) \
				return real; \
			return slow; \
		} \
		word = fdtab_word((uint32_t)(fd)); \
		if (likely(!word)) \
			return real; \
		if (likely(word & FD_PINNED)) \
			return pinned; \
	} while (0)

/* A call on the connection has found that it is pinned: from now on the table says so, if that is all that is to be said of it. No lane locked. */
void pinned_note(struct conn *c, int fd);
/* The end of the stream has come; as the libc call. */
ssize_t pinned_end(int fd);
/* The lane had so many bytes before n more: may call conn_tell_stats(). Returns n. */
ssize_t pinned_tell(struct conn *c, int fd, uint64_t had, ssize_t n);

/* Not looked at more closely than once in so many bytes. */
#define PINNED_LOOK_SHIFT 12

/* Counts n bytes, of which there are some, at `count` in the record. Ends in a call, if in any, so that who ends in this has little to save. Returns n. */
static inline ssize_t pinned_count(int fd, uintptr_t word, size_t count, ssize_t n)
{
	struct conn *c;
	_Atomic uint64_t *bytes;
	uint64_t had, have;

	/* It is not what it was before the call: another thread has closed the number. */
	if (unlikely(!(word & FD_PINNED)))
		return n;
	c = (struct conn *)(word - FD_PINNED);
	bytes = (_Atomic uint64_t *)((char *)c + count);
	had = load_relaxed(bytes);
	have = had + (uint64_t)n;
	if (likely(lane_is_alone(load_relaxed(&c->shared))))
		store_relaxed(bytes, have);
	else
		fetch_add(bytes, (uint64_t)n);
	return unlikely((had ^ have) >> PINNED_LOOK_SHIFT) ? pinned_tell(c, fd, had, n) : n;
}

/* Behind the kernel's call, as the libc call. */
static inline ssize_t pinned_received(int fd, ssize_t n)
{
	uintptr_t word;

	if (unlikely(n <= 0))
		return n ? n : pinned_end(fd);
	word = fdtab_word((uint32_t)fd);
	return pinned_count(fd, word, offsetof(struct conn, rx.tcp_bytes), n);
}

static inline ssize_t pinned_sent(int fd, ssize_t n)
{
	uintptr_t word;

	if (unlikely(n <= 0))
		return n;
	word = fdtab_word((uint32_t)fd);
	return pinned_count(fd, word, offsetof(struct conn, tx.tcp_bytes), n);
}

#endif
