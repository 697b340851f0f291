/* SPDX-License-Identifier: MIT */
/*
 * Threads that leave a call of ours without returning from it. A handler that jumps out of a sleep gives back what unwound.h says;
 * one that interrupted a copy jumps away from a locked lane, which is unlocked here. The road not taken, keeping signals out of every
 * copy, costs two system calls a message.
 *
 * A thread is cancelled in the calls in which libc would do it. Only once the program has cancelled any need calls that do not
 * sleep ask whether they are meant.
 */
#include "shim/real.h"

#include <pthread.h>
#include <setjmp.h>

#include "shim/conn_lock.h"
#include "shim/guard.h"
#include "shim/signals.h"

/* Where the stack will stand after the jump; ~0 where that is not known. */
static uintptr_t stack_after(const struct __jmp_buf_tag *env)
{
#if defined(__x86_64__)
	enum { SAVED_RSP = 6 };
	uintptr_t sp = (uintptr_t)env->__jmpbuf[SAVED_RSP], guard;

	/* As libc protects it. */
	__asm__("mov %%fs:0x30, %0" : "=r"(guard));
	return (sp >> 17 | sp << 47) ^ guard;
#else
	return UINTPTR_MAX;
#endif
}

/* No code of the program runs with a lane locked, but for a handler. A jump inside the handler leaves the lane alone. */
static void leave_lanes(const struct __jmp_buf_tag *env)
{
	struct conn *c = conn_locked_last;

	signals_jump();
	if (likely(!c) || stack_after(env) < (uintptr_t)conn_locked_frame)
		return;
	if (lane_is_mine(&c->rx.lock)) {
		conn_rx_recover(c);
		lane_unlock(&c->rx.lock);
	}
	if (lane_is_mine(&c->tx.lock)) {
		conn_tx_recover(c);
		lane_unlock(&c->tx.lock);
	}
	conn_locked_last = NULL;
}

void __longjmp_chk(struct __jmp_buf_tag env[1], int value);

#define JUMP(name)                                                                                                     \
	EXPORT void name(struct __jmp_buf_tag env[1], int value)                                                       \
	{                                                                                                              \
		leave_lanes(env);                                                                                      \
		real_##name(env, value);                                                                               \
		__builtin_unreachable();                                                                               \
	}

JUMP(longjmp)
JUMP(_longjmp)
JUMP(siglongjmp)
JUMP(__longjmp_chk)

EXPORT int pthread_cancel(pthread_t thread)
{
	if (guard_ready()) {
		guard_note_cancel();
		fetch_or(&signals_leave, SIGNALS_CANCEL);
	}
	return real_pthread_cancel(thread);
}
