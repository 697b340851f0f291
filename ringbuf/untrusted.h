/* SPDX-License-Identifier: MIT */
/*
 * Words in memory that another process can write. A plain read of one does not compile: it is taken exactly once with
 * peer_read_*(), bounded as a local, and only the local is used. Every word has one side that normally writes it, and
 * that side never reads it back for truth: it keeps its own copy in private memory.
 */
#ifndef RINGWAY_RINGBUF_UNTRUSTED_H
#define RINGWAY_RINGBUF_UNTRUSTED_H

#include "ringbuf/atomic.h"

typedef struct { _Atomic uint64_t peer_word; } peer_u64;
typedef struct { _Atomic uint32_t peer_word; } peer_u32;

/* Acquire: what the peer wrote before it published the value is visible afterwards. */
static inline uint64_t peer_read_u64(const peer_u64 *word)
{
	return load_acquire(&((peer_u64 *)word)->peer_word);
}

static inline uint32_t peer_read_u32(const peer_u32 *word)
{
	return load_acquire(&((peer_u32 *)word)->peer_word);
}

/* Release: what was written before is visible to whoever reads the value. */
static inline void peer_publish_u64(peer_u64 *word, uint64_t value)
{
	store_release(&word->peer_word, value);
}

static inline void peer_publish_u32(peer_u32 *word, uint32_t value)
{
	store_release(&word->peer_word, value);
}

/*
 * Is a free-running position that was read from a peer between two positions known to be good? True for
 * low <= pos <= high in arithmetic modulo 2^64, given high - low < 2^63.
 */
static inline bool pos_within(uint64_t pos, uint64_t low, uint64_t high)
{
	return pos - low <= high - low;
}

/* An index from a peer, or `count` (never a valid index) where it is out of range. */
static inline uint32_t index_within(uint32_t index, uint32_t count)
{
	return index < count ? index : count;
}

#endif
