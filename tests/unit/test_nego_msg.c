/* SPDX-License-Identifier: MIT */
#include "shim/nego_msg.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct sockaddr_storage address(const char *text, uint16_t port)
{
	struct sockaddr_storage ss = { 0 };
	struct sockaddr_in *in4 = (struct sockaddr_in *)&ss;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&ss;

	if (inet_pton(AF_INET, text, &in4->sin_addr) == 1) {
		in4->sin_family = AF_INET;
		in4->sin_port = htons(port);
	} else {
		assert_int_equal(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
	}
	return ss;
}

static struct nego_tuple tuple(const char *connector, uint16_t cport, const char *acceptor, uint16_t aport)
{
	struct sockaddr_storage a = address(connector, cport), b = address(acceptor, aport);
	struct nego_tuple t;

	assert_int_equal(nego_tuple_make(&t, (struct sockaddr *)&a, (struct sockaddr *)&b), 0);
	return t;
}

static struct nego_hello sample_hello(void)
{
	return (struct nego_hello){
		.tuple = tuple("127.0.0.1", 40000, "127.0.0.2", 80),
		.self = { .nonce = { 0x1122334455667788, 0x99aabbccddeeff00 }, .data_key = 0x0102030405060708,
			  .room_key = 0x1112131415161718, .data_port = 0x80000001, .room_port = 77, .read_bytes = 1234567890123 },
		.ring_bytes = 1 << 20,
		.segment_bytes = (2 << 20) + 8192,
	};
}

static void hello_survives_the_wire(void **state)
{
	struct nego_hello in = sample_hello(), out;
	uint8_t wire[NEGO_HELLO_SIZE];

	nego_hello_encode(wire, &in);
	assert_int_equal(nego_hello_decode(&out, wire, sizeof(wire)), 0);
	assert_true(nego_tuple_equal(&in.tuple, &out.tuple));
	assert_memory_equal(&in.self, &out.self, sizeof(in.self));
	assert_int_equal(in.ring_bytes, out.ring_bytes);
	assert_int_equal(in.segment_bytes, out.segment_bytes);
}

static void hello_has_its_fields_where_the_protocol_says(void **state)
{
	static const struct { const char *name; unsigned int offset; uint8_t bytes[8]; unsigned int nr; } rows[] = {
		{ "magic", 0, { 'R', 'W', 'Y', '1' }, 4 },
		{ "version", 4, { 1, 0 }, 2 },
		{ "type", 6, { 1, 0 }, 2 },
		{ "length", 8, { 144, 0, 0, 0 }, 4 },
		{ "family", 16, { 4, 0 }, 2 },
		{ "connector port", 18, { 0x40, 0x9c }, 2 },
		{ "acceptor port", 20, { 80, 0 }, 2 },
		{ "connector address", 24, { 127, 0, 0, 1, 0, 0, 0, 0 }, 8 },
		{ "acceptor address", 40, { 127, 0, 0, 2, 0, 0, 0, 0 }, 8 },
		{ "nonce", 56, { 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11 }, 8 },
		{ "data key", 72, { 8, 7, 6, 5, 4, 3, 2, 1 }, 8 },
		{ "room key", 80, { 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11 }, 8 },
		{ "data port", 88, { 1, 0, 0, 0x80 }, 4 },
		{ "room port", 92, { 77, 0, 0, 0 }, 4 },
		{ "ring bytes", 96, { 0, 0, 0x10, 0, 0, 0, 0, 0 }, 8 },
	};
	struct nego_hello in = sample_hello();
	uint8_t wire[NEGO_HELLO_SIZE];

	nego_hello_encode(wire, &in);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (memcmp(wire + rows[i].offset, rows[i].bytes, rows[i].nr))
			fail_msg("%s is not at %u", rows[i].name, rows[i].offset);
}

static void verdict_survives_the_wire(void **state)
{
	struct nego_verdict_msg in = { .verdict = NEGO_AGREE, .self = sample_hello().self }, out;
	uint8_t wire[NEGO_VERDICT_SIZE];

	nego_verdict_encode(wire, &in);
	assert_int_equal(nego_verdict_decode(&out, wire, sizeof(wire)), 0);
	assert_int_equal(out.verdict, NEGO_AGREE);
	assert_memory_equal(&in.self, &out.self, sizeof(in.self));
}

static void a_refusal_says_nothing_else(void **state)
{
	for (int code = NEGO_MALFORMED; code < NEGO_NR_VERDICTS; code++) {
		struct nego_verdict_msg in = { .verdict = (enum nego_verdict)code, .self = sample_hello().self }, out;
		uint8_t wire[NEGO_VERDICT_SIZE];

		nego_verdict_encode(wire, &in);
		assert_int_equal(nego_verdict_decode(&out, wire, sizeof(wire)), 0);
		assert_int_equal(out.verdict, code);
		assert_int_equal(out.self.data_key, 0);
		wire[24] = 1;
		assert_int_equal(nego_verdict_decode(&out, wire, sizeof(wire)), -EPROTO);
	}
}

static void a_wait_is_nothing_but_a_head(void **state)
{
	struct nego_verdict_msg v;
	struct nego_hello h;
	uint8_t wire[NEGO_WAIT_SIZE + 1] = { 0 };

	nego_wait_encode(wire);
	assert_true(nego_is_wait(wire, NEGO_WAIT_SIZE));
	assert_int_equal(wire[6], 3);
	assert_int_equal(nego_hello_decode(&h, wire, NEGO_WAIT_SIZE), -EPROTO);
	assert_int_equal(nego_verdict_decode(&v, wire, NEGO_WAIT_SIZE), -EPROTO);
	for (size_t len = 0; len <= sizeof(wire); len++)
		assert_int_equal(nego_is_wait(wire, len), len == NEGO_WAIT_SIZE);
	for (size_t i = 0; i < NEGO_WAIT_SIZE; i++) {
		wire[i] ^= 0x40;
		assert_false(nego_is_wait(wire, NEGO_WAIT_SIZE));
		wire[i] ^= 0x40;
	}
}

static void refuses_any_other_length(void **state)
{
	struct nego_hello hello = sample_hello(), h;
	struct nego_verdict_msg verdict = { .verdict = NEGO_AGREE, .self = hello.self }, v;
	uint8_t wire[NEGO_HELLO_SIZE + 1] = { 0 };

	nego_hello_encode(wire, &hello);
	for (size_t len = 0; len <= sizeof(wire); len++)
		if (len != NEGO_HELLO_SIZE)
			assert_int_equal(nego_hello_decode(&h, wire, len), -EPROTO);
	nego_verdict_encode(wire, &verdict);
	for (size_t len = 0; len <= sizeof(wire); len++)
		if (len != NEGO_VERDICT_SIZE)
			assert_int_equal(nego_verdict_decode(&v, wire, len), -EPROTO);
}

static void refuses_a_changed_fixed_byte(void **state)
{
	static const struct { const char *name; unsigned int from, to; bool hello, verdict; } rows[] = {
		{ "magic", 0, 4, true, true },		{ "version", 4, 6, true, true },
		{ "type", 6, 8, true, true },		{ "length", 8, 12, true, true },
		{ "head reserved", 12, 16, true, true },{ "family", 16, 18, true, false },
		{ "hello reserved", 22, 24, true, false },{ "hello tail", 128, 144, true, false },
		{ "verdict reserved", 20, 24, false, true },{ "verdict tail", 72, 80, false, true },
	};
	struct nego_hello hello = sample_hello(), h;
	struct nego_verdict_msg verdict = { .verdict = NEGO_AGREE, .self = hello.self }, v;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (unsigned int at = rows[i].from; at < rows[i].to; at++)
			for (int bit = 0; bit < 8; bit++) {
				uint8_t wire[NEGO_HELLO_SIZE];

				nego_hello_encode(wire, &hello);
				wire[at] ^= (uint8_t)(1 << bit);
				/* Family 4 and 6 differ in one bit. */
				if (rows[i].hello && !(at == 16 && bit == 1) && nego_hello_decode(&h, wire, sizeof(wire)) != -EPROTO)
					fail_msg("hello took a changed %s", rows[i].name);
				nego_verdict_encode(wire, &verdict);
				wire[at] ^= (uint8_t)(1 << bit);
				if (rows[i].verdict && nego_verdict_decode(&v, wire, NEGO_VERDICT_SIZE) != -EPROTO)
					fail_msg("verdict took a changed %s", rows[i].name);
			}
}

static void refuses_empty_secrets_and_the_kernel_as_a_bell(void **state)
{
	static const struct { const char *name; unsigned int from, to; } rows[] = {
		{ "nonce", 56, 72 },	 { "data key", 72, 80 },  { "room key", 80, 88 },
		{ "data port", 88, 92 }, { "room port", 92, 96 },
	};
	struct nego_hello hello = sample_hello(), h;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t wire[NEGO_HELLO_SIZE];

		nego_hello_encode(wire, &hello);
		memset(wire + rows[i].from, 0, rows[i].to - rows[i].from);
		if (nego_hello_decode(&h, wire, sizeof(wire)) != -EPROTO)
			fail_msg("took an empty %s", rows[i].name);
	}
}

static void both_ends_make_one_name(void **state)
{
	static const struct { const char *connector, *acceptor, *connector2, *acceptor2, *name; } rows[] = {
		{ "127.0.0.1", "10.1.2.3", "127.0.0.1", "10.1.2.3", "ringway-1/4/7f000001:9c40/0a010203:0050" },
		{ "::ffff:127.0.0.1", "::ffff:10.1.2.3", "127.0.0.1", "10.1.2.3", "ringway-1/4/7f000001:9c40/0a010203:0050" },
		{ "::1", "fe80::2", "::1", "fe80::2",
		  "ringway-1/6/00000000000000000000000000000001:9c40/fe800000000000000000000000000002:0050" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct nego_tuple a = tuple(rows[i].connector, 40000, rows[i].acceptor, 80);
		struct nego_tuple b = tuple(rows[i].connector2, 40000, rows[i].acceptor2, 80);
		char name[NEGO_NAME_MAX], name2[NEGO_NAME_MAX];
		size_t len = nego_name(name, &a);

		assert_true(nego_tuple_equal(&a, &b));
		assert_int_equal(len, nego_name(name2, &b));
		assert_int_equal(len, strlen(rows[i].name) + 1);
		assert_int_equal(name[0], 0);
		assert_memory_equal(name + 1, rows[i].name, len - 1);
		assert_memory_equal(name, name2, len);
	}
}

static void scope_ids_do_not_split_a_name(void **state)
{
	struct sockaddr_storage a = address("fe80::1", 1), b = address("fe80::2", 2), c = a;
	struct nego_tuple t, u;

	((struct sockaddr_in6 *)&c)->sin6_scope_id = 7;
	assert_int_equal(nego_tuple_make(&t, (struct sockaddr *)&a, (struct sockaddr *)&b), 0);
	assert_int_equal(nego_tuple_make(&u, (struct sockaddr *)&c, (struct sockaddr *)&b), 0);
	assert_true(nego_tuple_equal(&t, &u));
}

static void the_direction_is_part_of_the_name(void **state)
{
	struct nego_tuple a = tuple("127.0.0.1", 1000, "127.0.0.1", 2000);
	struct nego_tuple b = tuple("127.0.0.1", 2000, "127.0.0.1", 1000);

	assert_false(nego_tuple_equal(&a, &b));
}

static void refuses_what_is_no_pair_of_addresses(void **state)
{
	struct sockaddr_storage v4 = address("127.0.0.1", 1), v6 = address("::1", 1), un = { .ss_family = AF_UNIX };
	struct sockaddr_storage no_port = address("127.0.0.1", 0);
	struct nego_tuple t;

	assert_int_equal(nego_tuple_make(&t, (struct sockaddr *)&v4, (struct sockaddr *)&v6), -EAFNOSUPPORT);
	assert_int_equal(nego_tuple_make(&t, (struct sockaddr *)&v6, (struct sockaddr *)&v4), -EAFNOSUPPORT);
	assert_int_equal(nego_tuple_make(&t, (struct sockaddr *)&un, (struct sockaddr *)&un), -EAFNOSUPPORT);
	assert_int_equal(nego_tuple_make(&t, (struct sockaddr *)&v4, (struct sockaddr *)&un), -EAFNOSUPPORT);
	assert_int_equal(nego_tuple_make(&t, (struct sockaddr *)&no_port, (struct sockaddr *)&v4), -EAFNOSUPPORT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello_survives_the_wire),
		cmocka_unit_test(hello_has_its_fields_where_the_protocol_says),
		cmocka_unit_test(verdict_survives_the_wire),
		cmocka_unit_test(a_refusal_says_nothing_else),
		cmocka_unit_test(a_wait_is_nothing_but_a_head),
		cmocka_unit_test(refuses_any_other_length),
		cmocka_unit_test(refuses_a_changed_fixed_byte),
		cmocka_unit_test(refuses_empty_secrets_and_the_kernel_as_a_bell),
		cmocka_unit_test(both_ends_make_one_name),
		cmocka_unit_test(scope_ids_do_not_split_a_name),
		cmocka_unit_test(the_direction_is_part_of_the_name),
		cmocka_unit_test(refuses_what_is_no_pair_of_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
