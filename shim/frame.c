/* SPDX-License-Identifier: MIT */
#include "shim/frame.h"

#include <string.h>

#include "shim/le.h"

#define FRAME_MAGIC 0x31465752u

/* One round that spreads every input bit over the word; the constants are odd and have about half of their bits set. */
uint64_t frame_mix(uint64_t state, uint64_t word)
{
	state = (state ^ word) * UINT64_C(0x9fb21c651e98df25);
	state ^= state >> 29;
	state *= UINT64_C(0xd6e8feb86659fd93);
	return state ^ (state >> 32);
}

void frame_make(uint8_t out[FRAME_SIZE], enum frame_type type, const uint64_t sender_nonce[2],
		const uint64_t receiver_nonce[2], uint64_t pos)
{
	for (int half = 0; half < 2; half++) {
		uint64_t h = frame_mix(UINT64_C(0x52696e67776179) + (uint64_t)half, (uint64_t)type);

		h = frame_mix(h, sender_nonce[half]);
		h = frame_mix(h, sender_nonce[1 - half]);
		h = frame_mix(h, receiver_nonce[half]);
		h = frame_mix(h, receiver_nonce[1 - half]);
		put_le(out + 16 + 8 * half, frame_mix(h, pos), 8);
	}
	put_le(out, FRAME_MAGIC, 4);
	put_le(out + 4, (uint64_t)type, 4);
	put_le(out + 8, pos, 8);
}

uint32_t frame_type_of(const uint8_t *bytes, size_t len)
{
	return len < 8 ? 0 : (uint32_t)get_le(bytes + 4, 4);
}

uint64_t frame_pos_of(const uint8_t *bytes, size_t len)
{
	return len < 16 ? 0 : get_le(bytes + 8, 8);
}

bool frame_matches(const uint8_t expected[FRAME_SIZE], const uint8_t *got, size_t offset, size_t len)
{
	return offset <= FRAME_SIZE && len <= FRAME_SIZE - offset && memcmp(expected + offset, got, len) == 0;
}
