/* SPDX-License-Identifier: MIT */
#include "shim/clock.h"

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"

static int ask_kernel(clockid_t id, struct timespec *t)
{
	return (int)sys_call2(SYS_clock_gettime, id, t);
}

/* Written before there are threads. */
static int (*ask)(clockid_t id, struct timespec *t) = ask_kernel;
static _Atomic bool counter_lost;

void clock_use(int (*libc_clock)(clockid_t id, struct timespec *t))
{
	if (libc_clock)
		ask = libc_clock;
}

void clock_lose_counter(void)
{
	store_relaxed(&counter_lost, true);
}

bool clock_counter_lost(void)
{
	return unlikely(load_relaxed(&counter_lost));
}

static int64_t ns_of(clockid_t id)
{
	struct timespec t = { 0 };

	if (clock_counter_lost())
		ask_kernel(id, &t);
	else
		ask(id, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t now_ns(void)
{
	return ns_of(CLOCK_MONOTONIC);
}

uint64_t coarse_ns(void)
{
	return (uint64_t)ns_of(CLOCK_MONOTONIC_COARSE);
}

uint64_t clock_counter(void)
{
	uint64_t now = 0;

	if (clock_counter_lost())
		return 0;
#if defined(__x86_64__)
	now = __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
#endif
	return now;
}
