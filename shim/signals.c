/* SPDX-License-Identifier: MIT */
/* See signals.h. */
#include "shim/signals.h"

#include <errno.h>
#include <signal.h>

#include "ringbuf/sys.h"
#include "shim/counted.h"

_Atomic uint64_t signals_restart, signals_norestart, signals_uncounted;
_Atomic uint32_t signals_leave;

/* What rt_sigaction(2) fills; the order of the words is the same on the machines we know, their use after flags is not. */
struct kernel_sigaction {
	void (*handler)(int);
	unsigned long flags;
	unsigned long rest[2];
};

static int read_one(int sig, struct kernel_sigaction *now)
{
	return (int)sys_call4(SYS_rt_sigaction, sig, NULL, now, sizeof(uint64_t));
}

void signals_refresh(int sig)
{
	struct kernel_sigaction now;
	uint64_t bit;
	bool caught, restarts;

	if (sig < 1 || sig > 64 || read_one(sig, &now) < 0)
		return;
	bit = SIGNAL_BIT(sig);
	caught = now.handler != SIG_DFL && now.handler != SIG_IGN;
	restarts = now.flags & SA_RESTART;
	if (caught && !counted_is_stub((uintptr_t)now.handler))
		fetch_or(&signals_uncounted, bit);
	else
		fetch_and(&signals_uncounted, ~bit);
	/* Into the new mask before out of the old one: who looks in between sees both kinds, and ends a call. */
	if (caught)
		fetch_or(restarts ? &signals_restart : &signals_norestart, bit);
	if (!caught || !restarts)
		fetch_and(&signals_restart, ~bit);
	if (!caught || restarts)
		fetch_and(&signals_norestart, ~bit);
}

void signals_hold_these(struct signals_held *h, uint64_t these)
{
	h->held = sys_call4(SYS_rt_sigprocmask, SIG_BLOCK, &these, &h->program, sizeof(these)) == 0;
}

void signals_hold_now(struct signals_held *h)
{
	signals_hold_these(h, signals_all() & ~SIGNALS_OF_INSTRUCTIONS);
}

void signals_release_now(const struct signals_held *h)
{
	sys_call4(SYS_rt_sigprocmask, SIG_SETMASK, &h->program, NULL, sizeof(uint64_t));
}

int signals_init(void)
{
	struct kernel_sigaction now;
	int error = read_one(SIGTERM, &now);

	if (error < 0)
		return error;
	for (int sig = 1; sig <= 64; sig++)
		signals_refresh(sig);
	return 0;
}
