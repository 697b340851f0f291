/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_NEGO_MSG_H
#define RINGWAY_NEGO_MSG_H

/*
 * The messages of the rendezvous and the name of the offer (PROTOCOL.md sections 2.3 and 3): to bytes and from bytes.
 * No socket is touched here, so that everything that parses a stranger's bytes can be tested and fuzzed by itself.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define NEGO_MAGIC 0x31595752u
#define NEGO_VERSION 1
#define NEGO_HELLO_SIZE 144
#define NEGO_VERDICT_SIZE 80
#define NEGO_WAIT_SIZE 16
#define NEGO_NAME_MAX 96

/* A connection by its two addresses, the same at both ends: IPv4-mapped addresses are family 4, scope ids are gone. */
struct nego_tuple {
	uint16_t family;		/* 4 or 6 */
	uint16_t connector_port;	/* host order */
	uint16_t acceptor_port;
	uint8_t connector_addr[16];	/* network order; family 4: the first four, the rest 0 */
	uint8_t acceptor_addr[16];
};

enum nego_verdict {
	NEGO_AGREE = 0,
	NEGO_MALFORMED = 1,
	NEGO_COUNTS = 2,
	NEGO_RESOURCES = 3,
	NEGO_NOT_NOW = 4,
	NEGO_FULL = 5,
	NEGO_NR_VERDICTS
};

/* What either end tells the other about itself. */
struct nego_self {
	uint64_t nonce[2];
	uint64_t data_key;	/* its bells: "there is data for you", "there is room for you" */
	uint64_t room_key;
	uint32_t data_port;
	uint32_t room_port;
	uint64_t read_bytes;	/* program bytes that it has read from TCP */
};

struct nego_hello {
	struct nego_tuple tuple;
	struct nego_self self;
	uint64_t ring_bytes;
	uint64_t segment_bytes;
	uint64_t epoch;
};

struct nego_verdict_msg {
	enum nego_verdict verdict;
	struct nego_self self;	/* zero unless agreed */
};

/* 0, or -EAFNOSUPPORT for anything but two IPv4 or two IPv6 addresses with ports. */
int nego_tuple_make(struct nego_tuple *t, const struct sockaddr *connector, const struct sockaddr *acceptor);
bool nego_tuple_equal(const struct nego_tuple *a, const struct nego_tuple *b);

/* Writes the abstract name, its leading zero byte included, and returns its length; `name` has NEGO_NAME_MAX bytes. */
size_t nego_name(char *name, const struct nego_tuple *t);

void nego_hello_encode(uint8_t out[NEGO_HELLO_SIZE], const struct nego_hello *h);
void nego_verdict_encode(uint8_t out[NEGO_VERDICT_SIZE], const struct nego_verdict_msg *v);
/* In the place of HELLO, from an acceptor without room for a link. */
void nego_wait_encode(uint8_t out[NEGO_WAIT_SIZE]);

/* 0, or -EPROTO for bytes that are not exactly such a message. `len` is what the packet had, which may be more than fits. */
int nego_hello_decode(struct nego_hello *h, const uint8_t *in, size_t len);
int nego_verdict_decode(struct nego_verdict_msg *v, const uint8_t *in, size_t len);
bool nego_is_wait(const uint8_t *in, size_t len);

#endif
