/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <string.h>

#include "shim/nego_remote_msg.h"

static const struct nego_remote_self honest = {
	.nonce = { 0x1122334455667788, 0x99aabbccddeeff00 },
	.ring_address = 0x7f0000001000,
	.ring_key = 0xabcd,
	.ring_bytes = 65536,
	.read_bytes = 77,
	.epoch = 5,
};

static struct nego_tuple tuple(const char *connector, const char *acceptor)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(4000) }, b = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct nego_tuple t;

	assert_int_equal(inet_pton(AF_INET, connector, &a.sin_addr), 1);
	assert_int_equal(inet_pton(AF_INET, acceptor, &b.sin_addr), 1);
	assert_int_equal(nego_tuple_make(&t, (struct sockaddr *)&a, (struct sockaddr *)&b), 0);
	return t;
}

static void what_is_said_is_heard(void **state)
{
	struct nego_tuple t = tuple("10.0.0.1", "10.0.0.2");
	uint8_t wire[NEGO_REMOTE_SIZE + 140] = { 0 };
	struct nego_remote_self heard;

	nego_remote_encode(wire, &t, &honest);
	assert_int_equal(nego_remote_decode(&heard, &t, wire, NEGO_REMOTE_SIZE), 0);
	assert_memory_equal(&heard, &honest, sizeof(heard));
	/* What an answer travels in is longer. */
	assert_int_equal(nego_remote_decode(&heard, &t, wire, sizeof(wire)), 0);
}

/* The table of VERBS.md. */
static void every_byte_is_where_it_should_be(void **state)
{
	struct nego_tuple t = tuple("10.0.0.1", "10.0.0.2");
	static const uint8_t begin[] = { 'R', 'W', 'V', '1', 1, 0, 16, 4, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11 };
	static const uint8_t rest[] = { 0x00, 0x10, 0, 0, 0, 0x7f, 0, 0, 0xcd, 0xab, 0, 0 };
	static const uint8_t end[] = { 77, 0, 0, 0, 0, 0, 0, 0, 80, 0, 128, 0, 5, 0, 0, 0 };
	uint8_t wire[NEGO_REMOTE_SIZE];

	nego_remote_encode(wire, &t, &honest);
	assert_memory_equal(wire, begin, sizeof(begin));
	assert_memory_equal(wire + 24, rest, sizeof(rest));
	assert_memory_equal(wire + 40, end, sizeof(end));
}

static void a_field_that_is_wrong_is_refused(void **state)
{
	static const struct {
		const char *what;
		unsigned int at;
		uint8_t by;	/* flipped */
	} rows[] = {
		{ "magic", 0, 1 }, { "version", 4, 3 }, { "a ring too small", 6, 16 ^ 11 }, { "a ring too large", 6, 16 ^ 31 },
		{ "a ring that is no ring", 6, 16 ^ 200 }, { "family", 7, 2 }, { "nonce", 8, 1 }, { "the nonce's other half", 23, 1 }, { "check", 36, 1 },
		{ "port", 48, 1 }, { "receives", 50, 1 },
	};
	struct nego_tuple t = tuple("10.0.0.1", "10.0.0.2");
	struct nego_remote_self heard;

	for (unsigned int i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t wire[NEGO_REMOTE_SIZE];

		nego_remote_encode(wire, &t, &honest);
		wire[rows[i].at] ^= rows[i].by;
		if (!nego_remote_decode(&heard, &t, wire, sizeof(wire)))
			fail_msg("%s at %u", rows[i].what, rows[i].at);
	}
}

static void each_address_and_port_counts(void **state)
{
	static const char *const connectors[] = { "10.0.0.3", "10.0.0.1", "10.0.0.2" };
	static const char *const acceptors[] = { "10.0.0.2", "10.0.1.2", "10.0.0.1" };
	struct nego_tuple t = tuple("10.0.0.1", "10.0.0.2"), other;
	struct nego_remote_self heard;
	uint8_t wire[NEGO_REMOTE_SIZE];

	nego_remote_encode(wire, &t, &honest);
	for (int i = 0; i < 3; i++) {
		other = tuple(connectors[i], acceptors[i]);
		assert_int_not_equal(nego_remote_decode(&heard, &other, wire, sizeof(wire)), 0);
	}
	other = t;
	other.connector_port++;
	assert_int_not_equal(nego_remote_decode(&heard, &other, wire, sizeof(wire)), 0);
}

static void short_ones_and_a_nonce_of_zero_are_refused(void **state)
{
	struct nego_tuple t = tuple("10.0.0.1", "10.0.0.2");
	struct nego_remote_self heard, zero = honest;
	uint8_t wire[NEGO_REMOTE_SIZE];

	nego_remote_encode(wire, &t, &honest);
	for (size_t len = 0; len < NEGO_REMOTE_SIZE; len++)
		assert_int_not_equal(nego_remote_decode(&heard, &t, wire, len), 0);
	zero.nonce[0] = zero.nonce[1] = 0;
	nego_remote_encode(wire, &t, &zero);
	assert_int_not_equal(nego_remote_decode(&heard, &t, wire, sizeof(wire)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_said_is_heard),
		cmocka_unit_test(every_byte_is_where_it_should_be),
		cmocka_unit_test(a_field_that_is_wrong_is_refused),
		cmocka_unit_test(each_address_and_port_counts),
		cmocka_unit_test(short_ones_and_a_nonce_of_zero_are_refused),
	};

	return cmocka_run_group_tests_name("nego_remote_msg", tests, NULL, NULL);
}
