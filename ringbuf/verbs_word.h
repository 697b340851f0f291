/* SPDX-License-Identifier: MIT */
/* The word that every message between engines carries, and the messages that are more than a word (VERBS.md). Nothing of verbs here. */
#ifndef RINGWAY_RINGBUF_VERBS_WORD_H
#define RINGWAY_RINGBUF_VERBS_WORD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ringbuf/lane.h"

#define WORD_LENGTH_MAX UINT32_C(0xffff)
#define WORD_CREDIT_SHIFT 16
#define WORD_CREDIT_MASK UINT32_C(0xff)
#define WORD_RECEIVES_SHIFT 24
#define WORD_RECEIVES_MASK UINT32_C(0x3f)
#define WORD_HELD (UINT32_C(1) << 30)
#define WORD_REOPEN (UINT32_C(1) << 31)
#define WORD_AHEAD (WORD_HELD | WORD_REOPEN)
#define WORD_FLAGS (WORD_HELD | WORD_REOPEN)

#define CREDIT_UNITS 128 /* a ring */

static inline uint32_t word_make(uint32_t length, uint64_t head_units, uint64_t batches, uint32_t flags)
{
	return length | ((uint32_t)head_units & WORD_CREDIT_MASK) << WORD_CREDIT_SHIFT |
	       ((uint32_t)batches & WORD_RECEIVES_MASK) << WORD_RECEIVES_SHIFT | flags;
}

static inline uint32_t word_length(uint32_t word)
{
	return word & WORD_LENGTH_MAX;
}

/* The count that the word's few bits stand for, given the last one: counts never go back. */
static inline uint64_t word_credit(uint32_t word, uint64_t last)
{
	return last + (((word >> WORD_CREDIT_SHIFT) - (uint32_t)last) & WORD_CREDIT_MASK);
}

static inline uint64_t word_receives(uint32_t word, uint64_t last)
{
	return last + (((word >> WORD_RECEIVES_SHIFT) - (uint32_t)last) & WORD_RECEIVES_MASK);
}

#define MESSAGE_BYTES 32

enum message_kind {
	MESSAGE_MEMORY = 1,
	MESSAGE_WORDS = 2,
	MESSAGE_WORD = 3,
	MESSAGE_GONE = 4,
};

#define ATTENTION_SOON 16	/* beside those bits: ASKED_SOON */
#define ATTENTION_OF_TX(flags) ((flags) >> 2 & 3)	/* WAKE_ATTN_* to the bits of a message */
#define ATTENTION_OF_RX(flags) (((flags) >> 2 & 3) << 2)
#define ATTENTION_TX(bits) (((bits) & 3u) << 2)	/* and back */
#define ATTENTION_RX(bits) (((bits) >> 2 & 3u) << 2)

struct message {
	uint8_t kind;
	uint8_t attention;
	uint32_t word;
	union {
		struct {
			uint32_t announce_seq, void_seq;
			uint64_t announce_at;
			uint32_t ack_seq, words_frames;
		};
		struct {
			uint32_t shown_key, ring_key;
			uint64_t shown_address, ring_address;
		};
		struct {
			uint32_t asked, frames;
			uint64_t head, left_at;
		};
	};
};

static inline void put_le(uint8_t *to, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		to[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t get_le(const uint8_t *from, int bytes)
{
	uint64_t value = 0;

	for (int i = bytes - 1; i >= 0; i--)
		value = value << 8 | from[i];
	return value;
}

static inline void message_put(uint8_t out[MESSAGE_BYTES], const struct message *m)
{
	memset(out, 0, MESSAGE_BYTES);
	out[0] = m->kind;
	out[1] = m->attention;
	put_le(out + 4, m->word, 4);
	if (m->kind == MESSAGE_WORDS) {
		put_le(out + 8, m->announce_seq, 4);
		put_le(out + 12, m->void_seq, 4);
		put_le(out + 16, m->announce_at, 8);
		put_le(out + 24, m->ack_seq, 4);
		put_le(out + 28, m->words_frames, 4);
	} else if (m->kind == MESSAGE_GONE) {
		put_le(out + 8, m->asked, 4);
		put_le(out + 12, m->frames, 4);
		put_le(out + 16, m->head, 8);
		put_le(out + 24, m->left_at, 8);
	} else if (m->kind == MESSAGE_MEMORY) {
		put_le(out + 8, m->shown_key, 4);
		put_le(out + 12, m->ring_key, 4);
		put_le(out + 16, m->shown_address, 8);
		put_le(out + 24, m->ring_address, 8);
	}
}

/* False: malformed. The peer's device may be writing `in`'s successor, never `in` itself: it is posted again after this. */
static inline bool message_get(struct message *m, const uint8_t in[MESSAGE_BYTES])
{
	uint64_t rest = get_le(in + 8, 8) | get_le(in + 16, 8) | get_le(in + 24, 8);

	memset(m, 0, sizeof(*m));
	m->kind = in[0];
	m->attention = in[1];
	m->word = (uint32_t)get_le(in + 4, 4);
	if (in[2] || in[3])
		return false;
	switch (m->kind) {
	case MESSAGE_WORDS:
		m->announce_seq = (uint32_t)get_le(in + 8, 4);
		m->void_seq = (uint32_t)get_le(in + 12, 4);
		m->announce_at = get_le(in + 16, 8);
		m->ack_seq = (uint32_t)get_le(in + 24, 4);
		m->words_frames = (uint32_t)get_le(in + 28, 4);
		return !word_length(m->word) && m->attention < 2 * ATTENTION_SOON;
	case MESSAGE_GONE:
		m->asked = (uint32_t)get_le(in + 8, 4);
		m->frames = (uint32_t)get_le(in + 12, 4);
		m->head = get_le(in + 16, 8);
		m->left_at = get_le(in + 24, 8);
		return !word_length(m->word) && !m->attention && m->asked >= ASKED_GONE && m->asked <= ASKED_AWAY;
	case MESSAGE_MEMORY:
		m->shown_key = (uint32_t)get_le(in + 8, 4);
		m->ring_key = (uint32_t)get_le(in + 12, 4);
		m->shown_address = get_le(in + 16, 8);
		m->ring_address = get_le(in + 24, 8);
		return !word_length(m->word) && !m->attention;
	case MESSAGE_WORD:
		return !m->attention && !rest;
	default:
		return false;
	}
}

#endif
