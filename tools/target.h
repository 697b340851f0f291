/* SPDX-License-Identifier: MIT
 * Looks at the program that `ringway run` is about to start: can the dynamic linker preload anything into it?
 */
#ifndef TOOLS_TARGET_H
#define TOOLS_TARGET_H

#include <limits.h>

enum target_kind {
	TARGET_FINE,
	TARGET_PRIVILEGED, /* setuid, setgid or file capabilities: the linker ignores preloads */
	TARGET_STATIC, /* no dynamic linker runs in it */
	TARGET_OTHER_CLASS, /* an ELF file of another word size or machine */
	TARGET_OTHER_LIBC, /* its dynamic linker is musl's: the shim is loaded, and does nothing */
};

/* Where execvp() would find NAME. 0, or -ENOENT, or -EACCES when it is there but cannot be executed. */
int target_find(const char *name, char path[PATH_MAX]);

/* What PATH is; for a script, what its interpreter is, whose path is stored then (else ""). *WHAT is what to say of it ("is setuid", ...). */
enum target_kind target_inspect(const char *path, char interpreter[PATH_MAX], const char **what);

#endif
