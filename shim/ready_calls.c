/* SPDX-License-Identifier: MIT */
/*
 * The wrappers of poll, select and epoll. A negative timeout is for ever; a malformed one is the kernel's to refuse, and so is what
 * cannot be memory.
 */
#include <errno.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "shim/conn.h"
#include "shim/conn_iov.h"
#include "shim/epoll.h"
#include "shim/epoll_set.h"
#include "shim/fd_conn.h"
#include "shim/fdtab.h"
#include "shim/guard.h"
#include "shim/own_fd.h"
#include "shim/pinned.h"
#include "shim/ready_poll.h"
#include "shim/ready_select.h"
#include "shim/real.h"
#include "shim/wait.h"

/* As the kernel has it. */
#define EVENTS_MAX ((int)(INT32_MAX / sizeof(struct epoll_event)))

static int64_t ns_of_ms(int ms)
{
	return ms < 0 ? -1 : (int64_t)ms * 1000000;
}

/* What the kernel has to refuse goes to the kernel. */
static bool timeout_good(const struct timespec *t)
{
	return !t || (!user_range_bad(t, sizeof(*t)) && timespec_valid(t));
}

static int64_t ns_of_timeout(const struct timespec *t)
{
	return t ? ns_of_timespec(t) : -1;
}

/* What was known of the limit may not hold any more, where the program has set it by other means. */
static NOINLINE bool may_poll_after_all(nfds_t nr_fds)
{
	own_fd_limit_set();
	return nr_fds <= load_relaxed(&own_fd_polled);
}

static inline bool may_poll(nfds_t nr_fds)
{
	return likely(nr_fds <= load_relaxed(&own_fd_polled)) || may_poll_after_all(nr_fds);
}

/* glibc declares the array as written only; the compiler must not conclude that nothing in it may be read. */
static bool poll_is_ours(struct pollfd *fds, nfds_t nr_fds)
{
	guard_test_cancel();
	__asm__("" : "+r"(fds));
	return guard_ready() && may_poll(nr_fds) && !user_range_bad(fds, nr_fds * sizeof(*fds)) && ready_concerns_us(fds, nr_fds);
}

/*
 * Files, pipes and pinned connections only, told from all others by a few loads for each, or a dormant process. False where it takes more to tell, and
 * poll_is_ours() has the last word.
 */
static inline bool poll_is_kernels(struct pollfd *fds, nfds_t nr_fds)
{
	int64_t state = load_relaxed(&guard_state);

	if (unlikely(state != GUARD_READY))
		return !state;
	if (unlikely(nr_fds > load_relaxed(&own_fd_polled)) || unlikely(user_at_edge(fds, FDTAB_MAX * sizeof(*fds))))
		return false;
	__asm__("" : "+r"(fds));
	for (const struct pollfd *f = fds, *end = fds + nr_fds; f < end; f++) {
		uintptr_t word;

		if (unlikely((uint32_t)f->fd >= FDTAB_MAX))
			return false;
		word = fdtab_word((uint32_t)f->fd);
		if (unlikely(!(word & FD_PINNED)) && (unlikely(word) || unlikely(fdtab_other(f->fd) != FD_MARK_NONE)))
			return false;
	}
	return true;
}

int __poll_chk(struct pollfd *fds, nfds_t nr_fds, int timeout, size_t size);
int __ppoll_chk(struct pollfd *fds, nfds_t nr_fds, const struct timespec *timeout, const sigset_t *mask, size_t size);

static NOINLINE int poll_slow(struct pollfd *fds, nfds_t nr_fds, int timeout)
{
	if (!poll_is_ours(fds, nr_fds))
		return real_poll(fds, nr_fds, timeout);
	return (int)as_errno(ready_poll(fds, nr_fds, ns_of_ms(timeout), NULL, false));
}

EXPORT int poll(struct pollfd *fds, nfds_t nr_fds, int timeout)
{
	if (likely(poll_is_kernels(fds, nr_fds)))
		return real_poll(fds, nr_fds, timeout);
	return poll_slow(fds, nr_fds, timeout);
}

static NOINLINE int ppoll_slow(struct pollfd *fds, nfds_t nr_fds, const struct timespec *timeout, const sigset_t *mask)
{
	if (!poll_is_ours(fds, nr_fds) || !timeout_good(timeout))
		return real_ppoll(fds, nr_fds, timeout, mask);
	return (int)as_errno(ready_poll(fds, nr_fds, ns_of_timeout(timeout), mask, false));
}

EXPORT int ppoll(struct pollfd *fds, nfds_t nr_fds, const struct timespec *timeout, const sigset_t *mask)
{
	if (likely(poll_is_kernels(fds, nr_fds)))
		return real_ppoll(fds, nr_fds, timeout, mask);
	return ppoll_slow(fds, nr_fds, timeout, mask);
}

EXPORT int __poll_chk(struct pollfd *fds, nfds_t nr_fds, int timeout, size_t size)
{
	if (size / sizeof(*fds) < nr_fds || !poll_is_ours(fds, nr_fds))
		return real___poll_chk(fds, nr_fds, timeout, size);
	return (int)as_errno(ready_poll(fds, nr_fds, ns_of_ms(timeout), NULL, false));
}

EXPORT int __ppoll_chk(struct pollfd *fds, nfds_t nr_fds, const struct timespec *timeout, const sigset_t *mask, size_t size)
{
	if (size / sizeof(*fds) < nr_fds || !poll_is_ours(fds, nr_fds) || !timeout_good(timeout))
		return real___ppoll_chk(fds, nr_fds, timeout, mask, size);
	return (int)as_errno(ready_poll(fds, nr_fds, ns_of_timeout(timeout), mask, false));
}

/* The kernel writes back what is left of the timeout, also after a failure. */
EXPORT int select(int nr_fds, fd_set *rd, fd_set *wr, fd_set *ex, struct timeval *timeout)
{
	int64_t ns = -1, began, left;
	int n;

	guard_test_cancel();
	if (guard_ready())
		nr_fds = ready_select_within(nr_fds);
	if (!guard_ready() || (timeout && (user_range_bad(timeout, sizeof(*timeout)) || timeout->tv_sec < 0 || timeout->tv_usec < 0)) ||
	    !ready_select_concerns_us(nr_fds, rd, wr, ex))
		return real_select(nr_fds, rd, wr, ex, timeout);
	if (timeout) {
		struct timespec t = { timeout->tv_sec + timeout->tv_usec / 1000000, timeout->tv_usec % 1000000 * 1000 };

		ns = ns_of_timeout(&t);
	}
	began = now_ns();
	n = ready_select(nr_fds, rd, wr, ex, ns, NULL);
	if (timeout) {
		left = ns - (now_ns() - began);
		if (left < 0)
			left = 0;
		timeout->tv_sec = left / NS_PER_S;
		timeout->tv_usec = left % NS_PER_S / 1000;
	}
	return (int)as_errno(n);
}

EXPORT int pselect(int nr_fds, fd_set *rd, fd_set *wr, fd_set *ex, const struct timespec *timeout, const sigset_t *mask)
{
	guard_test_cancel();
	if (guard_ready())
		nr_fds = ready_select_within(nr_fds);
	if (!guard_ready() || !timeout_good(timeout) || !ready_select_concerns_us(nr_fds, rd, wr, ex))
		return real_pselect(nr_fds, rd, wr, ex, timeout, mask);
	return (int)as_errno(ready_select(nr_fds, rd, wr, ex, ns_of_timeout(timeout), mask));
}

/* ---- epoll --------------------------------------------------------------------------------------------------------- */

/* A set without a record is left to the kernel, and its connections to TCP. */
static int new_set(int change, int epfd)
{
	struct epoll_set *set;

	if (epfd >= 0) {
		fdtab_remove_epoll(epfd);
		set = epoll_set_create(epfd);
		if (set && !fdtab_install_epoll(epfd, set))
			epoll_set_drop(set, epfd);
	}
	fd_set_change_end(change, epfd);
	return epfd;
}

EXPORT int epoll_create(int size)
{
	int change;

	if (!guard_ready())
		return real_epoll_create(size);
	change = fd_set_change_begin();
	return new_set(change, real_epoll_create(size));
}

EXPORT int epoll_create1(int flags)
{
	int change;

	if (!guard_ready())
		return real_epoll_create1(flags);
	change = fd_set_change_begin();
	return new_set(change, real_epoll_create1(flags));
}

EXPORT int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	struct epoll_set *inside, *set;
	struct conn *c;

	if (!guard_ready())
		return real_epoll_ctl(epfd, op, fd, event);
	if (unlikely(fdtab_hidden(fd) || fdtab_hidden(epfd))) {
		errno = EBADF;
		return -1;
	}
	if (unlikely(op != EPOLL_CTL_DEL && user_range_bad(event, sizeof(*event))))
		return real_epoll_ctl(epfd, op, fd, event);
	while ((c = fdtab_get(fd)) != NULL) {
		int ret;

		/* Another thread may be closing it. */
		if (!conn_hold(c, fd))
			continue;
		ret = epoll_set_ctl(epfd, op, fd, c, event);
		conn_drop(c);
		return (int)as_errno(ret);
	}
	if (fdtab_tcp(fd))
		return (int)as_errno(epoll_set_ctl_early(epfd, op, fd, event));
	inside = fdtab_epoll(fd);
	set = fdtab_epoll(epfd);
	if (inside && set && op == EPOLL_CTL_ADD && inside != set) {
		store_relaxed(&set->nests, 1);
		epoll_set_nest(inside);
	}
	return real_epoll_ctl(epfd, op, fd, event);
}

static bool epoll_is_ours(int epfd, const struct epoll_event *events, int nr_events)
{
	guard_test_cancel();
	return guard_ready() && nr_events > 0 && nr_events <= EVENTS_MAX && !user_range_bad(events, (size_t)nr_events * sizeof(*events)) &&
	       fdtab_epoll(epfd);
}

static NOINLINE int epoll_wait_slow(int epfd, struct epoll_event *events, int nr_events, int timeout, uint64_t handled)
{
	if (!epoll_is_ours(epfd, events, nr_events))
		return real_epoll_wait(epfd, events, nr_events, timeout);
	return (int)as_errno(epoll_set_wait(epfd, events, nr_events, ns_of_ms(timeout), NULL, handled));
}

EXPORT int epoll_wait(int epfd, struct epoll_event *events, int nr_events, int timeout)
{
	int64_t state = load_relaxed(&guard_state);
	uint64_t handled = counted_now();
	struct epoll_set *s;
	int n;

	if (unlikely(state != GUARD_READY))
		return state ? epoll_wait_slow(epfd, events, nr_events, timeout, handled) : real_epoll_wait(epfd, events, nr_events, timeout);
	s = fdtab_epoll(epfd);
	if (unlikely(!s))
		return epoll_wait_slow(epfd, events, nr_events, timeout, handled);
	store_relaxed(&s->waits_alone, 1);
	fence_compiler();
	if (unlikely(!epoll_set_is_left_alone(s, timeout > 0))) {
		store_relaxed(&s->waits_alone, 0);
		return epoll_wait_slow(epfd, events, nr_events, timeout, handled);
	}
	n = real_epoll_wait(epfd, events, nr_events, timeout);
	store_relaxed(&s->waits_alone, 0);
	if (unlikely(n < 0))
		return n;
	n = epoll_set_told(epfd, s, events, n, nr_events);
	return likely(n >= 0) ? n : epoll_wait_slow(epfd, events, nr_events, timeout, handled);
}

EXPORT int epoll_pwait(int epfd, struct epoll_event *events, int nr_events, int timeout, const sigset_t *mask)
{
	if (!epoll_is_ours(epfd, events, nr_events))
		return real_epoll_pwait(epfd, events, nr_events, timeout, mask);
	return (int)as_errno(epoll_set_wait(epfd, events, nr_events, ns_of_ms(timeout), mask, counted_now()));
}

EXPORT int epoll_pwait2(int epfd, struct epoll_event *events, int nr_events, const struct timespec *timeout,
			const sigset_t *mask)
{
	if (!epoll_is_ours(epfd, events, nr_events) || !timeout_good(timeout))
		return real_epoll_pwait2(epfd, events, nr_events, timeout, mask);
	return (int)as_errno(epoll_set_wait(epfd, events, nr_events, ns_of_timeout(timeout), mask, counted_now()));
}
