/* SPDX-License-Identifier: MIT */
/*
 * Messages of the rendezvous. Fields are written at their offsets one by one rather than through a struct laid over the
 * bytes: the table in PROTOCOL.md is then checked by reading, and neither alignment nor byte order can creep in.
 */
#include "shim/nego_msg.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "shim/le.h"

enum { TYPE_HELLO = 1, TYPE_VERDICT = 2, TYPE_WAIT = 3 };

enum { OFF_MAGIC = 0, OFF_VERSION = 4, OFF_TYPE = 6, OFF_LENGTH = 8, OFF_RESERVED = 12 };

enum {
	HELLO_FAMILY = 16,
	HELLO_CONNECTOR_PORT = 18,
	HELLO_ACCEPTOR_PORT = 20,
	HELLO_RESERVED_1 = 22,
	HELLO_CONNECTOR_ADDR = 24,
	HELLO_ACCEPTOR_ADDR = 40,
	HELLO_NONCE = 56,
	HELLO_RING = 96,
	HELLO_SEGMENT = 104,
	HELLO_READ = 112,
	HELLO_EPOCH = 120,
	HELLO_RESERVED_2 = 128,
};

/* From the nonce on, in both messages alike; the read count follows in VERDICT only. */
enum { SELF_NONCE = 0, SELF_DATA_KEY = 16, SELF_ROOM_KEY = 24, SELF_DATA_PORT = 32, SELF_ROOM_PORT = 36 };

enum {
	VERDICT_CODE = 16,
	VERDICT_RESERVED_1 = 20,
	VERDICT_NONCE = 24,
	VERDICT_READ = 64,
	VERDICT_RESERVED_2 = 72,
};

static bool all_zero(const uint8_t *p, size_t len)
{
	uint8_t any = 0;

	for (size_t i = 0; i < len; i++)
		any |= p[i];
	return !any;
}

static void put_head(uint8_t *out, unsigned int type, size_t size)
{
	memset(out, 0, size);
	put_le(out + OFF_MAGIC, NEGO_MAGIC, 4);
	put_le(out + OFF_VERSION, NEGO_VERSION, 2);
	put_le(out + OFF_TYPE, type, 2);
	put_le(out + OFF_LENGTH, size, 4);
}

static bool head_is(const uint8_t *in, size_t len, unsigned int type, size_t size)
{
	return len == size && get_le(in + OFF_MAGIC, 4) == NEGO_MAGIC && get_le(in + OFF_VERSION, 2) == NEGO_VERSION &&
	       get_le(in + OFF_TYPE, 2) == type && get_le(in + OFF_LENGTH, 4) == size && !get_le(in + OFF_RESERVED, 4);
}

static void put_self(uint8_t *p, uint8_t *read, const struct nego_self *self)
{
	put_le(p + SELF_NONCE, self->nonce[0], 8);
	put_le(p + SELF_NONCE + 8, self->nonce[1], 8);
	put_le(p + SELF_DATA_KEY, self->data_key, 8);
	put_le(p + SELF_ROOM_KEY, self->room_key, 8);
	put_le(p + SELF_DATA_PORT, self->data_port, 4);
	put_le(p + SELF_ROOM_PORT, self->room_port, 4);
	put_le(read, self->read_bytes, 8);
}

/* Port 0 is the kernel's own netlink socket: a bell rung there would be a request to the kernel. */
static int get_self(struct nego_self *self, const uint8_t *p, const uint8_t *read)
{
	self->nonce[0] = get_le(p + SELF_NONCE, 8);
	self->nonce[1] = get_le(p + SELF_NONCE + 8, 8);
	self->data_key = get_le(p + SELF_DATA_KEY, 8);
	self->room_key = get_le(p + SELF_ROOM_KEY, 8);
	self->data_port = (uint32_t)get_le(p + SELF_DATA_PORT, 4);
	self->room_port = (uint32_t)get_le(p + SELF_ROOM_PORT, 4);
	self->read_bytes = get_le(read, 8);
	if (!(self->nonce[0] | self->nonce[1]) || !self->data_key || !self->room_key || !self->data_port || !self->room_port)
		return -EPROTO;
	return 0;
}

void nego_hello_encode(uint8_t out[NEGO_HELLO_SIZE], const struct nego_hello *h)
{
	put_head(out, TYPE_HELLO, NEGO_HELLO_SIZE);
	put_le(out + HELLO_FAMILY, h->tuple.family, 2);
	put_le(out + HELLO_CONNECTOR_PORT, h->tuple.connector_port, 2);
	put_le(out + HELLO_ACCEPTOR_PORT, h->tuple.acceptor_port, 2);
	memcpy(out + HELLO_CONNECTOR_ADDR, h->tuple.connector_addr, 16);
	memcpy(out + HELLO_ACCEPTOR_ADDR, h->tuple.acceptor_addr, 16);
	put_self(out + HELLO_NONCE, out + HELLO_READ, &h->self);
	put_le(out + HELLO_RING, h->ring_bytes, 8);
	put_le(out + HELLO_SEGMENT, h->segment_bytes, 8);
	put_le(out + HELLO_EPOCH, h->epoch, 8);
}

int nego_hello_decode(struct nego_hello *h, const uint8_t *in, size_t len)
{
	memset(h, 0, sizeof(*h));
	if (!head_is(in, len, TYPE_HELLO, NEGO_HELLO_SIZE) || get_le(in + HELLO_RESERVED_1, 2) ||
	    !all_zero(in + HELLO_RESERVED_2, NEGO_HELLO_SIZE - HELLO_RESERVED_2))
		return -EPROTO;
	h->tuple.family = (uint16_t)get_le(in + HELLO_FAMILY, 2);
	h->tuple.connector_port = (uint16_t)get_le(in + HELLO_CONNECTOR_PORT, 2);
	h->tuple.acceptor_port = (uint16_t)get_le(in + HELLO_ACCEPTOR_PORT, 2);
	memcpy(h->tuple.connector_addr, in + HELLO_CONNECTOR_ADDR, 16);
	memcpy(h->tuple.acceptor_addr, in + HELLO_ACCEPTOR_ADDR, 16);
	h->ring_bytes = get_le(in + HELLO_RING, 8);
	h->segment_bytes = get_le(in + HELLO_SEGMENT, 8);
	h->epoch = get_le(in + HELLO_EPOCH, 8);
	if (h->tuple.family != 4 && h->tuple.family != 6)
		return -EPROTO;
	return get_self(&h->self, in + HELLO_NONCE, in + HELLO_READ);
}

void nego_verdict_encode(uint8_t out[NEGO_VERDICT_SIZE], const struct nego_verdict_msg *v)
{
	put_head(out, TYPE_VERDICT, NEGO_VERDICT_SIZE);
	put_le(out + VERDICT_CODE, (uint64_t)v->verdict, 4);
	if (v->verdict == NEGO_AGREE)
		put_self(out + VERDICT_NONCE, out + VERDICT_READ, &v->self);
}

int nego_verdict_decode(struct nego_verdict_msg *v, const uint8_t *in, size_t len)
{
	uint64_t code;

	memset(v, 0, sizeof(*v));
	v->verdict = NEGO_MALFORMED;
	if (!head_is(in, len, TYPE_VERDICT, NEGO_VERDICT_SIZE) || get_le(in + VERDICT_RESERVED_1, 4) ||
	    !all_zero(in + VERDICT_RESERVED_2, NEGO_VERDICT_SIZE - VERDICT_RESERVED_2))
		return -EPROTO;
	code = get_le(in + VERDICT_CODE, 4);
	if (code >= NEGO_NR_VERDICTS)
		return -EPROTO;
	if (code != NEGO_AGREE && !all_zero(in + VERDICT_NONCE, VERDICT_RESERVED_2 - VERDICT_NONCE))
		return -EPROTO;
	if (code == NEGO_AGREE && get_self(&v->self, in + VERDICT_NONCE, in + VERDICT_READ))
		return -EPROTO;
	v->verdict = (enum nego_verdict)code;
	return 0;
}

void nego_wait_encode(uint8_t out[NEGO_WAIT_SIZE])
{
	put_head(out, TYPE_WAIT, NEGO_WAIT_SIZE);
}

bool nego_is_wait(const uint8_t *in, size_t len)
{
	return head_is(in, len, TYPE_WAIT, NEGO_WAIT_SIZE);
}

/* Splits an address into ours: family 4 for IPv4 and for IPv4-mapped IPv6. Returns the family or 0. */
static unsigned int split(const struct sockaddr *sa, uint8_t addr[16], uint16_t *port)
{
	memset(addr, 0, 16);
	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *in4 = (const struct sockaddr_in *)sa;

		memcpy(addr, &in4->sin_addr, 4);
		*port = ntohs(in4->sin_port);
		return 4;
	}
	if (sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

		*port = ntohs(in6->sin6_port);
		if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
			memcpy(addr, in6->sin6_addr.s6_addr + 12, 4);
			return 4;
		}
		memcpy(addr, &in6->sin6_addr, 16);
		return 6;
	}
	return 0;
}

int nego_tuple_make(struct nego_tuple *t, const struct sockaddr *connector, const struct sockaddr *acceptor)
{
	unsigned int a, b;

	memset(t, 0, sizeof(*t));
	a = split(connector, t->connector_addr, &t->connector_port);
	b = split(acceptor, t->acceptor_addr, &t->acceptor_port);
	if (!a || a != b || !t->connector_port || !t->acceptor_port)
		return -EAFNOSUPPORT;
	t->family = (uint16_t)a;
	return 0;
}

bool nego_tuple_equal(const struct nego_tuple *a, const struct nego_tuple *b)
{
	return a->family == b->family && a->connector_port == b->connector_port && a->acceptor_port == b->acceptor_port &&
	       !memcmp(a->connector_addr, b->connector_addr, 16) && !memcmp(a->acceptor_addr, b->acceptor_addr, 16);
}

static char *put_hex(char *p, const uint8_t *bytes, size_t nr)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < nr; i++) {
		*p++ = digits[bytes[i] >> 4];
		*p++ = digits[bytes[i] & 15];
	}
	return p;
}

static char *put_end(char *p, const uint8_t *addr, size_t nr, uint16_t port)
{
	uint8_t be[2] = { (uint8_t)(port >> 8), (uint8_t)port };

	*p++ = '/';
	p = put_hex(p, addr, nr);
	*p++ = ':';
	return put_hex(p, be, 2);
}

/* By hand: the shim may run in a signal handler, where snprintf() may not. */
size_t nego_name(char *name, const struct nego_tuple *t)
{
	static const char prefix[] = "ringway-1/";
	size_t nr = t->family == 4 ? 4 : 16;
	char *p = name;

	*p++ = '\0';
	memcpy(p, prefix, sizeof(prefix) - 1);
	p += sizeof(prefix) - 1;
	*p++ = t->family == 4 ? '4' : '6';
	p = put_end(p, t->connector_addr, nr, t->connector_port);
	p = put_end(p, t->acceptor_addr, nr, t->acceptor_port);
	return (size_t)(p - name);
}
