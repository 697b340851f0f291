/* SPDX-License-Identifier: MIT */
/* Handlers are given to the kernel by hand here, as signal_calls.c does. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <unistd.h>

#include "shim/asleep.h"
#include "shim/counted.h"
#include "shim/signals.h"

#define FOR_EVER (-1)

static volatile sig_atomic_t ran;
static siginfo_t *seen_info;
static void *seen_context, *seen_frame;

static void handler(int sig)
{
	ran++;
}

static void other_handler(int sig)
{
	ran += 100;
}

static void detailed(int sig, siginfo_t *info, void *context)
{
	ran++;
	seen_info = info;
	seen_context = context;
	seen_frame = __builtin_frame_address(0);
	assert_int_equal(sig, SIGUSR1);
	assert_int_equal(info->si_value.sival_int, 42);
}

static void install(int sig, void (*function)(int), int flags)
{
	struct sigaction act = { .sa_handler = (void (*)(int))counted_stub(sig, (uintptr_t)function), .sa_flags = flags };

	assert_int_equal(sigaction(sig, &act, NULL), 0);
	signals_refresh(sig);
}

static int begin(void **state)
{
	ran = 0;
	return 0;
}

static int end(void **state)
{
	for (int sig = 1; sig <= 64; sig++)
		if (sig != SIGKILL && sig != SIGSTOP && (sig < 32 || sig > 33)) {
			struct sigaction act = { .sa_handler = SIG_DFL };

			sigaction(sig, &act, NULL);
			signals_refresh(sig);
		}
	return 0;
}

static void stands_for_one_handler(void **state)
{
	uintptr_t stub = counted_stub(SIGUSR1, (uintptr_t)handler), other = counted_stub(SIGUSR1, (uintptr_t)other_handler);

	assert_int_not_equal(stub, (uintptr_t)handler);
	assert_int_not_equal(stub, other);
	assert_int_equal(counted_stub(SIGUSR2, (uintptr_t)handler), stub);
	assert_true(counted_is_stub(stub));
	assert_false(counted_is_stub((uintptr_t)handler));
	assert_int_equal(counted_program(stub), (uintptr_t)handler);
	assert_int_equal(counted_program(other), (uintptr_t)other_handler);
	/* Installed again by who has read it from the kernel. */
	assert_int_equal(counted_stub(SIGUSR1, stub), stub);
}

static void leaves_alone_what_is_no_handler(void **state)
{
	static const int instructions[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, 0, -1, 65 };
	static void (*const words[])(int) = { SIG_DFL, SIG_IGN, SIG_ERR, SIG_HOLD };

	for (size_t i = 0; i < sizeof(instructions) / sizeof(*instructions); i++)
		assert_int_equal(counted_stub(instructions[i], (uintptr_t)handler), (uintptr_t)handler);
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		assert_int_equal(counted_stub(SIGUSR1, (uintptr_t)words[i]), (uintptr_t)words[i]);
		assert_int_equal(counted_program((uintptr_t)words[i]), (uintptr_t)words[i]);
	}
	assert_int_equal(counted_program((uintptr_t)handler), (uintptr_t)handler);
}

static void counts_by_kind(void **state)
{
	uint64_t since = counted_now();

	assert_int_equal(counted_verdict(&since, false), 0);
	install(SIGUSR1, handler, SA_RESTART);
	install(SIGUSR2, handler, 0);
	raise(SIGUSR1);
	assert_int_equal(counted_verdict(&since, false), COUNTED_RESTARTS);
	assert_int_equal(counted_verdict(&since, false), 0);
	raise(SIGUSR1);
	assert_int_equal(counted_verdict(&since, true), -EINTR);
	raise(SIGUSR2);
	assert_int_equal(counted_verdict(&since, false), -EINTR);
	raise(SIGUSR2);
	raise(SIGUSR1);
	assert_int_equal(counted_verdict(&since, false), -EINTR);
	assert_int_equal(counted_verdict(&since, true), 0);
	assert_int_equal(ran, 5);
	/* By what holds when it runs. */
	install(SIGUSR1, handler, 0);
	raise(SIGUSR1);
	assert_int_equal(counted_verdict(&since, false), -EINTR);
}

static void who_is_not_counted_is_known(void **state)
{
	struct sigaction act = { .sa_handler = handler, .sa_flags = SA_RESTART };
	uint64_t since = counted_now();

	install(SIGUSR2, handler, 0);
	assert_int_equal(counted_interrupted(&since, false), -EINTR);
	assert_int_equal(sigaction(SIGUSR1, &act, NULL), 0);
	signals_refresh(SIGUSR1);
	assert_int_equal(load_relaxed(&signals_uncounted) & SIGNAL_BIT(SIGUSR1), SIGNAL_BIT(SIGUSR1));
	assert_int_equal(load_relaxed(&signals_uncounted) & SIGNAL_BIT(SIGUSR2), 0);
	raise(SIGUSR1);
	assert_int_equal(counted_verdict(&since, false), 0);
	assert_int_equal(counted_interrupted(&since, false), COUNTED_RESTARTS);
	assert_int_equal(counted_interrupted(&since, true), -EINTR);
}

/* With what the kernel has given, where the kernel has put it. */
static void the_handler_is_given_everything(void **state)
{
	struct sigaction act = { .sa_sigaction = (void (*)(int, siginfo_t *, void *))counted_stub(SIGUSR1, (uintptr_t)detailed), .sa_flags = SA_SIGINFO };

	assert_int_equal(sigaction(SIGUSR1, &act, NULL), 0);
	assert_int_equal(sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 42 }), 0);
	assert_int_equal(ran, 1);
	assert_in_range((uintptr_t)seen_context, (uintptr_t)seen_frame, (uintptr_t)seen_frame + 4096);
	assert_in_range((uintptr_t)seen_info, (uintptr_t)seen_frame, (uintptr_t)seen_frame + 4096);
}

static int new_set(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC);

	assert_true(set >= 0);
	return set;
}

/* One way to sleep a row. The set is empty, and so is what is polled. */
static int in_poll(int set, int64_t ns, uint64_t since)
{
	return asleep_in_poll(NULL, 0, ns, NULL, since);
}

static int in_epoll(int set, int64_t ns, uint64_t since)
{
	struct epoll_event event;

	return asleep_in_epoll(set, &event, 1, ns, NULL, since, false);
}

static int (*const ways[])(int set, int64_t ns, uint64_t since) = { in_poll, in_epoll };
#define NR_WAYS (sizeof(ways) / sizeof(*ways))

static void a_sleep_takes_its_time(void **state)
{
	int set = new_set();

	for (size_t i = 0; i < NR_WAYS; i++) {
		struct timespec before, after;

		clock_gettime(CLOCK_MONOTONIC, &before);
		assert_int_equal(ways[i](set, 3000000, counted_now()), 0);
		clock_gettime(CLOCK_MONOTONIC, &after);
		assert_true((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec >= 3000000);
		assert_int_equal(ways[i](set, 0, counted_now()), 0);
		assert_int_equal(counted_thread.left.tv_sec | counted_thread.left.tv_nsec, 0);
	}
	close(set);
}

static void what_has_run_before_ends_a_sleep(void **state)
{
	int set = new_set();

	for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
		install(SIGUSR1, handler, flags);
		for (size_t i = 0; i < NR_WAYS; i++) {
			uint64_t since = counted_now();

			raise(SIGUSR1);
			assert_int_equal(ways[i](set, FOR_EVER, since), -EINTR);
			assert_int_equal(ways[i](set, 1000, counted_now()), 0);
		}
	}
	close(set);
}

static void what_is_ready_comes_first(void **state)
{
	struct epoll_event event = { .events = EPOLLIN };
	int set = new_set(), ends[2];
	struct pollfd p;
	uint64_t since = counted_now();

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], "x", 1), 1);
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event), 0);
	install(SIGUSR1, handler, 0);
	raise(SIGUSR1);
	p = (struct pollfd){ .fd = ends[0], .events = POLLIN };
	assert_int_equal(asleep_in_poll(&p, 1, FOR_EVER, NULL, since), 1);
	assert_int_equal(asleep_in_epoll(set, &event, 1, FOR_EVER, NULL, since, false), 1);
	close(ends[0]);
	close(ends[1]);
	close(set);
}

/* One signal a round, at any moment after the count was noted: most come near the system call's beginning. Whatever it hits, the sleep ends. */
static void no_moment_is_missed(void **state)
{
	enum { ROUNDS = 3000 };
	int set = new_set();

	install(SIGALRM, handler, 0);
	for (size_t i = 0; i < NR_WAYS; i++)
		for (int round = 0; round < ROUNDS; round++) {
			struct itimerval soon = { .it_value.tv_usec = 1 + round % 3 };
			uint64_t since = counted_now();
			int before = ran;

			assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
			for (volatile int pause = 0; pause < round % 1000; pause++)
				;
			assert_int_equal(ways[i](set, FOR_EVER, since), -EINTR);
			assert_int_equal(ran, before + 1);
		}
	close(set);
}

static int readable[2];

static void sleeping_handler(int sig)
{
	struct pollfd p = { .fd = readable[0], .events = POLLIN };

	ran++;
	assert_int_equal(asleep_in_poll(&p, 1, FOR_EVER, NULL, counted_now()), 1);
}

static void a_sleep_in_a_handler_ends_the_one_around_it(void **state)
{
	enum { ROUNDS = 1000 };
	int set = new_set();

	assert_int_equal(pipe(readable), 0);
	assert_int_equal(write(readable[1], "x", 1), 1);
	install(SIGALRM, sleeping_handler, 0);
	for (size_t i = 0; i < NR_WAYS; i++)
		for (int round = 0; round < ROUNDS; round++) {
			struct itimerval soon = { .it_value.tv_usec = 1 + round % 3 };
			uint64_t since = counted_now();

			assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
			for (volatile int pause = 0; pause < round; pause++)
				;
			assert_int_equal(ways[i](set, FOR_EVER, since), -EINTR);
		}
	close(readable[0]);
	close(readable[1]);
	close(set);
}

static sigjmp_buf back;

static void jumping_handler(int sig)
{
	siglongjmp(back, 1);
}

static void a_jump_leaves_nothing_behind(void **state)
{
	int set = new_set();

	install(SIGALRM, jumping_handler, 0);
	for (size_t i = 0; i < NR_WAYS; i++) {
		struct itimerval soon = { .it_value.tv_usec = 500 };

		if (sigsetjmp(back, 1) == 0) {
			assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
			ways[i](set, FOR_EVER, counted_now());
			fail();
		}
		assert_int_equal(ways[i](set, 1000, counted_now()), 0);
	}
	close(set);
}

/* The sanitizer takes the frames that are never returned from for living ones. */
#ifndef __SANITIZE_ADDRESS__
static void close_set(void *arg)
{
	close(*(int *)arg);
}

static void *asleep_for_ever(void *arg)
{
	int (*way)(int set, int64_t ns, uint64_t since) = ways[*(size_t *)arg];
	int set = epoll_create1(EPOLL_CLOEXEC);

	pthread_cleanup_push(close_set, &set);
	way(set, FOR_EVER, counted_now());
	pthread_cleanup_pop(1);
	return NULL;
}

/* Before the sleep or in it. */
static void a_sleep_can_be_cancelled(void **state)
{
	for (size_t i = 0; i < NR_WAYS; i++)
		for (int round = 0; round < 50; round++) {
			pthread_t thread;
			void *result;

			assert_int_equal(pthread_create(&thread, NULL, asleep_for_ever, &i), 0);
			for (int turn = 0; turn < round % 10; turn++)
				sched_yield();
			assert_int_equal(pthread_cancel(thread), 0);
			assert_int_equal(pthread_join(thread, &result), 0);
			assert_ptr_equal(result, PTHREAD_CANCELED);
		}
}

#endif

static void numbered(int sig)
{
}

/* The last test: all stubs are used up. */
static void the_last_ones_are_not_counted(void **state)
{
	uintptr_t at = (uintptr_t)numbered;
	int counted = 0;

	for (int i = 1; i <= 1000; i++)
		counted += counted_stub(SIGUSR1, at + (uintptr_t)i) != at + (uintptr_t)i;
	assert_in_range(counted, 100, 128);
	assert_int_equal(counted_program(counted_stub(SIGUSR1, (uintptr_t)handler)), (uintptr_t)handler);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(stands_for_one_handler, begin, end),
		cmocka_unit_test_setup_teardown(leaves_alone_what_is_no_handler, begin, end),
		cmocka_unit_test_setup_teardown(counts_by_kind, begin, end),
		cmocka_unit_test_setup_teardown(who_is_not_counted_is_known, begin, end),
		cmocka_unit_test_setup_teardown(the_handler_is_given_everything, begin, end),
		cmocka_unit_test_setup_teardown(a_sleep_takes_its_time, begin, end),
		cmocka_unit_test_setup_teardown(what_has_run_before_ends_a_sleep, begin, end),
		cmocka_unit_test_setup_teardown(what_is_ready_comes_first, begin, end),
		cmocka_unit_test_setup_teardown(no_moment_is_missed, begin, end),
		cmocka_unit_test_setup_teardown(a_sleep_in_a_handler_ends_the_one_around_it, begin, end),
		cmocka_unit_test_setup_teardown(a_jump_leaves_nothing_behind, begin, end),
#ifndef __SANITIZE_ADDRESS__
		cmocka_unit_test_setup_teardown(a_sleep_can_be_cancelled, begin, end),
#endif
		cmocka_unit_test_setup_teardown(the_last_ones_are_not_counted, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
