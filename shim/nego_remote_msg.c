/* SPDX-License-Identifier: MIT */
/*
 * As in nego_msg.c, fields are written at their offsets one by one. There is no room for both addresses: a check stands for the whole 4-tuple. It keeps
 * two connections apart whose messages are mixed up by mistake; who forges one proves nothing before the frame in the TCP stream.
 */
#include "shim/nego_remote_msg.h"

#include <errno.h>
#include <string.h>

#include "ringbuf/layout.h"
#include "shim/frame.h"
#include "shim/le.h"

#define REMOTE_MAGIC 0x31565752u

enum { REMOTE_VERSION = 1, REMOTE_RECEIVES = 128 };

enum {
	OFF_MAGIC = 0,
	OFF_VERSION = 4,
	OFF_RING = 6,
	OFF_FAMILY = 7,
	OFF_NONCE = 8,
	OFF_ADDRESS = 24,
	OFF_KEY = 32,
	OFF_CHECK = 36,
	OFF_READ = 40,
	OFF_PORT = 48,
	OFF_RECEIVES = 50,
	OFF_EPOCH = 52,
};

static uint32_t check_of(const struct nego_tuple *t, const uint64_t nonce[2])
{
	uint64_t h = frame_mix(REMOTE_MAGIC, nonce[0]);

	h = frame_mix(h, nonce[1]);
	h = frame_mix(h, (uint64_t)t->family << 32 | (uint32_t)t->connector_port << 16 | t->acceptor_port);
	for (int i = 0; i < 16; i += 8) {
		h = frame_mix(h, get_le(t->connector_addr + i, 8));
		h = frame_mix(h, get_le(t->acceptor_addr + i, 8));
	}
	return (uint32_t)(h >> 32);
}

void nego_remote_encode(uint8_t out[NEGO_REMOTE_SIZE], const struct nego_tuple *t, const struct nego_remote_self *self)
{
	memset(out, 0, NEGO_REMOTE_SIZE);
	put_le(out + OFF_MAGIC, REMOTE_MAGIC, 4);
	put_le(out + OFF_VERSION, REMOTE_VERSION, 2);
	out[OFF_RING] = self->ring_bytes ? (uint8_t)__builtin_ctz(self->ring_bytes) : 0;
	out[OFF_FAMILY] = (uint8_t)t->family;
	put_le(out + OFF_NONCE, self->nonce[0], 8);
	put_le(out + OFF_NONCE + 8, self->nonce[1], 8);
	put_le(out + OFF_ADDRESS, self->ring_address, 8);
	put_le(out + OFF_KEY, self->ring_key, 4);
	put_le(out + OFF_CHECK, check_of(t, self->nonce), 4);
	put_le(out + OFF_READ, self->read_bytes, 8);
	put_le(out + OFF_PORT, t->acceptor_port, 2);
	put_le(out + OFF_RECEIVES, REMOTE_RECEIVES, 2);
	put_le(out + OFF_EPOCH, self->epoch, 4);
}

int nego_remote_decode(struct nego_remote_self *self, const struct nego_tuple *t, const uint8_t *in, size_t len)
{
	memset(self, 0, sizeof(*self));
	if (len < NEGO_REMOTE_SIZE || get_le(in + OFF_MAGIC, 4) != REMOTE_MAGIC || get_le(in + OFF_VERSION, 2) != REMOTE_VERSION ||
	    in[OFF_FAMILY] != t->family || get_le(in + OFF_PORT, 2) != t->acceptor_port ||
	    get_le(in + OFF_RECEIVES, 2) != REMOTE_RECEIVES)
		return -EPROTO;
	if (in[OFF_RING] && (in[OFF_RING] >= 32 || UINT32_C(1) << in[OFF_RING] < RING_BYTES_MIN || UINT32_C(1) << in[OFF_RING] > RING_BYTES_MAX))
		return -EPROTO;
	self->ring_bytes = in[OFF_RING] ? UINT32_C(1) << in[OFF_RING] : 0;
	self->nonce[0] = get_le(in + OFF_NONCE, 8);
	self->nonce[1] = get_le(in + OFF_NONCE + 8, 8);
	self->ring_address = get_le(in + OFF_ADDRESS, 8);
	self->ring_key = (uint32_t)get_le(in + OFF_KEY, 4);
	self->read_bytes = get_le(in + OFF_READ, 8);
	self->epoch = (uint32_t)get_le(in + OFF_EPOCH, 4);
	if (!(self->nonce[0] | self->nonce[1]) || get_le(in + OFF_CHECK, 4) != check_of(t, self->nonce))
		return -EPROTO;
	return 0;
}
