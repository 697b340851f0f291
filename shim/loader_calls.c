/* SPDX-License-Identifier: MIT */
/*
 * Objects whose calls go past us: of one that is loaded with RTLD_DEEPBIND, or into a namespace of its own, `recv` is libc's. It may be given any
 * connection, and would wait for ever for what lies on a ring: so the process goes back to TCP before it comes. The wrappers themselves are in loader.S.
 */
#include <dlfcn.h>

#include "shim/guard.h"
#include "shim/real.h"
#include "shim/sandbox.h"

#pragma GCC visibility push(hidden)
/* For loader.S. Return libc's function. */
void *loader_before_dlopen(const char *file, int mode);
void *loader_before_dlmopen(Lmid_t space, const char *file, int mode);
#pragma GCC visibility pop

static void *dlopen_at, *dlmopen_at;

static void about_to_load(const char *file, int mode, bool apart)
{
	if ((apart || mode & RTLD_DEEPBIND) && file && !(mode & RTLD_NOLOAD) && guard_ready())
		sandbox_leave_rings(REASON_DEEPBIND);
}

void *loader_before_dlopen(const char *file, int mode)
{
	about_to_load(file, mode, false);
	return real_address("dlopen", &dlopen_at);
}

void *loader_before_dlmopen(Lmid_t space, const char *file, int mode)
{
	about_to_load(file, mode, space != LM_ID_BASE);
	return real_address("dlmopen", &dlmopen_at);
}
