/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_NEGO_REMOTE_MSG_H
#define RINGWAY_NEGO_REMOTE_MSG_H

/*
 * The message of a rendezvous between hosts, the same in a dial and in the answer to it (ringbuf/VERBS.md): to bytes and from bytes. Nothing else is
 * touched here.
 */

#include <stdint.h>

#include "shim/nego_msg.h"

#define NEGO_REMOTE_SIZE 56

/* What either end tells the other about itself. */
struct nego_remote_self {
	uint64_t nonce[2];
	uint64_t ring_address;	/* where its receive ring is, and by which key it is written */
	uint64_t read_bytes;	/* program bytes that it has read from TCP */
	uint32_t epoch;		/* SWITCH frames that it has seen, as in a HELLO */
	uint32_t ring_key;
	uint32_t ring_bytes;
};

void nego_remote_encode(uint8_t out[NEGO_REMOTE_SIZE], const struct nego_tuple *t, const struct nego_remote_self *self);

/*
 * 0, or -EPROTO for bytes that do not begin with such a message, about exactly this connection. The devices pad what they carry, so `len` may be
 * more than the message has.
 */
int nego_remote_decode(struct nego_remote_self *self, const struct nego_tuple *t, const uint8_t *in, size_t len);

#endif
