/* SPDX-License-Identifier: MIT */
/* Holds every prototype of calls.def against libc's own header: a wrapper with a wrong one would not compile anywhere. */
#include <execinfo.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/real.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* old signal calls, wrapped all the same */

#define CALL(ret, name, nr, params, ...)                                                                               \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&name), ret(*) params),                                 \
		       "the prototype of " #name " is not libc's");
#define CALL_BARE(ret, name, nr, params, ...)
#define CALL_VA(ret, name, nr, params, last, ...) CALL(ret, name, nr, params)
#define EXPORT_ONLY(name)
#include "calls.def"
