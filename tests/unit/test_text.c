/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sys/types.h>

#include "shim/text.h"

static void format(char *out, size_t size, const char *fmt, ...)
{
	struct text text;
	va_list args;

	text_start(&text, out, size);
	va_start(args, fmt);
	text_add_format(&text, fmt, args);
	va_end(args);
	text_end(&text);
}

static void formats_what_the_log_may_use(void **state)
{
	char out[256];

	format(out, sizeof(out), "%s|%d|%u|%ld|%lu|%zu|%zd|%llu|%x|%lx|%c|%%|%m|%s", "word", INT32_MIN, UINT32_MAX, INT64_MIN,
	       UINT64_MAX, (size_t)7, (ssize_t)-7, 1ull << 63, 0xabcu, 0xfedcba9876543210ul, '!', EMFILE, NULL);
	assert_string_equal(out, "word|-2147483648|4294967295|-9223372036854775808|18446744073709551615|7|-7|"
				 "9223372036854775808|abc|fedcba9876543210|!|%|EMFILE|(null)");
}

static void cuts_off_what_does_not_fit(void **state)
{
	struct text text;
	char out[8];

	format(out, sizeof(out), "%s", "0123456789");
	assert_string_equal(out, "0123456");
	text_start(&text, out, sizeof(out));
	text_add(&text, "0123456789");
	text_end_line(&text);
	assert_int_equal(text.len, sizeof(out));
	assert_int_equal(out[7], '\n');
}

static void survives_a_format_that_ends_in_a_percent(void **state)
{
	char out[16];

	format(out, sizeof(out), "a%");
	assert_string_equal(out, "a");
}

static void quotes_json(void **state)
{
	struct text text;
	char out[64];

	text_start(&text, out, sizeof(out));
	text_add_json(&text, "a\"b\\c\n\xff~");
	text_end(&text);
	assert_string_equal(out, "\"a\\\"b\\\\c??~\"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(formats_what_the_log_may_use),
		cmocka_unit_test(cuts_off_what_does_not_fit),
		cmocka_unit_test(survives_a_format_that_ends_in_a_percent),
		cmocka_unit_test(quotes_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
