/* SPDX-License-Identifier: MIT */
/* What is sent and how it is checked: a pattern in which every position looks different, and a sum over what came. */
#include <string.h>

#include "actor.h"

enum { MARK = 0xa5 };

void bytes_pattern(const struct actor *a, const struct name *n, uint64_t from_pos, unsigned char *to, size_t len)
{
	uint64_t key = a->seed * 0x100000001b3ull;

	for (const char *c = n->text; *c; c++)
		key = (key ^ (unsigned char)*c) * 0x100000001b3ull;
	for (size_t i = 0; i < len; i++)
		to[i] = (unsigned char)(((from_pos + i + 1) * 0x9e3779b97f4a7c15ull ^ key) >> 37);
}

uint32_t bytes_sum(uint32_t sum, const unsigned char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		sum = (sum ^ bytes[i]) * 0x01000193u;
	return sum;
}

void bytes_mark(unsigned char *buf, size_t len)
{
	memset(buf, MARK, len);
}

bool bytes_marked(const unsigned char *buf, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != MARK)
			return false;
	return true;
}
