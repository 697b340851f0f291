/* SPDX-License-Identifier: MIT */
/* See signals.h. */
#include "shim/signals.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "ringbuf/sys.h"

#define SIGNAL_BIT(sig) (UINT64_C(1) << ((sig) - 1))

_Atomic uint64_t signals_restart, signals_norestart;
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
	bit = UINT64_C(1) << (sig - 1);
	caught = now.handler != SIG_DFL && now.handler != SIG_IGN;
	restarts = now.flags & SA_RESTART;
	/* Into the new mask before out of the old one: a wait that looks in between sees both kinds, which costs it a signalfd. */
	if (caught)
		fetch_or(restarts ? &signals_restart : &signals_norestart, bit);
	if (!caught || !restarts)
		fetch_and(&signals_restart, ~bit);
	if (!caught || restarts)
		fetch_and(&signals_norestart, ~bit);
}

/* But those that an instruction raises: they cannot wait. */
#define OTHERS (~(SIGNAL_BIT(SIGSEGV) | SIGNAL_BIT(SIGBUS) | SIGNAL_BIT(SIGFPE) | SIGNAL_BIT(SIGILL) | SIGNAL_BIT(SIGTRAP) | \
		  SIGNAL_BIT(SIGSYS)))

void signals_hold_now(struct signals_held *h)
{
	uint64_t others = OTHERS;

	h->held = sys_call4(SYS_rt_sigprocmask, SIG_BLOCK, &others, &h->program, sizeof(others)) == 0;
}

void signals_release_now(const struct signals_held *h)
{
	sys_call4(SYS_rt_sigprocmask, SIG_SETMASK, &h->program, NULL, sizeof(uint64_t));
}

bool signals_count_between(void)
{
	return signals_norestart_mask() && !(load_relaxed(&signals_leave) & SIGNALS_CANCEL);
}

bool signals_due(const struct signals_held *h)
{
	uint64_t pending = 0, kept_out = 0;

	if (sys_call2(SYS_rt_sigpending, &pending, sizeof(pending)) < 0)
		return false;
	memcpy(&kept_out, &h->program, sizeof(kept_out));
	return pending & ~kept_out & (signals_restart_mask() | signals_norestart_mask());
}

void signals_unwound(struct signals_held *h)
{
	uint64_t unblockable = SIGNAL_BIT(SIGKILL) | SIGNAL_BIT(SIGSTOP), now = 0;

	if (!h->held)
		return;
	h->held = false;
	sys_call4(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &now, sizeof(now));
	if (!(OTHERS & ~(now | unblockable)))
		signals_release_now(h);
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
