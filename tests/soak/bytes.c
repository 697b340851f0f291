/* SPDX-License-Identifier: MIT */
/* What is sent: eight bytes are a number made of the stream's key and their place, so that no piece of a stream looks like another one. */
#include <string.h>

#include "soak.h"

enum { SEARCHED = 4 << 20, PIECE = 4096, KNOWN_BY = 8 };

uint64_t stream_key(uint32_t conn, int sender)
{
	return mix(board->seed ^ 0x5eed, ((uint64_t)conn << 1) + (uint64_t)sender);
}

static uint64_t word_at(uint64_t key, uint64_t index)
{
	uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u ^ key;

	x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
	return x ^ x >> 32;
}

void bytes_fill(uint64_t key, uint64_t pos, uint8_t *to, size_t len)
{
	while (len) {
		uint64_t word = word_at(key, pos / 8);
		size_t from = pos % 8, n = 8 - from < len ? 8 - from : len;

		memcpy(to, (uint8_t *)&word + from, n);
		to += n;
		pos += n;
		len -= n;
	}
}

ssize_t bytes_differ(uint64_t key, uint64_t pos, const uint8_t *got, size_t len)
{
	uint8_t expected[PIECE];

	for (size_t done = 0; done < len; done += PIECE) {
		size_t n = len - done < PIECE ? len - done : PIECE;

		bytes_fill(key, pos + done, expected, n);
		if (!memcmp(expected, got + done, n))
			continue;
		for (size_t i = 0; i < n; i++)
			if (expected[i] != got[done + i])
				return (ssize_t)(done + i);
	}
	return -1;
}

int64_t bytes_find(uint64_t key, uint64_t pos, const uint8_t *got, size_t len)
{
	uint64_t first = pos > SEARCHED ? pos - SEARCHED : 0;

	if (len < KNOWN_BY)
		return -1;
	for (uint64_t at = first; at < pos + SEARCHED; at++) {
		uint8_t there[KNOWN_BY];

		bytes_fill(key, at, there, KNOWN_BY);
		if (!memcmp(there, got, KNOWN_BY))
			return (int64_t)at;
	}
	return -1;
}
