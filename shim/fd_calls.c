/* SPDX-License-Identifier: MIT */
/* Descriptors are copied, changed and closed. To all of these a hidden number (own_fd.h) is a closed one. */
#include "shim/real.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_iov.h"
#include "shim/far.h"
#include "shim/fd_conn.h"
#include "shim/fdtab.h"
#include "shim/glibc.h"
#include "shim/guard.h"
#include "shim/own_fd.h"
#include "shim/sandbox.h"
#include "shim/unseen.h"
#include "shim/vfork_child.h"

/* In no header. */
int __close(int fd);
int __dup2(int fd, int to);
int __fcntl(int fd, int cmd, ...);

static int bad_fd(void)
{
	errno = EBADF;
	return -1;
}

/* Between the table's forgetting it and the kernel's the thread must not end. */
static int close_set(int fd)
{
	int cancel, change, r;

	guard_test_cancel();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	change = fd_set_change_begin();
	fd_closing(fd);
	r = real_close(fd);
	fd_set_change_end(change, fd);
	pthread_setcancelstate(cancel, NULL);
	return r;
}

EXPORT int close(int fd)
{
	if (!guard_ready())
		return real_close(fd);
	unseen_closing((unsigned int)fd, (unsigned int)fd);
	if (unlikely(fdtab_get(fd) || fdtab_other(fd) != FD_MARK_NONE)) {
		if (fdtab_hidden(fd))
			return far_lets_close(fd) ? real_close(fd) : bad_fd();
		if (fdtab_epoll(fd))
			return close_set(fd);
		fd_closing(fd);
	}
	return real_close(fd);
}

EXPORT int __close(int fd)
{
	return close(fd);
}

/* The range without our numbers in it. */
static int close_range_around(unsigned int first, unsigned int last, int flags)
{
	int hidden;

	for (; (hidden = fdtab_next_hidden(first)) >= 0 && (unsigned int)hidden <= last; first = (unsigned int)hidden + 1)
		if ((unsigned int)hidden > first && real_close_range(first, (unsigned int)hidden - 1, flags) < 0)
			return -1;
	return first <= last ? real_close_range(first, last, flags) : 0;
}

static int close_all_of_range(unsigned int first, unsigned int last, int flags)
{
	bool sets = false;
	int change = 0, r;

	for (int fd = fdtab_next(first); fd >= 0 && (unsigned int)fd <= last; fd = fdtab_next((unsigned int)fd + 1)) {
		if (fdtab_epoll(fd) && !sets) {
			change = fd_set_change_begin();
			sets = true;
		}
		fd_closing(fd);
	}
	unseen_closing(first, last);
	r = close_range_around(first, last, flags);
	if (sets)
		fd_set_change_end(change, -1);
	return r;
}

EXPORT int close_range(unsigned int first, unsigned int last, int flags)
{
	bool parts;

	if (!guard_ready() || first > last || flags & ~(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE))
		return real_close_range(first, last, flags);
	/* With a copy for this thread alone nothing is closed for the others. */
	parts = flags & CLOSE_RANGE_UNSHARE && !__libc_single_threaded;
	if (parts)
		sandbox_leave_rings(REASON_FD_TABLE);
	if (!(flags & CLOSE_RANGE_CLOEXEC) && !parts)
		return close_all_of_range(first, last, flags);
	return close_range_around(first, last, flags);
}

EXPORT void closefrom(int first)
{
	if (first < 0)
		first = 0;
	if (!guard_ready()) {
		real_closefrom(first);
		return;
	}
	if (close_range((unsigned int)first, UINT_MAX, 0) == 0)
		return;
	/* A kernel without close_range(2). */
	for (unsigned long fd = (unsigned long)first; fd < own_fd_limit(); fd++)
		(void)close((int)fd);
}

/* Programs give a socket one of these numbers to exec something that uses it, or to read and print by streams, whose calls no wrapper sees. */
static void expect_exec(int fd, int to)
{
	if (fd_is_standard(to))
		(void)fd_hand_on(fd, REASON_EXEC);
}

/*
 * A stream of libc's that has opened a file, or was made of a socket, knows its number only: what is put there in its place is read and written by its calls. Whether there is one is
 * not known, so what is unread in the ring stays there for the program's own.
 */
static void expect_stream(int fd, int to)
{
	const struct conn *there = fdtab_get(to);
	uint8_t why = there ? load_relaxed(&there->reason) : REASON_NONE;
	struct stat st;
	bool file;

	if (fd_is_standard(to) || !fdtab_get(fd))
		return;
	/* A filter may kill who asks. */
	file = !there && sandbox_why() != REASON_SECCOMP && sys_fstat(to, &st) == 0 && (S_ISREG(st.st_mode) || S_ISCHR(st.st_mode) || S_ISFIFO(st.st_mode));
	if (file || why == REASON_STDIO || why == REASON_COPIED || fdtab_copied(to))
		(void)fd_come_back(fd, REASON_STDIO);
}

/* The kernel has chosen the number. */
static int copied(const struct fd_copy *what, int copy)
{
	fd_copy_end(what, copy);
	expect_exec(copy, copy);
	return copy;
}

EXPORT int dup(int fd)
{
	struct fd_copy what;

	if (!guard_ready())
		return vfork_child_copied(fd, real_dup(fd));
	if (fdtab_hidden(fd))
		return bad_fd();
	what = fd_copy_begin(fd);
	return copied(&what, real_dup(fd));
}

static bool is_open(int fd)
{
	return sys_fcntl(fd, F_GETFD, 0) >= 0;
}

/* What dup2 and dup3 do once they are known to differ. 0, or -1 and errno. */
static int make_way(int fd, int to)
{
	if (fdtab_hidden(fd))
		return bad_fd();
	expect_exec(fd, to);
	expect_stream(fd, to);
	unseen_closing((unsigned int)to, (unsigned int)to);
	if (!fdtab_get(to) && fdtab_other(to) == FD_MARK_NONE)
		return 0;
	/* Only a call that will succeed closes what stands there. */
	if (!is_open(fd) || (unsigned long)to >= own_fd_limit())
		return bad_fd();
	if (fdtab_hidden(to))
		return (int)as_errno(own_fd_evict(to));
	/* A set is known until another thing stands there. */
	if (!fdtab_epoll(to))
		fd_closing(to);
	return 0;
}

EXPORT int dup2(int fd, int to)
{
	struct fd_copy what;
	int copy;

	if (!guard_ready())
		return vfork_child_copied(fd, real_dup2(fd, to));
	if (fd == to)
		return fdtab_hidden(fd) ? bad_fd() : real_dup2(fd, to);
	if (make_way(fd, to) < 0)
		return -1;
	what = fd_copy_begin(fd);
	copy = real_dup2(fd, to);
	fd_copy_end(&what, copy);
	return copy;
}

EXPORT int __dup2(int fd, int to)
{
	return dup2(fd, to);
}

EXPORT int dup3(int fd, int to, int flags)
{
	struct fd_copy what;
	int copy;

	if (!guard_ready())
		return vfork_child_copied(fd, real_dup3(fd, to, flags));
	if (fd == to || flags & ~O_CLOEXEC)
		return real_dup3(fd, to, flags);
	if (make_way(fd, to) < 0)
		return -1;
	what = fd_copy_begin(fd);
	copy = real_dup3(fd, to, flags);
	fd_copy_end(&what, copy);
	return copy;
}

static int fcntl_dup(int fd, int cmd, void *arg)
{
	struct fd_copy what = fd_copy_begin(fd);

	return copied(&what, real_fcntl(fd, cmd, arg));
}

static int fcntl_conn(struct conn *c, int fd, int cmd, void *arg)
{
	int word = (int)(intptr_t)arg, result;

	/* A socket that was close-on-exec and no longer is, is about to be handed to a program. */
	if (cmd == F_SETFD && !(word & FD_CLOEXEC) && sys_fcntl(fd, F_GETFD, 0) & FD_CLOEXEC)
		(void)fd_pin(fd, REASON_EXEC);
	/* The kernel signals what it sees, and a ring is not that. */
	if ((cmd == F_SETFL && word & O_ASYNC) || (cmd == F_SETSIG && word != 0))
		(void)fd_come_back(fd, REASON_SIGIO);
	result = real_fcntl(fd, cmd, arg);
	if (cmd == F_SETFL && result == 0)
		conn_set_nonblock(c, word & O_NONBLOCK);
	return result;
}

/* Or before there is anything of ours. */
static int fcntl_in_vfork_child(int fd, int cmd, void *arg)
{
	int result = real_fcntl(fd, cmd, arg);

	if (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC)
		return vfork_child_copied(fd, result);
	if (cmd == F_SETFL && result == 0)
		vfork_child_nonblock(fd, (int)(intptr_t)arg & O_NONBLOCK);
	return result;
}

static int ioctl_in_vfork_child(int fd, unsigned long request, void *arg)
{
	int result = real_ioctl(fd, request, arg);

	if (request == FIONBIO && result == 0)
		vfork_child_nonblock(fd, *(int *)arg);
	return result;
}

static int do_fcntl(int fd, int cmd, void *arg)
{
	struct conn *c;

	if (!guard_ready())
		return fcntl_in_vfork_child(fd, cmd, arg);
	if (fdtab_hidden(fd) && !far_is_libs(fd))
		return bad_fd();
	if (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC)
		return fcntl_dup(fd, cmd, arg);
	c = fdtab_get(fd);
	return c ? fcntl_conn(c, fd, cmd, arg) : real_fcntl(fd, cmd, arg);
}

#define FCNTL(name)                                                                                                    \
	EXPORT int name(int fd, int cmd, ...)                                                                          \
	{                                                                                                              \
		va_list list;                                                                                          \
		void *arg;                                                                                             \
                                                                                                                       \
		va_start(list, cmd);                                                                                   \
		arg = va_arg(list, void *);                                                                            \
		va_end(list);                                                                                          \
		return do_fcntl(fd, cmd, arg);                                                                         \
	}

/* One call on these machines, whose off_t has 64 bits. */
FCNTL(fcntl)
FCNTL(fcntl64)
FCNTL(__fcntl)

static int ioctl_conn(struct conn *c, int fd, unsigned long request, void *arg)
{
	int result;

	if (user_range_bad(arg, sizeof(int)))
		return real_ioctl(fd, request, arg);
	switch (request) {
	case FIONREAD:
		if (!conn_hold(c, fd))
			return real_ioctl(fd, request, arg);
		result = (int)as_errno(conn_inq(c, fd));
		conn_drop(c);
		if (result < 0)
			return -1;
		*(int *)arg = result;
		return 0;
	case SIOCOUTQ:
		result = (int)as_errno(conn_outq(c, fd));
		if (result < 0)
			return -1;
		*(int *)arg = result;
		return 0;
	case FIOASYNC:
		if (*(int *)arg)
			(void)fd_come_back(fd, REASON_SIGIO);
		return real_ioctl(fd, request, arg);
	case FIONBIO:
		result = real_ioctl(fd, request, arg);
		if (result == 0)
			conn_set_nonblock(c, *(int *)arg);
		return result;
	default:
		return real_ioctl(fd, request, arg);
	}
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct conn *c;
	va_list list;
	void *arg;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	if (!guard_ready())
		return ioctl_in_vfork_child(fd, request, arg);
	if (fdtab_hidden(fd) && !far_is_libs(fd))
		return bad_fd();
	c = fdtab_get(fd);
	return c ? ioctl_conn(c, fd, request, arg) : real_ioctl(fd, request, arg);
}
