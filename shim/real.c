/* SPDX-License-Identifier: MIT */
/*
 * Finds the functions that ours stand in front of. The only file that calls dlsym. Each pointer starts at a stub of its
 * own that looks up just that one name: looking up a name that exists allocates nothing, so an allocator that calls us
 * while it starts is no trouble. Only the constructor looks up everything, misses included.
 */
#include "shim/real.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/lib-names.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"

#define NO_SYSCALL (-1)

/* Newer machines never had the older half of some pairs. */
#ifndef SYS_poll
#define SYS_poll NO_SYSCALL
#endif
#ifndef SYS_select
#define SYS_select NO_SYSCALL
#endif
#ifndef SYS_epoll_create
#define SYS_epoll_create NO_SYSCALL
#endif
#ifndef SYS_epoll_wait
#define SYS_epoll_wait NO_SYSCALL
#endif
#ifndef SYS_dup2
#define SYS_dup2 NO_SYSCALL
#endif

static __thread bool looking_up __attribute__((tls_model("initial-exec")));

long raw_syscall(long nr, long a, long b, long c, long d, long e, long f)
{
	long result = nr == NO_SYSCALL ? -ENOSYS : sys_call6(nr, a, b, c, d, e, f);

	if (sys_failed(result)) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

/* Reads more words than it was given, as every syscall(2) does: the kernel looks only at those that the call has. */
static long raw_call(long nr, ...)
{
	long args[6];
	va_list list;

	va_start(list, nr);
	for (int i = 0; i < 6; i++)
		args[i] = va_arg(list, long);
	va_end(list);
	return raw_syscall(nr, args[0], args[1], args[2], args[3], args[4], args[5]);
}

/* Stores what the next object has under the name. False: nothing, or this very thread is inside such a look-up. */
static bool look_up(const char *name, void **pointer)
{
	int kept_errno = errno;
	void *found;

	if (looking_up)
		return false;
	looking_up = true;
	found = dlsym(RTLD_NEXT, name);
	looking_up = false;
	errno = kept_errno;
	if (found)
		store_relaxed((void *_Atomic *)pointer, found); /* what it points to was there before any thread */
	return found;
}

#define CALL(ret, name, nr, params, ...)                                                                               \
	static ret first_##name params                                                                                 \
	{                                                                                                              \
		if (look_up(#name, (void **)&real_##name))                                                             \
			return real_##name(__VA_ARGS__);                                                               \
		return (ret)raw_call(nr, ##__VA_ARGS__);                                                               \
	}                                                                                                              \
	ret(*real_##name) params = first_##name;
#define CALL_BARE CALL
#define CALL_VA(ret, name, nr, params, last, ...)                                                                      \
	static ret first_##name params                                                                                 \
	{                                                                                                              \
		va_list list;                                                                                          \
		void *arg;                                                                                             \
                                                                                                                       \
		va_start(list, last);                                                                                  \
		arg = va_arg(list, void *);                                                                            \
		va_end(list);                                                                                          \
		if (look_up(#name, (void **)&real_##name))                                                             \
			return real_##name(__VA_ARGS__);                                                               \
		return (ret)raw_call(nr, __VA_ARGS__);                                                                 \
	}                                                                                                              \
	ret(*real_##name) params = first_##name;
#define EXPORT_ONLY(name)
#include "calls.def"
#undef CALL
#undef CALL_VA

/* Where this object lies, with a slash at the end; empty: not known. Absolute, since the program may change its directory. */
static char object_dir[4096];

static void find_object_dir(void)
{
	static const char here;
	size_t len = 0, rest;
	const char *slash;
	Dl_info info;

	if (!dladdr(&here, &info) || !info.dli_fname || !(slash = strrchr(info.dli_fname, '/')))
		return;
	rest = (size_t)(slash - info.dli_fname) + 1;
	if (info.dli_fname[0] != '/') {
		/* What the system call returns counts the NUL, in whose place the slash goes. */
		long r = sys_call2(SYS_getcwd, object_dir, sizeof(object_dir));

		len = r > 0 ? (size_t)r : 0;
		if (!len || object_dir[0] != '/')
			rest = sizeof(object_dir);
		else
			object_dir[len - 1] = '/';
	}
	if (len + rest >= sizeof(object_dir)) {
		object_dir[0] = '\0';
		return;
	}
	memcpy(object_dir + len, info.dli_fname, rest);
	object_dir[len + rest] = '\0';
}

EXPORT void ringway_shim(void);
void ringway_shim(void)
{
}

bool real_is_first(void)
{
	void *first = dlsym(RTLD_DEFAULT, "ringway_shim");

	return !first || first == (void *)ringway_shim;
}

bool real_has_second(void)
{
	return dlsym(RTLD_NEXT, "ringway_shim");
}

void *real_open_beside(const char *name, const char *needs, const char *symbol, bool *alone)
{
	char path[sizeof(object_dir) + 64];
	int kept_errno = errno;
	void *object, *there, *found = NULL;

	if (!object_dir[0] || strlen(name) >= 64)
		return NULL;
	strcpy(path, object_dir);
	strcat(path, name);
	there = dlopen(needs, RTLD_NOW | RTLD_NOLOAD);
	if (there)
		dlclose(there);
	*alone = !there;
	/* Not RTLD_DEEPBIND: what libc has allocated for it by the program's allocator would be freed by libc's. */
	object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (object) {
		found = dlsym(object, symbol);
		if (!found)
			dlclose(object);
	} else {
		dlerror();
	}
	errno = kept_errno;
	return found;
}

void *real_address(const char *name, void **pointer)
{
	void *found = load_relaxed((void *_Atomic *)pointer);

	if (!found && look_up(name, pointer))
		found = *pointer;
	return found;
}

void *real_of_libc(const char *name)
{
	void *libc = dlopen(LIBC_SO, RTLD_LAZY | RTLD_NOLOAD), *found = NULL;

	if (libc) {
		found = dlsym(libc, name);
		dlclose(libc);
	}
	return found;
}

void real_resolve_all(void)
{
	find_object_dir();
#define CALL(ret, name, nr, params, ...) look_up(#name, (void **)&real_##name);
#define CALL_VA(ret, name, nr, params, last, ...) CALL(ret, name, nr, params)
#include "calls.def"
}
