/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>

#include "shim/signals.h"

static void handler(int sig)
{
}

static void install(int sig, void (*function)(int), int flags)
{
	struct sigaction act = { .sa_handler = function, .sa_flags = flags };

	assert_int_equal(sigaction(sig, &act, NULL), 0);
	signals_refresh(sig);
}

static uint64_t bit(int sig)
{
	return UINT64_C(1) << (sig - 1);
}

static void knows_how_a_handler_was_installed(void **state)
{
	static const int sigs[] = { SIGHUP, SIGUSR1, 64 };

	for (size_t i = 0; i < sizeof(sigs) / sizeof(sigs[0]); i++) {
		int sig = sigs[i];

		install(sig, handler, SA_RESTART);
		assert_int_equal(signals_restart_mask() & bit(sig), bit(sig));
		assert_int_equal(signals_norestart_mask() & bit(sig), 0);
		install(sig, handler, 0);
		assert_int_equal(signals_restart_mask() & bit(sig), 0);
		assert_int_equal(signals_norestart_mask() & bit(sig), bit(sig));
		install(sig, SIG_IGN, SA_RESTART);
		assert_int_equal((signals_restart_mask() | signals_norestart_mask()) & bit(sig), 0);
	}
}

static void finds_handlers_that_are_there_at_the_start(void **state)
{
	struct sigaction act = { .sa_handler = handler, .sa_flags = SA_RESTART };

	assert_int_equal(sigaction(SIGUSR2, &act, NULL), 0);
	assert_int_equal(signals_restart_mask() & bit(SIGUSR2), 0);
	assert_int_equal(signals_init(), 0);
	assert_int_equal(signals_restart_mask() & bit(SIGUSR2), bit(SIGUSR2));
}

static void ignores_numbers_that_are_no_signals(void **state)
{
	uint64_t restart = signals_restart_mask(), norestart = signals_norestart_mask();

	signals_refresh(0);
	signals_refresh(-1);
	signals_refresh(65);
	assert_int_equal(signals_restart_mask(), restart);
	assert_int_equal(signals_norestart_mask(), norestart);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(knows_how_a_handler_was_installed),
		cmocka_unit_test(finds_handlers_that_are_there_at_the_start),
		cmocka_unit_test(ignores_numbers_that_are_no_signals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
