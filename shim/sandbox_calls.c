/* SPDX-License-Identifier: MIT */
/* The process gives up system calls. seccomp(2) has no function in libc: syscall_calls.c. */
#include "shim/real.h"

#include <sys/prctl.h>

#include "shim/guard.h"
#include "shim/sandbox.h"

EXPORT int prctl(int option, ...)
{
	unsigned long args[4];
	va_list list;

	va_start(list, option);
	for (int i = 0; i < 4; i++)
		args[i] = va_arg(list, unsigned long);
	va_end(list);
	if (option == PR_SET_SECCOMP && guard_ready())
		sandbox_enter(REASON_SECCOMP);
	return real_prctl(option, args[0], args[1], args[2], args[3]);
}
