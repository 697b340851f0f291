/* SPDX-License-Identifier: MIT */
/* A poll() that has found nothing: armed, asleep in one ppoll() on the program's fds and the bells, and awake again. */
#include <errno.h>
#include <sys/mman.h>
#include <time.h>

#include "shim/asleep.h"
#include "shim/conn_far.h"
#include "shim/conn_holders.h"
#include "shim/conn_probe.h"
#include "shim/epoll_set.h"
#include "shim/family.h"
#include "shim/fdtab.h"
#include "shim/idle.h"
#include "shim/nego.h"
#include "shim/own_fd.h"
#include "shim/ready_call.h"
#include "shim/signals.h"
#include "shim/unseen.h"
#include "ringbuf/sys.h"

/* A sleep of which only the kernel's part would end it. */
#define SLICE_NS 1000000

/* What to ask about a connection when about to sleep. */
static short ask_for(const struct item *it, short want)
{
	short ask = conn_kernel_events(it->conn, want) | POLLRDHUP;

	return ask & ~it->asserted;
}

void poll_disarm(struct poll_call *p)
{
	for (uint64_t i = 0; i < p->nr_items; i++) {
		struct item *it = &p->items[i];

		if (it->armed && item_hold(p, it)) {
			conn_thread_wakes(it->conn, it->armed);
			conn_disarm(it->conn, it->armed);
			conn_drop(it->conn);
		}
		it->armed = 0;
		if (it->counted && conn_hold(it->conn, p->fds[it->at].fd)) {
			if (it->born == it->conn->born)
				conn_wait_leaves(it->conn);
			conn_drop(it->conn);
		}
		it->counted = false;
	}
}

/* False: there is a link. */
static bool sleeps_on_kernel(struct poll_call *p, struct item *it)
{
	if (!conn_wait_counts(it->conn) || !item_hold(p, it))
		return true;
	it->counted = conn_wait_enters(it->conn);
	it->born = it->conn->born;
	conn_drop(it->conn);
	return it->counted;
}

/* When it is disarmed, so that nobody rings for this thread. */
static void hear_far(struct poll_call *p, struct item *it)
{
	bool rung = it->far_at && (p->gathered || p->kernel[p->nr_fds + it->far_at - 1].revents);

	it->far_at = 0;
	if (unlikely(rung) && item_hold(p, it)) {
		conn_pump(it->conn, VERBS_RUNG);
		conn_drop(it->conn);
	}
}

static void add_extra(struct poll_call *p, int fd)
{
	if (fd >= 0)
		p->kernel[p->nr_fds + p->nr_extra++] = (struct pollfd){ .fd = fd, .events = POLLIN };
}

/*
 * A level that the kernel keeps asserted and nobody wants (the peer's half close, while only room is waited for) would end every sleep at
 * once. What was there before frames were taken says nothing, so it is asked again.
 */
static void ask_asserted(struct poll_call *p, struct item *it)
{
	if (it->asserted)
		it->asserted &= sys_ready_now(p->fds[it->at].fd, it->asserted);
}

bool poll_arm(struct poll_call *p)
{
	bool something = false;

	p->nr_extra = 0;
	p->relatives = false;
	for (uint64_t i = 0; i < p->nr_items && !something; i++) {
		struct item *it = &p->items[i];
		const struct pollfd *f = &p->fds[it->at];
		struct pollfd *k = &p->kernel[it->at];
		short want = POLLIN | (f->events & (POLLOUT | POLLWRNORM) ? POLLOUT : 0);

		it->far_at = 0;
		/* It is no sleeper to the peer any more, whose next bytes may go into a ring. */
		if (unlikely(it->closing)) {
			k->fd = -1;
			continue;
		}
		if (unlikely(!item_is_named(p, it))) {
			something = true;
			break;
		}
		it->sleeps_on = poll_roads(it->conn);
		/* Its link was given up since the kernel was asked, and of what it alone knows now it was not. */
		if (unlikely(it->generation != it->conn->generation)) {
			something = true;
			break;
		}
		if (!conn_is_linked(it->conn)) {
			add_extra(p, nego_wait_fd(it->conn));
			something = !sleeps_on_kernel(p, it);
			continue;
		}
		if (!item_hold(p, it)) {
			something = true;
			break;
		}
		ask_asserted(p, it);
		k->events = ask_for(it, f->events);
		if (it->asserted & (POLLHUP | POLLERR))
			k->fd = -1;
		/* Room is a level here: the look that found none may be older than the room. */
		something = conn_arm_edge(it->conn, POLLIN, it->rx_seen, it->tx_seen);
		if (!something && want & POLLOUT && conn_arm(it->conn, POLLOUT)) {
			conn_disarm(it->conn, POLLIN);
			something = true;
		}
		if (!something) {
			conn_thread_sleeps(it->conn, want);
			something = conn_rx_edge(it->conn) != it->rx_seen || conn_tx_edge(it->conn) != it->tx_seen;
			if (something) {
				conn_thread_wakes(it->conn, want);
				conn_disarm(it->conn, want);
			}
		}
		if (!something) {
			it->armed = want;
			add_extra(p, conn_bell_fd(it->conn, POLLIN));
			if (want & POLLOUT)
				add_extra(p, conn_bell_fd(it->conn, POLLOUT));
			add_extra(p, conn_far_fd(it->conn));
			it->far_at = conn_is_far(it->conn) ? p->nr_extra : 0;
			if (!p->relatives && conn_relatives_fd(it->conn) >= 0) {
				add_extra(p, conn_relatives_fd(it->conn));
				p->relatives = true;
			}
		}
		conn_drop(it->conn);
	}
	if (something)
		poll_disarm(p);
	for (uint64_t i = 0; i < p->nr_items && !something; i++)
		p->items[i].asked_on = p->items[i].sleeps_on;
	return something;
}

/*
 * The kernel polls no more fds at once than the program may have open, and the bells come on top of those: then one epoll set
 * stands for them all.
 */
static bool gather_extra(struct poll_call *p)
{
	int change = unseen_change_begin(), fd = (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);

	p->bell_set = fd < 0 ? -1 : own_fd_adopt(fd, NULL);
	unseen_change_end(change, fd);
	if (p->bell_set < 0)
		return false;
	for (uint64_t i = 0; i < p->nr_extra; i++) {
		struct epoll_event ev = { .events = EPOLLIN };
		long r = sys_call4(SYS_epoll_ctl, p->bell_set, EPOLL_CTL_ADD, p->kernel[p->nr_fds + i].fd, &ev);

		if (r < 0 && r != -EEXIST)
			return false;
	}
	p->kernel[p->nr_fds] = (struct pollfd){ .fd = p->bell_set, .events = POLLIN };
	p->nr_extra = 1;
	p->gathered = true;
	return true;
}

static void ungather(struct poll_call *p)
{
	own_fd_close(p->bell_set);
	p->bell_set = -1;
}

void poll_abandoned(void *arg)
{
	struct poll_call *p = arg;

	poll_disarm(p);
	ungather(p);
	if (p->map)
		sys_munmap(p->map, p->map_bytes);
}

static int sleep_once(struct poll_call *p, int64_t left_ns, const sigset_t *mask)
{
	signals_hold_masked(p->held, mask);
	return asleep_in_poll(p->kernel, p->nr_fds + p->nr_extra, left_ns, mask, p->handled);
}

int poll_sleep(struct poll_call *p, int64_t left_ns, const sigset_t *mask)
{
	int64_t slice_ns = left_ns < 0 || left_ns > SLICE_NS ? SLICE_NS : left_ns;
	int n = sleep_once(p, left_ns, mask);

	p->gathered = false;
	if (n != -EINVAL || !p->nr_extra)
		return n;
	n = gather_extra(p) ? sleep_once(p, left_ns, mask) : -EINVAL;
	if (n == -EINVAL) {
		/* Not even one more. */
		p->nr_extra = 0;
		n = sleep_once(p, slice_ns, mask);
		if (n == 0 && slice_ns != left_ns)
			n = -EAGAIN;
	}
	ungather(p);
	return n;
}

int64_t poll_until_look(struct poll_call *p, int64_t left_ns)
{
	left_ns = idle_until(left_ns);
	for (uint64_t i = 0; p->has_sets && i < p->nr_fds; i++) {
		struct epoll_set *set = fdtab_epoll(p->fds[i].fd);

		if (set)
			left_ns = epoll_set_until_probe(set, left_ns);
	}
	for (uint64_t i = 0; i < p->nr_items; i++) {
		struct item *it = &p->items[i];
		const struct pollfd *f = &p->fds[it->at];
		bool room = f->events & (POLLOUT | POLLWRNORM);
		int64_t wait_ns;

		/* The thread whose turn it is says nothing when it is done. */
		if (unlikely(it->closing) || unlikely(conn_is_unlooked(it->conn)))
			left_ns = left_ns < 0 || left_ns > SLICE_NS ? SLICE_NS : left_ns;
		if ((!room && !conn_has_date(it->conn)) || !item_hold(p, it))
			continue;
		wait_ns = conn_look_again(it->conn, room);
		conn_drop(it->conn);
		if (wait_ns != PROBE_NOT_NEEDED && (left_ns < 0 || wait_ns < left_ns))
			left_ns = wait_ns;
	}
	return left_ns;
}

static bool relatives_told(void)
{
	struct pollfd f = { .fd = family_watch(), .events = POLLIN };
	struct timespec zero = { 0, 0 };

	return sys_call5(SYS_ppoll, &f, 1, &zero, 0, 0) > 0;
}

void poll_after_sleep(struct poll_call *p)
{
	poll_disarm(p);
	if (unlikely(p->relatives) && relatives_told())
		conn_relative_ended();
	for (uint64_t i = 0; i < p->nr_items; i++) {
		struct item *it = &p->items[i];
		struct pollfd *k = &p->kernel[it->at];

		hear_far(p, it);
		k->fd = p->fds[it->at].fd;
		k->revents |= it->asserted;
		if (!conn_is_linked(it->conn) && nego_wait_fd(it->conn) >= 0 && item_hold(p, it)) {
			nego_poke(it->conn, k->fd);
			conn_drop(it->conn);
		}
	}
}
