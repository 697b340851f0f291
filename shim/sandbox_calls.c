/* SPDX-License-Identifier: MIT */
/* The process gives up system calls. seccomp(2) has no function in libc: syscall_calls.c. */
#include "shim/real.h"

#include <linux/seccomp.h>
#include <sys/prctl.h>

#include "shim/guard.h"
#include "shim/sandbox.h"
#include "shim/wait.h"

EXPORT int prctl(int option, ...)
{
	unsigned long args[4];
	va_list list;
	int result;

	va_start(list, option);
	for (int i = 0; i < 4; i++)
		args[i] = va_arg(list, unsigned long);
	va_end(list);
	if (option == PR_SET_SECCOMP && !(args[0] == SECCOMP_MODE_FILTER && !args[1]) && guard_ready())
		sandbox_enter(REASON_SECCOMP);
	result = real_prctl(option, args[0], args[1], args[2], args[3]);
	/* Strict mode includes the other. */
	if (result == 0 && ((option == PR_SET_SECCOMP && args[0] == SECCOMP_MODE_STRICT) ||
			    (option == PR_SET_TSC && args[0] == PR_TSC_SIGSEGV)))
		clock_lose_counter();
	return result;
}
