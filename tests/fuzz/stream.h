/* SPDX-License-Identifier: MIT
 * Pseudo-random numbers, and streams of bytes made of them, which the receiver computes as well as the sender.
 */
#ifndef TESTS_FUZZ_STREAM_H
#define TESTS_FUZZ_STREAM_H

#include <stddef.h>
#include <stdint.h>

struct stream {
	uint64_t state;
	uint64_t word;
	unsigned left;
};

static inline uint64_t random_next(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static inline unsigned pick(uint64_t *state, unsigned nr)
{
	return (unsigned)(random_next(state) % nr);
}

static inline void stream_bytes(struct stream *s, uint8_t *to, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (!s->left) {
			s->word = random_next(&s->state);
			s->left = 8;
		}
		to[i] = (uint8_t)s->word;
		s->word >>= 8;
		s->left--;
	}
}

#endif
