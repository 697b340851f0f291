/* SPDX-License-Identifier: MIT */
/*
 * See handler.h. No call of libc's says it. A handler's own signal is blocked, but so are signals in threads that leave them to others, all their life. So where
 * the mask says that it may be one, the thread's stack is looked through for the frame that the kernel puts there: the address of libc's
 * restorer, then a ucontext. Where a machine has no such address, or the end of the stack cannot be found, the mask has to do.
 */
#include "shim/handler.h"

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/maps.h"
#include "shim/signals.h"

#define SIGNALS 64

static bool masked(uint64_t caught)
{
	uint64_t mask = 0;

	sys_call4(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, sizeof(mask));
	return mask & caught;
}

#if defined(__x86_64__)

/* Programs have one restorer, or that of another libc as well. */
#define RESTORERS_MAX 4

struct restorers {
	uintptr_t at[RESTORERS_MAX];
	unsigned nr;
	bool nodefer;	/* a handler may run with its signal let in */
};

/* What is left of a handler that has returned, or of a sigaction(), must not look like it. */
struct frame {
	uintptr_t restorer;
	ucontext_t context;
};

#define USER_CODE_SEGMENT 0x33

static bool add_restorer(struct restorers *r, int sig)
{
	struct {
		uintptr_t handler;
		unsigned long flags;
		uintptr_t restorer;
		uint64_t mask;
	} now;

	if (sys_call4(SYS_rt_sigaction, sig, NULL, &now, sizeof(now.mask)) < 0)
		return false;
	r->nodefer |= now.flags & SA_NODEFER;
	for (unsigned i = 0; i < r->nr; i++)
		if (r->at[i] == now.restorer)
			return true;
	if (r->nr == RESTORERS_MAX)
		return false;
	r->at[r->nr++] = now.restorer;
	return true;
}

/* The end of the mapping that `at` lies in; 0: not to be found out. */
static uintptr_t mapping_end(uintptr_t at)
{
	struct maps m;
	uintptr_t from, to, end = 0;

	if (!maps_open(&m))
		return 0;
	while (!end && maps_next(&m, &from, &to, NULL, 0))
		if (from <= at && at < to)
			end = to;
	maps_close(&m);
	return end;
}

/* The stack that was interrupted goes on above. */
__attribute__((no_sanitize("address"))) static bool is_frame(const struct frame *f, uintptr_t end, const struct restorers *r)
{
	const greg_t *regs = f->context.uc_mcontext.gregs;
	uintptr_t sp;

	for (unsigned i = 0; i < r->nr; i++) {
		if (likely(f->restorer != r->at[i]) || f->context.uc_link || (regs[REG_CSGSFS] & 0xffff) != USER_CODE_SEGMENT)
			continue;
		sp = (uintptr_t)regs[REG_RSP];
		if (sp > (uintptr_t)f && sp <= end)
			return true;
	}
	return false;
}

/* As much as a stack usually is: it may lie in one mapping with what is none. */
#define LOOK_BYTES_MAX (UINT32_C(8) << 20)

/* Other functions' frames are read, and what of them the compiler keeps unreadable. */
__attribute__((no_sanitize("address"))) static bool frame_above(uintptr_t from, uintptr_t end, const struct restorers *r)
{
	uintptr_t until = end - from > LOOK_BYTES_MAX ? from + LOOK_BYTES_MAX : end;

	for (; from + sizeof(struct frame) <= until; from += sizeof(uintptr_t))
		if (is_frame((const struct frame *)from, end, r))
			return true;
	return false;
}

static bool frame_is_there(uint64_t caught)
{
	struct restorers r = { .nr = 0 };
	uintptr_t here = (uintptr_t)__builtin_frame_address(0), end;

	for (int sig = 1; sig <= SIGNALS; sig++)
		if (caught & UINT64_C(1) << (sig - 1) && !add_restorer(&r, sig))
			return masked(caught);
	/* A function's buffer may lie where a handler's frame was, before the program writes there. */
	if (!r.nodefer && !masked(caught))
		return false;
	end = mapping_end(here);
	return !end || frame_above(here, end, &r);
}

#else

static bool frame_is_there(uint64_t caught)
{
	return masked(caught);
}

#endif

bool handler_inside(void)
{
	uint64_t caught = signals_restart_mask() | signals_norestart_mask();
	stack_t alt;

	if (likely(!caught))
		return false;
	if (sys_call2(SYS_sigaltstack, NULL, &alt) == 0 && alt.ss_flags & SS_ONSTACK)
		return true;
	return frame_is_there(caught);
}
