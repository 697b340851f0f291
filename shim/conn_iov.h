/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CONN_IOV_H
#define RINGWAY_CONN_IOV_H

/* Walking an iovec, and what the kernel would refuse of one. */

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ringbuf/atomic.h"

struct iov_walk {
	const struct iovec *iov;
	size_t nr;
	size_t skip;	/* bytes of *iov that are done */
	size_t left;	/* bytes to go, all in all */
	bool holes;	/* some pieces lie in the first page: told when it is their turn */
};

/* The kernel moves at most this much in one call and ignores the rest. */
#define IOV_MAX_BYTES ((size_t)0x7ffff000)

/* Above it no program has memory that it did not ask for by address. */
#if defined(__aarch64__)
#define USER_TOP (UINT64_C(1) << 48)
#else
#define USER_TOP (UINT64_C(1) << 47)
#endif

/* No program has its first page. */
#define USER_HOLE 4096

/* Beyond what a program can have: the kernel refuses such a range before it does anything. */
static inline bool user_range_beyond(const void *at, size_t len)
{
	uintptr_t a = (uintptr_t)at;

	return len && (a + len < a || a + len > USER_TOP);
}

static inline bool user_in_hole(const void *at)
{
	return (uintptr_t)at < USER_HOLE;
}

/*
 * Where no user memory can be: the first page, and above the user half. What lies between is touched, and where the kernel
 * would say EFAULT of an unmapped page the program gets the signal that its own access would have got.
 */
static inline bool user_range_bad(const void *at, size_t len)
{
	return len && (user_in_hole(at) || user_range_beyond(at, len));
}

/* Could any range of up to `most` bytes from there on be bad? One comparison, for who goes another way then. */
static inline bool user_at_edge(const void *at, size_t most)
{
	return (uintptr_t)at - USER_HOLE >= USER_TOP - USER_HOLE - most;
}

/* 0, -EMSGSIZE or -EINVAL as the kernel, -EFAULT. Every length is looked at before any address. */
static inline int iov_start(struct iov_walk *w, const struct iovec *iov, size_t nr)
{
	bool beyond = false, holes = false;
	size_t total = 0;

	if (nr > IOV_MAX)
		return -EMSGSIZE;
	if (nr && user_range_bad(iov, nr * sizeof(*iov)))
		return -EFAULT;
	for (size_t i = 0; i < nr; i++) {
		if ((ssize_t)iov[i].iov_len < 0)
			return -EINVAL;
		beyond |= user_range_beyond(iov[i].iov_base, iov[i].iov_len);
		holes |= iov[i].iov_len && user_in_hole(iov[i].iov_base);
		total += iov[i].iov_len < IOV_MAX_BYTES - total ? iov[i].iov_len : IOV_MAX_BYTES - total;
	}
	if (beyond)
		return -EFAULT;
	*w = (struct iov_walk){ .iov = iov, .nr = nr, .left = total, .holes = holes };
	return 0;
}

/* The next piece in one stretch; its length, 0 at the end. */
static inline size_t iov_piece(struct iov_walk *w, uint8_t **at)
{
	size_t len;

	if (!w->left)
		return 0;
	while (w->skip == w->iov->iov_len) {
		w->iov++;
		w->nr--;
		w->skip = 0;
	}
	len = w->iov->iov_len - w->skip;
	*at = (uint8_t *)w->iov->iov_base + w->skip;
	return len < w->left ? len : w->left;
}

/* `len` bytes, at most what iov_piece() gave, are done. */
static inline void iov_advance(struct iov_walk *w, size_t len)
{
	w->skip += len;
	w->left -= len;
}

/* The same over several pieces. */
static inline void iov_skip(struct iov_walk *w, size_t len)
{
	uint8_t *at;

	while (len) {
		size_t piece = iov_piece(w, &at);

		piece = piece < len ? piece : len;
		iov_advance(w, piece);
		len -= piece;
	}
}

/* Is there no memory for one of the bytes to go? */
static inline bool iov_meets_hole(const struct iov_walk *walk)
{
	struct iov_walk w = *walk;
	uint8_t *at;

	if (likely(!w.holes))
		return false;
	for (size_t len; (len = iov_piece(&w, &at)); iov_advance(&w, len))
		if (user_in_hole(at))
			return true;
	return false;
}

#define IOV_WINDOW 64
/* So many need little of a stack that may be a signal handler's own. */
#define IOV_FEW 8

/* The next up to IOV_WINDOW pieces, at most `cap` bytes, for a system call. Returns how many; *bytes is their sum. */
static inline size_t iov_window(const struct iov_walk *walk, size_t cap, struct iovec out[IOV_WINDOW], size_t *bytes)
{
	struct iov_walk w = *walk;
	size_t nr = 0;
	uint8_t *at;

	*bytes = 0;
	if (w.left > cap)
		w.left = cap;
	while (nr < IOV_WINDOW) {
		size_t len = iov_piece(&w, &at);

		if (!len)
			break;
		out[nr++] = (struct iovec){ .iov_base = at, .iov_len = len };
		*bytes += len;
		iov_advance(&w, len);
	}
	return nr;
}

#endif
