/* SPDX-License-Identifier: MIT */
/*
 * See asleep.h. libc's ppoll() copies the time, and epoll_pwait() takes it by value: then a handler that runs just before the system call has nothing to
 * take away. So these are bare system calls, and a thread may be cancelled in them as in libc's.
 */
#include "shim/asleep.h"

#include <errno.h>
#include <pthread.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/clock.h"
#include "shim/counted.h"
#include "shim/glibc.h"

#define NS_PER_MS 1000000
#define KERNEL_SIGSET 8
/* The kernel takes no more for a time, and no process lives so long. */
#define FOR_EVER_S (INT64_C(1) << 32)

/* Who is alone can have been cancelled by itself only, which has been looked for. */
static long cancellable(long nr, long a, long b, long c, long d, long e, long f)
{
	int type;
	long r;

	if (__libc_single_threaded)
		return sys_call6(nr, a, b, c, d, e, f);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
	r = sys_call6(nr, a, b, c, d, e, f);
	pthread_setcanceltype(type, &type);
	return r;
}

static void set_left(int64_t s, int64_t ns)
{
	store_unlocked(&counted_thread.left.tv_sec, s);
	store_unlocked(&counted_thread.left.tv_nsec, ns);
	fence_compiler();
}

/* A handler that runs while this is written is seen by the count; one that runs afterwards leaves zero. */
static void prepare(int64_t ns, uint64_t since)
{
	set_left(ns < 0 ? FOR_EVER_S : ns / NS_PER_S, ns < 0 ? 0 : ns % NS_PER_S);
	if (counted_now() != since)
		set_left(0, 0);
}

/* What it was interrupted in may be such a sleep, too, which has its time still to be read. */
static int conclude(long r, uint64_t since)
{
	fence_compiler();
	set_left(0, 0);
	return r == 0 && counted_now() != since ? -EINTR : (int)r;
}

int asleep_in_poll(struct pollfd *fds, nfds_t nr_fds, int64_t ns, const sigset_t *mask, uint64_t since)
{
	prepare(ns, since);
	return conclude(cancellable(SYS_ppoll, (long)fds, (long)nr_fds, (long)&counted_thread.left, (long)mask, KERNEL_SIGSET, 0), since);
}

/* ---- a set --------------------------------------------------------------------------------------------------------- */

/* Kernels before 5.11 do not have it, nor do containers that know no newer calls. */
static _Atomic bool lacks_pwait2;

static int take(int epfd, struct epoll_event *events, int nr_events, int64_t ms, const sigset_t *mask)
{
	ms = ms > INT32_MAX ? INT32_MAX : ms;
	return (int)cancellable(SYS_epoll_pwait, epfd, (long)events, nr_events, ms, (long)mask, KERNEL_SIGSET);
}

/* Another thread may have taken what the set was ready for. */
static int sleep_by_poll(int epfd, struct epoll_event *events, int nr_events, int64_t ns, const sigset_t *mask, uint64_t since)
{
	int64_t deadline = ns > 0 ? now_ns() + ns : 0;
	struct pollfd set = { .fd = epfd, .events = POLLIN };
	int n;

	for (;;) {
		n = asleep_in_poll(&set, 1, ns, mask, since);
		if (n <= 0)
			return n;
		n = take(epfd, events, nr_events, 0, NULL);
		if (n)
			return n;
		if (deadline)
			ns = deadline - now_ns() > 0 ? deadline - now_ns() : 0;
	}
}

int asleep_in_epoll(int epfd, struct epoll_event *events, int nr_events, int64_t ns, const sigset_t *mask, uint64_t since, bool caged)
{
	long r;

	if (unlikely(caged))
		return take(epfd, events, nr_events, ns < 0 ? -1 : (ns + NS_PER_MS - 1) / NS_PER_MS, mask);
	if (unlikely(load_relaxed(&lacks_pwait2)))
		return sleep_by_poll(epfd, events, nr_events, ns, mask, since);
	prepare(ns, since);
	r = cancellable(SYS_epoll_pwait2, epfd, (long)events, nr_events, (long)&counted_thread.left, (long)mask, KERNEL_SIGSET);
	if (likely(r != -ENOSYS) && likely(r != -EPERM))
		return conclude(r, since);
	store_relaxed(&lacks_pwait2, true);
	return sleep_by_poll(epfd, events, nr_events, ns, mask, since);
}
