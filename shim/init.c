/* SPDX-License-Identifier: MIT */
/*
 * The start. The constructor reads the settings; a process that did not ask for us stays dormant, its calls going
 * straight through, and so does a second copy of us. Otherwise it takes the steps of startup.def and opens the guard last, so that no wrapper ever sees
 * half of it.
 */
#include <string.h>

#include "ringbuf/cgroup.h"
#include "ringbuf/mapped.h"
#include "ringbuf/sys.h"
#include "shim/clock.h"
#include "shim/conn.h"
#include "shim/fd_conn.h"
#include "shim/fdtab.h"
#include "shim/glibc.h"
#include "shim/guard.h"
#include "shim/inherit.h"
#include "shim/log.h"
#include "shim/options.h"
#include "shim/own_fd.h"
#include "shim/program.h"
#include "shim/real.h"
#include "shim/signals.h"
#include "shim/stats_slots.h"
#include "shim/summary.h"
#include "shim/unseen.h"

char program_name[64];

void program_read_name(const char *argv0)
{
	const char *slash;

	if (!argv0)
		argv0 = "";
	slash = strrchr(argv0, '/');
	strncpy(program_name, slash ? slash + 1 : argv0, sizeof(program_name) - 1);
}

static int step(int (*function)(void), const char *failure)
{
	int error = function();

	if (error < 0)
		log_error("not enabled: %s (%m)", failure, -error);
	return error;
}

/* glibc hands constructors what it hands main; others do not. */
__attribute__((constructor)) static void start(int argc, char *argv[], char *envp[])
{
	if (!gnu_get_libc_version || !real_is_first())
		return;
	options_read(envp);
	if (!options.enabled)
		return;
	program_read_name(argc > 0 ? argv[0] : NULL);
	real_resolve_all();
	clock_use((int (*)(clockid_t, struct timespec *))real_of_libc("clock_gettime"));
#define STEP(function, failure)                                                                                        \
	if (step(function, failure) < 0)                                                                               \
		return;
#include "startup.def"
#undef STEP
	if (real_has_second())
		log_info("another build of the shim is loaded behind this one, and stays dormant");
	guard_open();
}
