/* SPDX-License-Identifier: MIT */
/*
 * Raw system calls. The preloaded object replaces libc's wrappers, and `syscall` too, so nothing below it may use them:
 * these go to the kernel directly, leave errno alone, are not cancellation points, and return a value or -errno.
 * Safe in a signal handler and in a vfork child.
 */
#ifndef RINGWAY_RINGBUF_SYS_H
#define RINGWAY_RINGBUF_SYS_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>

#if defined(__x86_64__)
static inline long sys_call6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ __volatile__("syscall"
			     : "=a"(ret)
			     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			     : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
static inline long sys_call6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ __volatile__("svc 0"
			     : "+r"(x0)
			     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			     : "memory");
	return x0;
}
#else
#error "ringbuf/sys.h knows x86-64 and aarch64"
#endif

#define sys_call0(nr) sys_call6((nr), 0, 0, 0, 0, 0, 0)
#define sys_call1(nr, a) sys_call6((nr), (long)(a), 0, 0, 0, 0, 0)
#define sys_call2(nr, a, b) sys_call6((nr), (long)(a), (long)(b), 0, 0, 0, 0)
#define sys_call3(nr, a, b, c) sys_call6((nr), (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define sys_call4(nr, a, b, c, d) sys_call6((nr), (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define sys_call5(nr, a, b, c, d, e) sys_call6((nr), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)

/* Did the kernel refuse? Its errors are the last 4095 values, so that addresses of mmap are no errors. */
static inline int sys_failed(long ret)
{
	return (unsigned long)ret >= (unsigned long)-4095L;
}

struct sockaddr;

static inline int sys_close(int fd)
{
	return (int)sys_call1(SYS_close, fd);
}

static inline int sys_socket(int family, int type, int protocol)
{
	return (int)sys_call3(SYS_socket, family, type, protocol);
}

static inline int sys_bind(int fd, const void *addr, unsigned len)
{
	return (int)sys_call3(SYS_bind, fd, addr, len);
}

static inline int sys_getsockname(int fd, void *addr, unsigned *len)
{
	return (int)sys_call3(SYS_getsockname, fd, addr, len);
}

static inline int sys_setsockopt(int fd, int level, int name, const void *value, unsigned len)
{
	return (int)sys_call5(SYS_setsockopt, fd, level, name, value, len);
}

static inline int sys_getsockopt(int fd, int level, int name, void *value, unsigned *len)
{
	return (int)sys_call5(SYS_getsockopt, fd, level, name, value, len);
}

static inline ssize_t sys_sendto(int fd, const void *buf, size_t len, int flags, const void *addr, unsigned addr_len)
{
	return sys_call6(SYS_sendto, fd, (long)buf, (long)len, flags, (long)addr, (long)addr_len);
}

static inline ssize_t sys_recvfrom(int fd, void *buf, size_t len, int flags, void *addr, unsigned *addr_len)
{
	return sys_call6(SYS_recvfrom, fd, (long)buf, (long)len, flags, (long)addr, (long)addr_len);
}

static inline int sys_recvmmsg(int fd, void *msgs, unsigned count, int flags)
{
	return (int)sys_call5(SYS_recvmmsg, fd, msgs, count, flags, 0);
}

static inline int sys_memfd_create(const char *name, unsigned flags)
{
	return (int)sys_call2(SYS_memfd_create, name, flags);
}

static inline int sys_ftruncate(int fd, off_t size)
{
	return (int)sys_call2(SYS_ftruncate, fd, size);
}

/* `st` is a struct stat, `fs` a struct statfs; libc's are the kernel's on both machines. */
static inline int sys_fstat(int fd, void *st)
{
	return (int)sys_call2(SYS_fstat, fd, st);
}

static inline int sys_fstatfs(int fd, void *fs)
{
	return (int)sys_call2(SYS_fstatfs, fd, fs);
}

static inline int sys_fchmod(int fd, unsigned mode)
{
	return (int)sys_call2(SYS_fchmod, fd, mode);
}

/* `delay` is a struct timespec. */
static inline int sys_nanosleep(const void *delay)
{
	return (int)sys_call2(SYS_nanosleep, delay, 0);
}

static inline long sys_fcntl(int fd, int cmd, long arg)
{
	return sys_call3(SYS_fcntl, fd, cmd, arg);
}

/* An address, or something for which sys_failed() is true. */
static inline long sys_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	return sys_call6(SYS_mmap, (long)addr, (long)len, prot, flags, fd, offset);
}

static inline int sys_madvise(void *addr, size_t len, int advice)
{
	return (int)sys_call3(SYS_madvise, addr, len, advice);
}

/* As sys_mmap(). */
static inline long sys_mremap(void *addr, size_t old_len, size_t new_len, int flags)
{
	return sys_call4(SYS_mremap, addr, old_len, new_len, flags);
}

static inline int sys_munmap(void *addr, size_t len)
{
	return (int)sys_call2(SYS_munmap, addr, len);
}

static inline int sys_getpid(void)
{
	return (int)sys_call0(SYS_getpid);
}

static inline ssize_t sys_getrandom(void *buf, size_t len, unsigned flags)
{
	return sys_call3(SYS_getrandom, buf, len, flags);
}

static inline int sys_membarrier(int cmd, unsigned flags)
{
	return (int)sys_call3(SYS_membarrier, cmd, flags, 0);
}

/* What poll() says of fd at this moment: revents, 0 for nothing. */
static inline short sys_ready_now(int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };
	struct timespec now = { 0 };

	return sys_call5(SYS_ppoll, &p, 1, &now, NULL, 8) > 0 ? p.revents : 0;
}

static inline int sys_prlimit(int pid, int resource, const void *new_limit, void *old_limit)
{
	return (int)sys_call4(SYS_prlimit64, pid, resource, new_limit, old_limit);
}

static inline int sys_openat(int dir, const char *path, int flags, unsigned mode)
{
	return (int)sys_call4(SYS_openat, dir, path, flags, mode);
}

static inline ssize_t sys_read(int fd, void *buf, size_t len)
{
	return sys_call3(SYS_read, fd, buf, len);
}

static inline ssize_t sys_readlinkat(int dir, const char *path, char *buf, size_t len)
{
	return sys_call4(SYS_readlinkat, dir, path, buf, len);
}

#endif
