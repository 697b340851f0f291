/* SPDX-License-Identifier: MIT */
/* Handlers are installed: signals.h keeps which, as the kernel then has them. */
#include "shim/real.h"

#include <errno.h>

#include "shim/guard.h"
#include "shim/signals.h"

static void refresh(int sig)
{
	int kept_errno = errno;

	if (guard_ready())
		signals_refresh(sig);
	errno = kept_errno;
}

#define REFRESHING(ret, name, params, sig, ...)                                                                        \
	EXPORT ret name params                                                                                         \
	{                                                                                                              \
		ret result = real_##name(__VA_ARGS__);                                                                 \
                                                                                                                       \
		refresh(sig);                                                                                          \
		return result;                                                                                         \
	}

/* Not declared in any header any more, or never. */
sighandler_t bsd_signal(int sig, sighandler_t handler);
sighandler_t __sysv_signal(int sig, sighandler_t handler);
int __sigaction(int sig, const struct sigaction *act, struct sigaction *old);

REFRESHING(int, sigaction, (int sig, const struct sigaction *act, struct sigaction *old), act ? sig : 0, sig, act, old)
REFRESHING(int, __sigaction, (int sig, const struct sigaction *act, struct sigaction *old), act ? sig : 0, sig, act, old)
REFRESHING(sighandler_t, signal, (int sig, sighandler_t handler), sig, sig, handler)
REFRESHING(sighandler_t, ssignal, (int sig, sighandler_t handler), sig, sig, handler)
REFRESHING(sighandler_t, bsd_signal, (int sig, sighandler_t handler), sig, sig, handler)
REFRESHING(sighandler_t, sysv_signal, (int sig, sighandler_t handler), sig, sig, handler)
REFRESHING(sighandler_t, __sysv_signal, (int sig, sighandler_t handler), sig, sig, handler)
REFRESHING(sighandler_t, sigset, (int sig, sighandler_t handler), sig, sig, handler)
REFRESHING(int, sigignore, (int sig), sig, sig)
REFRESHING(int, siginterrupt, (int sig, int flag), sig, sig, flag)
