/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "shim/frame.h"

static const uint64_t a[2] = { 1, 2 }, b[2] = { 3, 4 };

static void every_byte_counts(void **state)
{
	uint8_t frame[FRAME_SIZE], other[FRAME_SIZE];

	(void)state;
	frame_make(frame, FRAME_SWITCH, a, b, 77);
	assert_true(frame_matches(frame, frame, 0, FRAME_SIZE));
	for (size_t i = 0; i < FRAME_SIZE; i++) {
		memcpy(other, frame, FRAME_SIZE);
		other[i] ^= 1;
		assert_false(frame_matches(frame, other, 0, FRAME_SIZE));
		assert_true(frame_matches(frame, other, 0, i));
		assert_false(frame_matches(frame, other, 0, i + 1));
		assert_true(frame_matches(frame, other + i + 1, i + 1, FRAME_SIZE - i - 1));
	}
}

static void length_beyond_a_frame_never_matches(void **state)
{
	uint8_t frame[2 * FRAME_SIZE] = { 0 };

	(void)state;
	frame_make(frame, FRAME_SWITCH, a, b, 77);
	assert_false(frame_matches(frame, frame, 0, FRAME_SIZE + 1));
	assert_false(frame_matches(frame, frame, FRAME_SIZE, 1));
	assert_false(frame_matches(frame, frame, SIZE_MAX, 2));
}

static void proof_depends_on_everything(void **state)
{
	static const uint64_t c[2] = { 1, 5 };
	uint8_t frames[6][FRAME_SIZE];

	(void)state;
	frame_make(frames[0], FRAME_SWITCH, a, b, 77);
	frame_make(frames[1], FRAME_SWITCH, b, a, 77); /* the other lane */
	frame_make(frames[2], FRAME_SWITCH, a, b, 78);
	frame_make(frames[3], FRAME_PROBE, a, b, 77);
	frame_make(frames[4], FRAME_SWITCH, c, b, 77);
	frame_make(frames[5], FRAME_SWITCH, a, c, 77);
	for (int i = 0; i < 6; i++)
		for (int j = 0; j < i; j++)
			assert_memory_not_equal(frames[i] + 16, frames[j] + 16, 16);
}

static void layout_is_the_protocols(void **state)
{
	uint8_t frame[FRAME_SIZE];

	(void)state;
	frame_make(frame, FRAME_PROBE, a, b, 0x0102030405060708);
	assert_memory_equal(frame, "RWF1\2\0\0\0\x8\x7\x6\x5\x4\x3\x2\x1", 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_counts),
		cmocka_unit_test(length_beyond_a_frame_never_matches),
		cmocka_unit_test(proof_depends_on_everything),
		cmocka_unit_test(layout_is_the_protocols),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
