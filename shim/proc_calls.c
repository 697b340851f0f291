/* SPDX-License-Identifier: MIT */
/*
 * Calls that make and end processes. fork() is not among them: see inherit.h. In a vfork child all of them go straight
 * through.
 */
#include "shim/real.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/fd_conn.h"
#include "shim/glibc.h"
#include "shim/guard.h"
#include "shim/inherit.h"
#include "shim/sandbox.h"
#include "shim/spawn_actions.h"
#include "shim/vfork_child.h"

/* Runs no fork handlers, ours included. */
EXPORT pid_t _Fork(void)
{
	pid_t pid;

	inherit_before_fork();
	pid = real__Fork();
	if (pid == 0)
		inherit_in_child();
	else
		inherit_in_parent();
	return pid;
}

struct clone_start {
	int (*fn)(void *);
	void *arg;
};

static int clone_child(void *arg)
{
	struct clone_start start = *(struct clone_start *)arg;

	inherit_in_child();
	return start.fn(start.arg);
}

static int clone_child_of_our_fds(void *arg)
{
	struct clone_start start = *(struct clone_start *)arg;

	guard_shut();
	return start.fn(start.arg);
}

static int clone_with_memory(int (*fn)(void *), void *stack, int flags, void *arg, void *const rest[3])
{
	bool like_vfork = (flags & (CLONE_VFORK | CLONE_THREAD)) == CLONE_VFORK;
	int pid;

	/* The child of a plain CLONE_VM shares our tables, side by side with us. */
	if (!like_vfork || !guard_ready())
		return real_clone(fn, stack, flags, arg, rest[0], rest[1], rest[2]);
	inherit_before_vfork();
	vfork_child_begins();
	guard_vfork_depth++;
	fetch_add(&guard_state, GUARD_VFORK);
	pid = real_clone(fn, stack, flags, arg, rest[0], rest[1], rest[2]);
	guard_vfork_depth = 0;
	fetch_sub(&guard_state, GUARD_VFORK);
	vfork_child_over();
	return pid;
}

EXPORT int clone(int (*fn)(void *), void *stack, int flags, void *arg, ...)
{
	struct clone_start start = { .fn = fn, .arg = arg };
	void *rest[3];
	va_list list;
	int pid;

	va_start(list, arg);
	for (int i = 0; i < 3; i++)
		rest[i] = va_arg(list, void *);
	va_end(list);
	if (guard_ready() && sandbox_before_clone((unsigned int)flags))
		return real_clone(clone_child_of_our_fds, stack, flags, &start, rest[0], rest[1], rest[2]);
	if (flags & CLONE_VM)
		return clone_with_memory(fn, stack, flags, arg, rest);
	inherit_before_fork();
	pid = real_clone(clone_child, stack, flags, &start, rest[0], rest[1], rest[2]);
	inherit_in_parent();
	return pid;
}

EXPORT int __clone(int (*fn)(void *), void *stack, int flags, void *arg, ...) __attribute__((alias("clone"), leaf, nothrow));

/* The fd table is the process's: where a thread gets descriptors of its own, numbers say nothing any more. */
EXPORT int unshare(int flags)
{
	if (flags & CLONE_FILES && guard_ready() && !__libc_single_threaded)
		sandbox_leave_rings(REASON_FD_TABLE);
	return real_unshare(flags);
}

EXPORT int system(const char *command)
{
	struct inherit_shield shield;
	int status;

	inherit_before_spawn(&shield);
	status = real_system(command);
	inherit_after_spawn(&shield);
	return status;
}

EXPORT FILE *popen(const char *command, const char *mode)
{
	struct inherit_shield shield;
	FILE *pipe;

	inherit_before_spawn(&shield);
	pipe = real_popen(command, mode);
	inherit_after_spawn(&shield);
	return pipe;
}

static bool has_command(const char *words, int flags)
{
	return !(flags & WRDE_NOCMD) && (strchr(words, '`') || strstr(words, "$("));
}

EXPORT int wordexp(const char *words, wordexp_t *expansion, int flags)
{
	struct inherit_shield shield;
	int error;

	if (!guard_ready() || !has_command(words, flags))
		return real_wordexp(words, expansion, flags);
	inherit_before_spawn(&shield);
	error = real_wordexp(words, expansion, flags);
	inherit_after_spawn(&shield);
	return error;
}

/* What the child's copy would be refused as. */
static bool may_carry_out(const posix_spawn_file_actions_t *actions)
{
	return !actions || !guard_ready() || spawn_actions_hand_on(actions);
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		       const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	struct inherit_shield shield;
	int error;

	inherit_before_spawn(&shield);
	error = may_carry_out(actions) ? real_posix_spawn(pid, path, actions, attr, argv, envp) : EBADF;
	inherit_after_spawn(&shield);
	return error;
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
			const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	struct inherit_shield shield;
	int error;

	inherit_before_spawn(&shield);
	error = may_carry_out(actions) ? real_posix_spawnp(pid, file, actions, attr, argv, envp) : EBADF;
	inherit_after_spawn(&shield);
	return error;
}

/*
 * The child will use the connection, so it stays on TCP. One that is on a ring already cannot be given away: refused like
 * a number that is not open, rather than have the child write among frames.
 */
EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int fd, int to)
{
	int error;

	if (guard_ready() && !fd_hand_on(fd, REASON_EXEC))
		return EBADF;
	error = real_posix_spawn_file_actions_adddup2(actions, fd, to);
	if (!error && guard_ready())
		spawn_actions_note(actions, fd);
	return error;
}

/* One that was on the stack has perhaps never been given back. */
EXPORT int posix_spawn_file_actions_init(posix_spawn_file_actions_t *actions)
{
	spawn_actions_forget(actions);
	return real_posix_spawn_file_actions_init(actions);
}

EXPORT int posix_spawn_file_actions_destroy(posix_spawn_file_actions_t *actions)
{
	spawn_actions_forget(actions);
	return real_posix_spawn_file_actions_destroy(actions);
}

EXPORT void _exit(int status)
{
	inherit_at_exit();
	real__exit(status);
	__builtin_unreachable();
}

EXPORT void _Exit(int status)
{
	inherit_at_exit();
	real__Exit(status);
	__builtin_unreachable();
}
