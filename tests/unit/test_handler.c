/* SPDX-License-Identifier: MIT */
/* Is this a signal handler? On the thread's own stack, on another one, after a jump out of it, and where signals are only blocked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/handler.h"
#include "shim/signals.h"

#define STACK_BYTES 65536

static volatile sig_atomic_t told = -1;
static sigjmp_buf back;

/* Deep down, as a call of the program's library would be. */
static __attribute__((noinline)) bool look(int deep)
{
	volatile char frame[256];

	memset((char *)frame, deep, sizeof(frame));
	return deep ? look(deep - 1) && frame[0] == deep : handler_inside();
}

static void note(int sig)
{
	told = look(20);
}

static void note_and_jump(int sig)
{
	told = look(20);
	siglongjmp(back, 1);
}

static void catch_with(void (*handler)(int), int flags)
{
	struct sigaction act = { .sa_handler = handler, .sa_flags = flags };

	assert_int_equal(sigaction(SIGUSR1, &act, NULL), 0);
	signals_refresh(SIGUSR1);
	told = -1;
}

static void only_inside(void **state)
{
	static const int rows[] = { 0, SA_RESTART, SA_NODEFER, SA_SIGINFO };

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		catch_with(note, rows[i]);
		assert_false(handler_inside());
		raise(SIGUSR1);
		assert_int_equal(told, 1);
		assert_false(handler_inside());
	}
}

static void on_a_stack_of_its_own(void **state)
{
	stack_t alt = { .ss_sp = malloc(STACK_BYTES), .ss_size = STACK_BYTES }, none = { .ss_flags = SS_DISABLE };

	assert_int_equal(sigaltstack(&alt, NULL), 0);
	catch_with(note, SA_ONSTACK);
	raise(SIGUSR1);
	assert_int_equal(told, 1);
	assert_false(handler_inside());
	assert_int_equal(sigaltstack(&none, NULL), 0);
	free(alt.ss_sp);
}

/* What the frame has left lies below the stack pointer. */
static void not_after_a_jump_out_of_it(void **state)
{
	catch_with(note_and_jump, 0);
	if (!sigsetjmp(back, 1))
		raise(SIGUSR1);
	assert_int_equal(told, 1);
	assert_false(handler_inside());
}

/* What libc's sigaction() leaves on the stack has the restorer in it; a frame that is made of leftovers may have it, too. */
static void not_for_what_looks_a_little_like_it(void **state)
{
	volatile uintptr_t words[256] = { 0 };
	uintptr_t now[4];

	catch_with(note, 0);
	assert_int_equal(syscall(SYS_rt_sigaction, SIGUSR1, NULL, now, 8), 0);
	for (int i = 0; i < 256; i += 8)
		words[i] = now[2];
	assert_false(look(3));
	assert_int_equal(words[8], now[2]);
}

static void *look_blocked(void *arg)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	return (void *)(intptr_t)look(20);
}

/* Most servers' threads leave signals to one of them. */
static void not_where_signals_are_blocked(void **state)
{
	pthread_t thread;
	void *inside = NULL;

	catch_with(note, 0);
	assert_int_equal(pthread_create(&thread, NULL, look_blocked, NULL), 0);
	assert_int_equal(pthread_join(thread, &inside), 0);
#if defined(__x86_64__)
	assert_null(inside);
#endif
}

static void *raise_here(void *arg)
{
	raise(SIGUSR1);
	return NULL;
}

static void in_another_thread(void **state)
{
	pthread_t thread;

	catch_with(note, 0);
	assert_int_equal(pthread_create(&thread, NULL, raise_here, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(told, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_inside),
		cmocka_unit_test(on_a_stack_of_its_own),
		cmocka_unit_test(not_after_a_jump_out_of_it),
		cmocka_unit_test(not_for_what_looks_a_little_like_it),
		cmocka_unit_test(not_where_signals_are_blocked),
		cmocka_unit_test(in_another_thread),
	};

	return cmocka_run_group_tests_name("handler", tests, NULL, NULL);
}
