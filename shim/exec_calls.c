/* SPDX-License-Identifier: MIT */
/*
 * The exec family. Programs try one path after the other until one works, so what leaving a process image takes is only
 * done where the file is there and may be executed.
 */
#include "shim/real.h"

#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ringbuf/sys.h"
#include "shim/guard.h"
#include "shim/inherit.h"

static bool executable(int dir, const char *path)
{
	return sys_call3(SYS_faccessat, dir, path, X_OK) == 0;
}

/* Does a search along PATH, as execvp() will do it, find anything? */
static bool executable_in_path(const char *file)
{
	const char *path = getenv("PATH");
	char candidate[4096];
	size_t len = strlen(file);

	if (strchr(file, '/'))
		return executable(AT_FDCWD, file);
	for (path = path ? path : "/bin:/usr/bin"; *path; path += *path == ':') {
		size_t dir_len = strcspn(path, ":");

		if (dir_len + len + 2 <= sizeof(candidate)) {
			memcpy(candidate, path, dir_len);
			candidate[dir_len] = '/';
			memcpy(candidate + dir_len + (dir_len != 0), file, len + 1);
			if (executable(AT_FDCWD, candidate))
				return true;
		}
		path += dir_len;
	}
	return false;
}

/* Runs the call; it returns only if it failed. */
#define EXEC(likely_to_work, call)                                                                                     \
	do {                                                                                                           \
		struct inherit_exec undo;                                                                              \
                                                                                                                       \
		if (!(load_relaxed(&guard_state) & GUARD_READY) || !(likely_to_work))                                  \
			return call;                                                                                   \
		inherit_before_exec(&undo);                                                                            \
		(void)call;                                                                                            \
		inherit_exec_failed(&undo);                                                                            \
		return -1;                                                                                             \
	} while (0)

EXPORT int execve(const char *path, char *const argv[], char *const envp[])
{
	EXEC(executable(AT_FDCWD, path), real_execve(path, argv, envp));
}

EXPORT int execvpe(const char *file, char *const argv[], char *const envp[])
{
	EXEC(executable_in_path(file), real_execvpe(file, argv, envp));
}

EXPORT int fexecve(int fd, char *const argv[], char *const envp[])
{
	EXEC(true, real_fexecve(fd, argv, envp));
}

EXPORT int execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags)
{
	EXEC(flags & AT_EMPTY_PATH || executable(dir, path), real_execveat(dir, path, argv, envp, flags));
}

EXPORT int execv(const char *path, char *const argv[])
{
	return execve(path, argv, environ);
}

EXPORT int execvp(const char *file, char *const argv[])
{
	return execvpe(file, argv, environ);
}

static size_t count_args(const char *first, va_list *list)
{
	size_t nr = 0;

	for (const char *arg = first; arg; arg = va_arg(*list, const char *))
		nr++;
	return nr;
}

static void fill_args(char **argv, const char *first, va_list *list)
{
	for (const char *arg = first; arg; arg = va_arg(*list, const char *))
		*argv++ = (char *)arg;
	*argv = NULL;
}

/* Builds `argv` from the arguments and leaves `list` behind the NULL that ends them; on the stack, as malloc may not be
 * used between fork and exec. */
#define ARGS_TO_ARGV(argv, first, list)                                                                                \
	do {                                                                                                           \
		va_start(list, first);                                                                                 \
		(argv) = alloca((count_args(first, &(list)) + 1) * sizeof(*(argv)));                                   \
		va_end(list);                                                                                          \
		va_start(list, first);                                                                                 \
		fill_args(argv, first, &(list));                                                                       \
	} while (0)

EXPORT int execl(const char *path, const char *first, ...)
{
	va_list list;
	char **argv;

	ARGS_TO_ARGV(argv, first, list);
	va_end(list);
	return execve(path, argv, environ);
}

EXPORT int execlp(const char *file, const char *first, ...)
{
	va_list list;
	char **argv;

	ARGS_TO_ARGV(argv, first, list);
	va_end(list);
	return execvpe(file, argv, environ);
}

EXPORT int execle(const char *path, const char *first, ...)
{
	char *const *envp;
	va_list list;
	char **argv;

	ARGS_TO_ARGV(argv, first, list);
	envp = va_arg(list, char *const *);
	va_end(list);
	return execve(path, argv, envp);
}
