/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shim/options.h"

/* What options_read() says on standard error about `env`; the settings are in `options`. */
static const char *complaints(char *const env[])
{
	static char said[4096];
	int ends[2], kept = dup(STDERR_FILENO);
	ssize_t len;

	assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
	assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	options_read(env);
	assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
	len = read(ends[0], said, sizeof(said) - 1);
	said[len > 0 ? len : 0] = '\0';
	close(ends[0]);
	close(ends[1]);
	close(kept);
	return said;
}

static const char *complaints_of(const char *setting)
{
	char *env[] = { "RINGWAY=1", (char *)setting, NULL };

	return complaints(env);
}

static void sleeps_unless_asked(void **state)
{
	static const char *const values[] = { "RINGWAY=0", "RINGWAY=", "RINGWAY=11", "RINGWAY=yes", "RINGWAYS=1", "X=RINGWAY=1" };

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		char *env[] = { (char *)values[i], "RINGWAY_NONSENSE=1", NULL };

		assert_string_equal(complaints(env), "");
		assert_false(options.enabled);
	}
}

static void has_the_documented_defaults(void **state)
{
	char *env[] = { "RINGWAY=1", NULL };

	assert_string_equal(complaints(env), "");
	assert_true(options.enabled);
	assert_int_equal(options.transports, TRANSPORT_BIT_SHM | TRANSPORT_BIT_VERBS);
	assert_int_equal(options.after.bytes, 0);
	assert_true(options.after.calls > 0);
	assert_int_equal(options.idle_ns, 30000000000);
	assert_int_equal(options.spin_us, OPTION_SPIN_AUTO);
	assert_int_equal(options.ring_bytes, OPTION_RING_AUTO);
	assert_int_equal(options.log_level, LOG_LEVEL_ERROR);
	assert_null(options.log_path);
	assert_null(options.summary_path);
}

static void takes_good_values(void **state)
{
	static char summary[] = "RINGWAY_SUMMARY=/tmp/summary";
	char *env[] = { "RINGWAY=1", "RINGWAY_TRANSPORTS=verbs", "RINGWAY_AFTER=3:64K", "RINGWAY_RING=5000", "RINGWAY_SPIN=17",
			"RINGWAY_LOG=debug", summary, "RINGWAY_IDLE=5.25", "RINGWAY_MAX=100", "RINGWAY_RULES=/etc/rules", NULL };

	assert_string_equal(complaints(env), "");
	memset(summary, 'x', sizeof(summary) - 1); /* as a program does that retitles itself */
	assert_int_equal(options.transports, TRANSPORT_BIT_VERBS);
	assert_int_equal(options.after.calls, 3);
	assert_int_equal(options.after.bytes, 65536);
	assert_int_equal(options.ring_bytes, 8192);
	assert_int_equal(options.spin_us, 17);
	assert_int_equal(options.log_level, LOG_LEVEL_DEBUG);
	assert_string_equal(options.summary_path, "/tmp/summary");
	assert_string_equal(options.rules_path, "/etc/rules");
	assert_int_equal(options.idle_ns, 5250000000);
	assert_int_equal(options.max_links, 100);
}

static void none_only_watches(void **state)
{
	assert_string_equal(complaints_of("RINGWAY_TRANSPORTS=none"), "");
	assert_int_equal(options.transports, 0);
}

static void quotes_a_bad_value_and_keeps_the_default(void **state)
{
	static const char *const bad[] = {
		"RINGWAY_TRANSPORTS=tcp", "RINGWAY_TRANSPORTS=shm,", "RINGWAY_TRANSPORTS=shm,none", "RINGWAY_AFTER=-1",
		"RINGWAY_AFTER=1:", "RINGWAY_AFTER=x", "RINGWAY_AFTER=4294967296", "RINGWAY_AFTER=1:99999999999999999999",
		"RINGWAY_AFTER=1 ", "RINGWAY_RING=4095", "RINGWAY_RING=1073741825", "RINGWAY_RING=1025M", "RINGWAY_RING=4G",
		"RINGWAY_SPIN=1000001", "RINGWAY_SPIN=AUTO", "RINGWAY_LOG=verbose", "RINGWAY_IDLE=soon", "RINGWAY_IDLE=1.", "RINGWAY_IDLE=.5",
		"RINGWAY_IDLE=-1", "RINGWAY_IDLE=4294967296", "RINGWAY_IDLE=1.0000000001", "RINGWAY_IDLE=1,5", "RINGWAY_MAX=many", "RINGWAY_MAX=4294967296", "RINGWAY_MAX=-1",
	};
	struct options defaults;

	(void)complaints_of("UNRELATED=1");
	defaults = options;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *said = complaints_of(bad[i]), *value = strchr(bad[i], '=') + 1;
		char quoted[64];

		snprintf(quoted, sizeof(quoted), "\"%s\" ignored: expected ", value);
		assert_non_null(strstr(said, quoted));
		assert_memory_equal(&options, &defaults, sizeof(options));
	}
}

static void names_the_settings_there_are(void **state)
{
	const char *said = complaints_of("RINGWAY_SPINS=3");

	assert_non_null(strstr(said, "RINGWAY_SPINS=\"3\" ignored"));
	assert_non_null(strstr(said, " SPIN "));
}

static void an_empty_value_is_an_unset_one(void **state)
{
	assert_string_equal(complaints_of("RINGWAY_AFTER="), "");
}

static void refuses_a_path_without_room(void **state)
{
	static char huge[3 * 4096 + 64] = "RINGWAY_SUMMARY=";

	memset(huge + strlen(huge), 'p', sizeof(huge) - 1 - strlen(huge));
	assert_true(strlen(complaints_of(huge)) > 0);
	assert_null(options.summary_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sleeps_unless_asked),
		cmocka_unit_test(has_the_documented_defaults),
		cmocka_unit_test(takes_good_values),
		cmocka_unit_test(none_only_watches),
		cmocka_unit_test(quotes_a_bad_value_and_keeps_the_default),
		cmocka_unit_test(names_the_settings_there_are),
		cmocka_unit_test(an_empty_value_is_an_unset_one),
		cmocka_unit_test(refuses_a_path_without_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
