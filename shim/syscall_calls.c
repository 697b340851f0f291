/* SPDX-License-Identifier: MIT */
/*
 * syscall(): numbers that mean a call we wrap go to that wrapper, so that a program which prefers bare calls keeps one
 * truth about its sockets. io_uring and kernel aio work beside every wrapper: a process that sets one up comes back to TCP, and stays there.
 * Everything else passes straight through.
 */
#include "shim/real.h"

#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/conn_iov.h"
#include "shim/counted.h"
#include "shim/guard.h"
#include "shim/inherit.h"
#include "shim/sandbox.h"
#include "shim/signals.h"
#include "shim/wait.h"

struct args {
	long nr, a, b, c, d, e, f;
};

static long pass(const struct args *x)
{
	return raw_syscall(x->nr, x->a, x->b, x->c, x->d, x->e, x->f);
}

/* libc's functions look at what they are given; of a bad address the program wants the kernel's answer. */
static bool may_read(long at, size_t size)
{
	return !at || !user_range_bad((const void *)at, size);
}

/* The kernel's signal sets are 8 bytes; a program that passes another size wants the kernel's answer, too. */
static bool kernel_sigset(long mask, long size)
{
	return !mask || (size == 8 && may_read(mask, 8));
}

/* libc's functions read more than 8 bytes of a mask, so it is copied into one of theirs. */
static const sigset_t *wide_mask(long mask, sigset_t *wide)
{
	if (!mask)
		return NULL;
	sigemptyset(wide);
	*(uint64_t *)wide = *(const uint64_t *)mask;
	return wide;
}

static long ready_call(const struct args *x)
{
	sigset_t wide;

	switch (x->nr) {
	case SYS_ppoll:
		if (!kernel_sigset(x->d, x->e) || !may_read(x->c, sizeof(struct timespec)))
			break;
		return ppoll((struct pollfd *)x->a, (nfds_t)x->b, (const struct timespec *)x->c, wide_mask(x->d, &wide));
	case SYS_pselect6: {
		const struct {
			long mask, size;
		} *pack = (const void *)x->f;

		if (!may_read(x->f, sizeof(*pack)) || (pack && !kernel_sigset(pack->mask, pack->size)) ||
		    !may_read(x->e, sizeof(struct timespec)))
			break;
		return pselect((int)x->a, (fd_set *)x->b, (fd_set *)x->c, (fd_set *)x->d, (const struct timespec *)x->e,
			       pack ? wide_mask(pack->mask, &wide) : NULL);
	}
	case SYS_epoll_pwait:
		if (!kernel_sigset(x->e, x->f))
			break;
		return epoll_pwait((int)x->a, (struct epoll_event *)x->b, (int)x->c, (int)x->d, wide_mask(x->e, &wide));
	case SYS_epoll_pwait2:
		if (!kernel_sigset(x->e, x->f) || !may_read(x->d, sizeof(struct timespec)))
			break;
		return epoll_pwait2((int)x->a, (struct epoll_event *)x->b, (int)x->c, (const struct timespec *)x->d,
				    wide_mask(x->e, &wide));
	default:
		break;
	}
	return pass(x);
}

/* A new process. One that shares our memory cannot return from here twice, so it gets no help. */
static long process_call(const struct args *x)
{
	uint64_t flags = x->nr == SYS_clone ? (uint64_t)x->a : x->nr == SYS_clone3 ? *(const uint64_t *)x->a : 0;
	long pid;

	if (sandbox_before_clone(flags)) {
		pid = pass(x);
		if (pid == 0)
			guard_shut();
		return pid;
	}
	if (flags & CLONE_VM)
		return pass(x);
	inherit_before_fork();
	pid = pass(x);
	if (pid == 0)
		inherit_in_child();
	else
		inherit_in_parent();
	return pid;
}

/* A struct as the kernel has it: the handler is its first word. */
static long signal_call(const struct args *x)
{
	uintptr_t counted[4], *old = (uintptr_t *)x->c;
	struct args y = *x;
	long result;

	if (x->b && x->d == 8 && may_read(x->b, sizeof(counted))) {
		memcpy(counted, (const void *)x->b, sizeof(counted));
		counted[0] = counted_stub((int)x->a, counted[0]);
		y.b = (long)counted;
	}
	result = pass(&y);
	if (result == 0 && old)
		*old = counted_program(*old);
	if (result == 0 && x->b)
		signals_refresh((int)x->a);
	return result;
}

static long sandbox_call(const struct args *x)
{
	long result;

	switch (x->nr) {
	case SYS_seccomp:
		if (x->a == SECCOMP_SET_MODE_STRICT || (x->a == SECCOMP_SET_MODE_FILTER && x->c))
			sandbox_enter(REASON_SECCOMP);
		break;
	case SYS_io_uring_setup:
		sandbox_leave_rings(REASON_IO_URING);
		break;
	case SYS_io_setup:
		sandbox_leave_rings(REASON_AIO);
		break;
	default:
		break;
	}
	result = pass(x);
	if (result == 0 && x->nr == SYS_seccomp && x->a == SECCOMP_SET_MODE_STRICT)
		clock_lose_counter();
	return result;
}

/* One line a number: the wrapper and how its arguments come out of the six words. */
static long route(const struct args *x)
{
	int fd = (int)x->a;

	switch (x->nr) {
	case SYS_read: return read(fd, (void *)x->b, (size_t)x->c);
	case SYS_write: return write(fd, (const void *)x->b, (size_t)x->c);
	case SYS_readv: return readv(fd, (const struct iovec *)x->b, (int)x->c);
	case SYS_writev: return writev(fd, (const struct iovec *)x->b, (int)x->c);
	case SYS_preadv2: return preadv2(fd, (const struct iovec *)x->b, (int)x->c, x->d, (int)x->f);
	case SYS_pwritev2: return pwritev2(fd, (const struct iovec *)x->b, (int)x->c, x->d, (int)x->f);
	case SYS_sendfile: return sendfile(fd, (int)x->b, (off_t *)x->c, (size_t)x->d);
	case SYS_splice:
		return splice(fd, (off64_t *)x->b, (int)x->c, (off64_t *)x->d, (size_t)x->e, (unsigned int)x->f);
	case SYS_sendto:
		return sendto(fd, (const void *)x->b, (size_t)x->c, (int)x->d, (const struct sockaddr *)x->e,
			      (socklen_t)x->f);
	case SYS_recvfrom:
		return recvfrom(fd, (void *)x->b, (size_t)x->c, (int)x->d, (struct sockaddr *)x->e, (socklen_t *)x->f);
	case SYS_sendmsg: return sendmsg(fd, (const struct msghdr *)x->b, (int)x->c);
	case SYS_recvmsg: return recvmsg(fd, (struct msghdr *)x->b, (int)x->c);
	case SYS_sendmmsg: return sendmmsg(fd, (struct mmsghdr *)x->b, (unsigned int)x->c, (int)x->d);
	case SYS_recvmmsg:
		return recvmmsg(fd, (struct mmsghdr *)x->b, (unsigned int)x->c, (int)x->d, (struct timespec *)x->e);
	case SYS_socket: return socket(fd, (int)x->b, (int)x->c);
	case SYS_socketpair: return socketpair(fd, (int)x->b, (int)x->c, (int *)x->d);
	case SYS_connect: return connect(fd, (const struct sockaddr *)x->b, (socklen_t)x->c);
	case SYS_accept: return accept(fd, (struct sockaddr *)x->b, (socklen_t *)x->c);
	case SYS_accept4: return accept4(fd, (struct sockaddr *)x->b, (socklen_t *)x->c, (int)x->d);
	case SYS_shutdown: return shutdown(fd, (int)x->b);
	case SYS_getsockopt: return getsockopt(fd, (int)x->b, (int)x->c, (void *)x->d, (socklen_t *)x->e);
	case SYS_setsockopt: return setsockopt(fd, (int)x->b, (int)x->c, (const void *)x->d, (socklen_t)x->e);
	case SYS_close: return close(fd);
	case SYS_close_range: return close_range((unsigned int)x->a, (unsigned int)x->b, (int)x->c);
	case SYS_dup: return dup(fd);
	case SYS_dup3: return dup3(fd, (int)x->b, (int)x->c);
	case SYS_fcntl: return fcntl(fd, (int)x->b, x->c);
	case SYS_ioctl: return ioctl(fd, (unsigned long)x->b, x->c);
	case SYS_epoll_create1: return epoll_create1(fd);
	case SYS_epoll_ctl: return epoll_ctl(fd, (int)x->b, (int)x->c, (struct epoll_event *)x->d);
#ifdef SYS_dup2
	case SYS_dup2: return dup2(fd, (int)x->b);
	case SYS_poll: return poll((struct pollfd *)x->a, (nfds_t)x->b, (int)x->c);
	case SYS_select:
		return select(fd, (fd_set *)x->b, (fd_set *)x->c, (fd_set *)x->d, (struct timeval *)x->e);
	case SYS_epoll_create: return epoll_create(fd);
	case SYS_epoll_wait: return epoll_wait(fd, (struct epoll_event *)x->b, (int)x->c, (int)x->d);
	case SYS_fork:
#endif
	case SYS_clone3:
	case SYS_clone: return process_call(x);
	case SYS_ppoll:
	case SYS_pselect6:
	case SYS_epoll_pwait:
	case SYS_epoll_pwait2: return ready_call(x);
	case SYS_execve: return execve((const char *)x->a, (char *const *)x->b, (char *const *)x->c);
	case SYS_execveat:
		return execveat(fd, (const char *)x->b, (char *const *)x->c, (char *const *)x->d, (int)x->e);
	case SYS_unshare: return unshare(fd);
	case SYS_exit_group: _exit(fd);
	case SYS_rt_sigaction: return signal_call(x);
	case SYS_prctl:
		return prctl(fd, (unsigned long)x->b, (unsigned long)x->c, (unsigned long)x->d, (unsigned long)x->e);
	case SYS_seccomp:
	case SYS_io_uring_setup:
	case SYS_io_setup: return sandbox_call(x);
	default: return pass(x);
	}
}

EXPORT long syscall(long nr, ...)
{
	struct args x = { .nr = nr };
	va_list list;

	va_start(list, nr);
	x.a = va_arg(list, long);
	x.b = va_arg(list, long);
	x.c = va_arg(list, long);
	x.d = va_arg(list, long);
	x.e = va_arg(list, long);
	x.f = va_arg(list, long);
	va_end(list);
	return likely(guard_ready()) ? route(&x) : pass(&x);
}
