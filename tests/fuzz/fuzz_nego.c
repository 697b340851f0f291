/* SPDX-License-Identifier: MIT */
/* Messages of the rendezvous. What decodes must encode to the very same bytes: no field is ignored, none has two spellings. */
#include <string.h>

#include "shim/nego_msg.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct nego_hello hello;
	struct nego_verdict_msg verdict;
	uint8_t again[NEGO_HELLO_SIZE];
	char name[NEGO_NAME_MAX];

	if (!nego_hello_decode(&hello, data, size)) {
		size_t len = nego_name(name, &hello.tuple);

		fuzz_check(size == NEGO_HELLO_SIZE);
		nego_hello_encode(again, &hello);
		fuzz_check(!memcmp(again, data, size));
		fuzz_check(len > 1 && len <= sizeof(name) && len <= 108);
		fuzz_check(nego_tuple_equal(&hello.tuple, &hello.tuple));
	}
	if (!nego_verdict_decode(&verdict, data, size)) {
		fuzz_check(size == NEGO_VERDICT_SIZE);
		nego_verdict_encode(again, &verdict);
		fuzz_check(!memcmp(again, data, size));
	}
	if (nego_is_wait(data, size)) {
		fuzz_check(size == NEGO_WAIT_SIZE);
		nego_wait_encode(again);
		fuzz_check(!memcmp(again, data, size));
	}
	return 0;
}

size_t fuzz_seed(unsigned int nr, uint8_t out[FUZZ_INPUT_MAX])
{
	static const struct nego_self self = { .nonce = { 1, 2 }, .data_key = 3, .room_key = 4, .data_port = 5, .room_port = 6 };
	struct nego_hello hello = { .self = self, .ring_bytes = 4096, .segment_bytes = 12288,
				    .tuple = { .family = nr ? 6 : 4, .connector_port = 1, .acceptor_port = 2 } };
	struct nego_verdict_msg verdict = { .verdict = (enum nego_verdict)(nr - 2), .self = self };

	if (nr < 2) {
		nego_hello_encode(out, &hello);
		return NEGO_HELLO_SIZE;
	}
	if (nr - 2 == NEGO_NR_VERDICTS) {
		nego_wait_encode(out);
		return NEGO_WAIT_SIZE;
	}
	if (nr - 2 > NEGO_NR_VERDICTS)
		return 0;
	nego_verdict_encode(out, &verdict);
	return NEGO_VERDICT_SIZE;
}
