/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_LE_H
#define RINGWAY_LE_H

/* Numbers of 1 to 8 bytes in messages and frames: little-endian, at any address. */

#include <stdint.h>

static inline void put_le(uint8_t *p, uint64_t v, unsigned int bytes)
{
	for (unsigned int i = 0; i < bytes; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static inline uint64_t get_le(const uint8_t *p, unsigned int bytes)
{
	uint64_t v = 0;

	for (unsigned int i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

#endif
