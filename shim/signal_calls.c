/* SPDX-License-Identifier: MIT */
/*
 * Handlers are installed: signals.h keeps which, as the kernel then has them, and the kernel gets stubs (counted.h). libc's other calls that change a disposition, and
 * siginterrupt(), put back what they have read.
 */
#include "shim/real.h"

#include <errno.h>

#include "shim/counted.h"
#include "shim/guard.h"
#include "shim/signals.h"

/* Before the start, and in a vfork child, nothing of ours is installed. */
static sighandler_t to_install(int sig, sighandler_t handler)
{
	return guard_ready() ? (sighandler_t)counted_stub(sig, (uintptr_t)handler) : handler;
}

/* `installed`: not just asked for. */
static void refresh(int sig, bool installed)
{
	int kept_errno = errno;

	if (installed && guard_ready())
		signals_refresh(sig);
	errno = kept_errno;
}

typedef int sigaction_fn(int sig, const struct sigaction *act, struct sigaction *old);

/* Nothing is on the stack of who is called before a sanitizer's shadow is there. */
static __attribute__((noinline)) int install(sigaction_fn *real, int sig, const struct sigaction *act, struct sigaction *old)
{
	struct sigaction counted = *act;

	counted.sa_handler = to_install(sig, act->sa_handler);
	return real(sig, &counted, old);
}

static int act_on(sigaction_fn *real, int sig, const struct sigaction *act, struct sigaction *old)
{
	int result = act && guard_ready() ? install(real, sig, act, old) : real(sig, act, old);

	if (result == 0 && old)
		old->sa_handler = (sighandler_t)counted_program((uintptr_t)old->sa_handler);
	refresh(sig, act);
	return result;
}

EXPORT int sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	return act_on(real_sigaction, sig, act, old);
}

/* Not declared in any header any more, or never. */
int __sigaction(int sig, const struct sigaction *act, struct sigaction *old);
sighandler_t bsd_signal(int sig, sighandler_t handler);
sighandler_t __sysv_signal(int sig, sighandler_t handler);

EXPORT int __sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	return act_on(real___sigaction, sig, act, old);
}

#define SIGNAL(name)                                                                                                   \
	EXPORT sighandler_t name(int sig, sighandler_t handler)                                                        \
	{                                                                                                              \
		sighandler_t old = real_##name(sig, to_install(sig, handler));                                         \
                                                                                                                       \
		refresh(sig, true);                                                                                    \
		return (sighandler_t)counted_program((uintptr_t)old);                                                  \
	}

SIGNAL(signal)
SIGNAL(ssignal)
SIGNAL(bsd_signal)
SIGNAL(sysv_signal)
SIGNAL(__sysv_signal)
SIGNAL(sigset)

EXPORT int sigignore(int sig)
{
	int result = real_sigignore(sig);

	refresh(sig, true);
	return result;
}

EXPORT int siginterrupt(int sig, int flag)
{
	int result = real_siginterrupt(sig, flag);

	refresh(sig, true);
	return result;
}
