/* SPDX-License-Identifier: MIT */
/* See counted.h. A stub is nothing but its number: whichever signal it was installed for says what it is. */
#include "shim/counted.h"

#include <errno.h>
#include <signal.h>

#include "shim/signals.h"

/* Programs have few; one that makes handlers as it goes comes to the end, and has the later ones uncounted. */
#define STUBS 128
#define RAN_RESTARTING UINT64_C(1)
#define RAN_OTHER (UINT64_C(1) << 32)

typedef void handler_fn(int sig, siginfo_t *info, void *context);

__thread struct counted_thread counted_thread __attribute__((tls_model("initial-exec")));

/* By stub: 0, or the handler, for ever. */
static _Atomic uintptr_t programs[STUBS];

/* Another handler may run in between: the count is changed in one step. */
static __attribute__((noinline)) void count(int sig)
{
	fetch_add(&counted_thread.handled, signals_restart_mask() & SIGNAL_BIT(sig) ? RAN_RESTARTING : RAN_OTHER);
	store_unlocked(&counted_thread.left.tv_sec, 0);
	store_unlocked(&counted_thread.left.tv_nsec, 0);
}

/* With the last call a jump, the handler finds the stack as the kernel has left it. What a handler of one argument is given besides does not concern it. */
#define STUB(n)                                                                                                        \
	static void stub_##n(int sig, siginfo_t *info, void *context)                                                  \
	{                                                                                                              \
		count(sig);                                                                                            \
		((handler_fn *)load_relaxed(&programs[n]))(sig, info, context);                                        \
	}
#define NAME(n) stub_##n,
#define SIXTEEN(of, n)                                                                                                 \
	of(n##0) of(n##1) of(n##2) of(n##3) of(n##4) of(n##5) of(n##6) of(n##7)                                        \
	of(n##8) of(n##9) of(n##a) of(n##b) of(n##c) of(n##d) of(n##e) of(n##f)
#define ALL(of)                                                                                                        \
	SIXTEEN(of, 0x0) SIXTEEN(of, 0x1) SIXTEEN(of, 0x2) SIXTEEN(of, 0x3)                                            \
	SIXTEEN(of, 0x4) SIXTEEN(of, 0x5) SIXTEEN(of, 0x6) SIXTEEN(of, 0x7)

ALL(STUB)

static handler_fn *const stubs[] = { ALL(NAME) };
_Static_assert(sizeof(stubs) / sizeof(*stubs) == STUBS, "one stub for each place");

/* Which of them it is, or -1. They are given out in their order. */
static int number_of(uintptr_t handler)
{
	for (int i = 0; i < STUBS && load_relaxed(&programs[i]); i++)
		if ((uintptr_t)stubs[i] == handler)
			return i;
	return -1;
}

bool counted_is_stub(uintptr_t handler)
{
	return number_of(handler) >= 0;
}

uintptr_t counted_program(uintptr_t handler)
{
	int number = number_of(handler);

	return number < 0 ? handler : load_relaxed(&programs[number]);
}

static bool is_handler(uintptr_t handler)
{
	return handler != (uintptr_t)SIG_DFL && handler != (uintptr_t)SIG_IGN && handler != (uintptr_t)SIG_ERR && handler != (uintptr_t)SIG_HOLD;
}

uintptr_t counted_stub(int sig, uintptr_t handler)
{
	/* What another library has read by a system call of its own comes back as it was. */
	if (sig < 1 || sig > 64 || SIGNAL_BIT(sig) & SIGNALS_OF_INSTRUCTIONS || !is_handler(handler) || counted_is_stub(handler))
		return handler;
	for (int i = 0; i < STUBS; i++) {
		uintptr_t there = load_relaxed(&programs[i]);

		if (there == handler || (!there && (compare_exchange(&programs[i], &there, handler) || there == handler)))
			return (uintptr_t)stubs[i];
	}
	return handler;
}

int counted_verdict(uint64_t *since, bool timed)
{
	uint64_t now = counted_now(), before = *since;

	*since = now;
	if (likely(now == before))
		return 0;
	return timed || (now ^ before) >> 32 ? -EINTR : COUNTED_RESTARTS;
}

int counted_interrupted(uint64_t *since, bool timed)
{
	int verdict = counted_verdict(since, timed);

	if (likely(verdict))
		return verdict;
	return timed || !signals_uncounted_restart() ? -EINTR : COUNTED_RESTARTS;
}
