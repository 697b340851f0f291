/* SPDX-License-Identifier: MIT */
/*
 * poll() over connections of which some are on rings: derive what is ready, else spin by policy, arm, look again, and sleep
 * in one ppoll() on the program's fds and the bells. The kernel is asked about the program's own fds only for what it
 * knows: a lane on a ring is not its to report, and a frame is not the program's to see.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "shim/conn.h"
#include "shim/conn_holders.h"
#include "shim/conn_probe.h"
#include "shim/epoll_set.h"
#include "shim/family.h"
#include "shim/fdtab.h"
#include "shim/nego.h"
#include "shim/own_fd.h"
#include "shim/ready_poll.h"
#include "shim/real.h"
#include "shim/signals.h"
#include "shim/unwound.h"
#include "ringbuf/sys.h"
#include "shim/wait.h"

/* Calls with fewer fds need no memory but the stack. */
#define FEW_FDS 32
/* While rings give an answer the kernel is asked no more often than this for what else there may be. */
#define LOOK_EVERY_NS 30000
/* A sleep of which only the kernel's part would end it. */
#define SLICE_NS 1000000
#define ASK_ALWAYS (POLLERR | POLLHUP)

/* One connection in the set. A connection may stand there several times. */
struct item {
	struct conn *conn;
	uint32_t generation;	/* of the record: the number may be closed and name a new connection in the same record */
	uint32_t at;		/* its place in fds */
	short asserted;		/* what the kernel says all the time and nobody wants: not worth waking for */
	short armed;
	uint64_t rx_seen, tx_seen;
};

struct poll_call {
	struct pollfd *fds;	/* the program's */
	struct pollfd *kernel;	/* the same with what the kernel is asked, then bells and negotiations */
	struct item *items;
	uint64_t nr_fds, nr_items, nr_extra;
	int bell_set;		/* an epoll set of all that is extra, while we sleep on too many fds; -1: none */
	bool relatives;		/* among what is extra is the watch on those who share a connection with us */
	bool has_sets;		/* of ours, to be looked through before the kernel is asked about them */
	bool select;		/* asks for no more than its sets mean, and refuses numbers that are closed when it begins */
	void *map;
	size_t map_bytes;
};

static __thread int64_t looked_ns __attribute__((tls_model("initial-exec")));

static bool conn_concerns_us(const struct conn *c)
{
	return c && (conn_is_linked(c) || nego_wait_fd(c) >= 0);
}

static bool is_ours(int fd)
{
	struct conn *c = fdtab_get(fd);
	struct epoll_set *set;

	if (c)
		return conn_concerns_us(c);
	if (fdtab_other(fd) == FD_MARK_NONE)
		return false;
	set = fdtab_epoll(fd);
	return set ? epoll_set_concerns_us(set) : fdtab_hidden(fd);
}

bool ready_concerns_us(const struct pollfd *fds, uint64_t nr_fds)
{
	for (uint64_t i = 0; i < nr_fds; i++)
		if (fds[i].fd >= 0 && is_ours(fds[i].fd))
			return true;
	return false;
}

/* ---- the kernel's part --------------------------------------------------------------------------------------------- */

/* What to ask about a connection when about to sleep. */
static short ask_for(const struct item *it, short want)
{
	short ask = conn_kernel_events(it->conn, want) | POLLRDHUP;

	return ask & ~it->asserted;
}

static void fill(struct poll_call *p)
{
	memcpy(p->kernel, p->fds, p->nr_fds * sizeof(*p->fds));
	p->nr_items = 0;
	p->has_sets = false;
	for (uint64_t i = 0; i < p->nr_fds; i++) {
		struct pollfd *k = &p->kernel[i];
		struct epoll_set *set;
		struct conn *c;

		k->revents = 0;
		if (k->fd < 0)
			continue;
		if (fdtab_hidden(k->fd)) {
			k->fd = INT32_MAX; /* to the program a closed number */
			continue;
		}
		c = fdtab_get(k->fd);
		set = c ? NULL : fdtab_epoll(k->fd);
		if (set) {
			p->has_sets = true;
			epoll_set_nest(set);
			epoll_set_refresh(set);
		}
		if (conn_concerns_us(c))
			p->items[p->nr_items++] =
				(struct item){ .conn = c, .generation = c->generation, .at = (uint32_t)i };
	}
}

static bool is_still(const struct item *it, const struct conn *c)
{
	return it->conn == c && it->generation == c->generation;
}

static bool item_hold(const struct poll_call *p, const struct item *it)
{
	if (!conn_hold(it->conn, p->fds[it->at].fd))
		return false;
	if (likely(it->generation == it->conn->generation))
		return true;
	conn_drop(it->conn);
	return false;
}

/* Numbers are looked up anew after each sleep, as the kernel does: other threads may have closed some, or used them anew. */
static bool numbers_changed(const struct poll_call *p)
{
	const struct item *it = p->items, *end = it + p->nr_items;

	for (uint64_t i = 0; i < p->nr_fds; i++) {
		struct conn *c = p->fds[i].fd < 0 ? NULL : fdtab_get(p->fds[i].fd);

		if (it == end || it->at != i) {
			if (conn_concerns_us(c))
				return true;
		} else if (!is_still(it++, c)) {
			return true;
		}
	}
	return false;
}

/*
 * What the program is to be told, given what the kernel said in p->kernel (revents). Returns how many have something.
 */
static int derive(struct poll_call *p)
{
	int nr_ready = 0;

	for (uint64_t i = 0; i < p->nr_fds; i++)
		p->fds[i].revents = p->kernel[i].revents;
	for (uint64_t i = 0; i < p->nr_items; i++) {
		struct item *it = &p->items[i];
		struct pollfd *f = &p->fds[it->at];
		short kernel = f->revents, mask;

		if (kernel & POLLNVAL || !conn_is_linked(it->conn) || !item_hold(p, it))
			continue;
		it->rx_seen = conn_rx_edge(it->conn);
		it->tx_seen = conn_tx_edge(it->conn);
		mask = conn_ready(it->conn, f->fd, f->events, kernel);
		f->revents = mask & (f->events | ASK_ALWAYS);
		it->asserted = kernel & ~f->revents;
		if (f->events & (POLLOUT | POLLWRNORM))
			conn_probe_if_due(it->conn, f->fd);
		conn_drop(it->conn);
	}
	for (uint64_t i = 0; i < p->nr_fds; i++) {
		p->fds[i].revents &= p->fds[i].events | (p->select ? POLLNVAL : ASK_ALWAYS | POLLNVAL);
		nr_ready += p->fds[i].revents != 0;
	}
	return nr_ready;
}

static int ask_kernel(struct poll_call *p)
{
	struct timespec zero = { 0, 0 };
	long n;

	for (uint64_t i = 0; i < p->nr_items; i++) {
		struct item *it = &p->items[i];

		if (conn_is_linked(it->conn))
			p->kernel[it->at].events = conn_kernel_events(it->conn, p->fds[it->at].events) | POLLRDHUP;
	}
	n = sys_call5(SYS_ppoll, p->kernel, p->nr_fds, &zero, 0, 0);
	looked_ns = now_ns();
	return n < 0 ? (int)n : 0;
}

static bool has_closed(const struct poll_call *p)
{
	for (uint64_t i = 0; i < p->nr_fds; i++)
		if (p->kernel[i].revents & POLLNVAL)
			return true;
	return false;
}

/* ---- sleeping ------------------------------------------------------------------------------------------------------ */

static bool has_news(void *arg)
{
	struct poll_call *p = arg;
	bool news = false;

	for (uint64_t i = 0; i < p->nr_items && !news; i++) {
		struct item *it = &p->items[i];

		if (!conn_is_linked(it->conn) || !item_hold(p, it))
			continue;
		news = conn_rx_edge(it->conn) != it->rx_seen || conn_tx_edge(it->conn) != it->tx_seen ||
		       conn_attention(it->conn);
		conn_drop(it->conn);
	}
	return news;
}

static void disarm(struct poll_call *p)
{
	for (uint64_t i = 0; i < p->nr_items; i++) {
		struct item *it = &p->items[i];

		if (it->armed && item_hold(p, it)) {
			conn_thread_wakes(it->conn, it->armed);
			conn_disarm(it->conn, it->armed);
			conn_drop(it->conn);
		}
		it->armed = 0;
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
	struct pollfd f = { .fd = p->fds[it->at].fd, .events = it->asserted };
	struct timespec zero = { 0, 0 };

	if (!it->asserted)
		return;
	if (sys_call5(SYS_ppoll, &f, 1, &zero, 0, 0) < 0)
		f.revents = 0;
	it->asserted &= f.revents;
}

/* True: something came meanwhile, nothing is armed. */
static bool arm(struct poll_call *p)
{
	bool something = false;

	p->nr_extra = 0;
	p->relatives = false;
	for (uint64_t i = 0; i < p->nr_items && !something; i++) {
		struct item *it = &p->items[i];
		const struct pollfd *f = &p->fds[it->at];
		struct pollfd *k = &p->kernel[it->at];
		short want = POLLIN | (f->events & (POLLOUT | POLLWRNORM) ? POLLOUT : 0);

		if (!conn_is_linked(it->conn)) {
			add_extra(p, nego_wait_fd(it->conn));
			continue;
		}
		if (!item_hold(p, it))
			continue;
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
			if (!p->relatives && conn_relatives_fd(it->conn) >= 0) {
				add_extra(p, conn_relatives_fd(it->conn));
				p->relatives = true;
			}
		}
		conn_drop(it->conn);
	}
	if (something)
		disarm(p);
	return something;
}

/*
 * The kernel polls no more fds at once than the program may have open, and the bells come on top of those: then one epoll set
 * stands for them all.
 */
static bool gather_extra(struct poll_call *p)
{
	int fd = (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);

	p->bell_set = fd < 0 ? -1 : own_fd_adopt(fd, NULL);
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
	return true;
}

static void ungather(struct poll_call *p)
{
	own_fd_close(p->bell_set);
	p->bell_set = -1;
}

static void poll_abandoned(void *arg)
{
	struct poll_call *p = arg;

	disarm(p);
	ungather(p);
	if (p->map)
		sys_munmap(p->map, p->map_bytes);
}

static int sleep_once(struct poll_call *p, int64_t left_ns, const sigset_t *mask)
{
	struct timespec left = { left_ns / 1000000000, left_ns % 1000000000 };
	int saved = errno, n;

	n = real_ppoll(p->kernel, p->nr_fds + p->nr_extra, left_ns < 0 ? NULL : &left, mask);
	if (n < 0)
		n = -errno;
	errno = saved;
	return n;
}

/* How many are ready, 0 when the time is over, -errno; -EAGAIN: to be looked at again. */
static int sleep_in_kernel(struct poll_call *p, int64_t left_ns, const sigset_t *mask)
{
	int64_t slice_ns = left_ns < 0 || left_ns > SLICE_NS ? SLICE_NS : left_ns;
	int n = sleep_once(p, left_ns, mask);

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

/* No sleep for room goes past a probe that is due meanwhile. */
static int64_t until_probe(struct poll_call *p, int64_t left_ns)
{
	for (uint64_t i = 0; p->has_sets && i < p->nr_fds; i++) {
		struct epoll_set *set = fdtab_epoll(p->fds[i].fd);

		if (set)
			left_ns = epoll_set_until_probe(set, left_ns);
	}
	for (uint64_t i = 0; i < p->nr_items; i++) {
		struct item *it = &p->items[i];
		const struct pollfd *f = &p->fds[it->at];
		int64_t wait_ns;

		if (!(f->events & (POLLOUT | POLLWRNORM)) || !item_hold(p, it))
			continue;
		wait_ns = conn_probe_wait(it->conn);
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

/* Numbers that were taken out of the sleep come back, and the rendezvous makes its step. */
static void after_sleep(struct poll_call *p)
{
	disarm(p);
	if (unlikely(p->relatives) && relatives_told())
		conn_relative_ended();
	for (uint64_t i = 0; i < p->nr_items; i++) {
		struct item *it = &p->items[i];
		struct pollfd *k = &p->kernel[it->at];

		k->fd = p->fds[it->at].fd;
		k->revents |= it->asserted;
		if (!conn_is_linked(it->conn) && nego_wait_fd(it->conn) >= 0 && item_hold(p, it)) {
			nego_poke(it->conn, k->fd);
			conn_drop(it->conn);
		}
	}
}

/* ---- the loop ------------------------------------------------------------------------------------------------------ */

/*
 * A poll that found nothing and may not sleep still ends with EINTR if the mask lets a pending signal in. One that found
 * something does not, so the mask is used only now.
 */
static int let_signals_in(struct poll_call *p, const sigset_t *mask)
{
	struct timespec zero = { 0, 0 };
	long n = sys_call5(SYS_ppoll, p->kernel, p->nr_fds, &zero, mask, 8);

	return n > 0 ? derive(p) : (int)n;
}

/* Nothing has happened of which only the kernel knows how it shows. */
static bool rings_can_tell(struct poll_call *p)
{
	for (uint64_t i = 0; i < p->nr_items; i++) {
		struct item *it = &p->items[i];
		const struct pollfd *f = &p->fds[it->at];
		bool can;

		if (!item_hold(p, it))
			return false;
		can = conn_rx_on_ring(it->conn) && !conn_rx_ended(it->conn) && !conn_attention(it->conn) &&
		      (conn_tx_on_ring(it->conn) || !(f->events & (POLLOUT | POLLWRNORM)));
		conn_drop(it->conn);
		if (!can)
			return false;
	}
	return true;
}

static int poll_loop(struct poll_call *p, int64_t timeout_ns, const sigset_t *mask)
{
	int64_t deadline = timeout_ns > 0 ? now_ns() + timeout_ns : 0, left = timeout_ns, slice;
	bool spun = false;
	int n;

	fill(p);
	/* Rings that have something answer by themselves while the kernel was asked a moment ago. */
	if (p->nr_items && rings_can_tell(p) && now_ns() - looked_ns < LOOK_EVERY_NS) {
		n = derive(p);
		if (n)
			return n;
	}
	n = ask_kernel(p);
	if (n < 0)
		return n;
	if (p->select && has_closed(p))
		return -EBADF;
	for (;;) {
		if (unlikely(numbers_changed(p))) {
			fill(p);
			n = ask_kernel(p);
			if (n < 0)
				return n;
		}
		n = derive(p);
		if (n)
			return n;
		if (left == 0)
			return mask ? let_signals_in(p, mask) : 0;
		if (!spun && p->nr_items) {
			spun = true;
			if (spin_until(has_news, p))
				goto again;
		}
		if (arm(p))
			goto again;
		if (deadline) {
			left = deadline - now_ns();
			if (left < 0)
				left = 0;
		}
		slice = until_probe(p, left);
		n = sleep_in_kernel(p, slice, mask);
		after_sleep(p);
		if (n == 0 && slice != left && p->has_sets)
			fill(p);
		if (n == -EAGAIN || (n == 0 && slice != left))
			goto again;
		if (n < 0)
			return n;
		if (n == 0)
			left = 0;
		continue;
again:
		for (uint64_t i = 0; i < p->nr_fds; i++)
			p->kernel[i].revents = 0;
		if (deadline) {
			left = deadline - now_ns();
			if (left < 0)
				left = 0;
		}
		if (left == 0 || now_ns() - looked_ns >= LOOK_EVERY_NS) {
			n = ask_kernel(p);
			if (n < 0)
				return n;
		}
	}
}

int ready_poll(struct pollfd *fds, uint64_t nr_fds, int64_t timeout_ns, const sigset_t *mask, bool select)
{
	struct pollfd few_kernel[3 * FEW_FDS + 1];
	struct item few_items[FEW_FDS];
	struct poll_call p = { .fds = fds, .kernel = few_kernel, .items = few_items, .nr_fds = nr_fds,
			       .bell_set = -1, .select = select };
	struct signals_held held;
	int n;

	signals_hold(&held);
	if (nr_fds > FEW_FDS) {
		long at;

		p.map_bytes = nr_fds * (3 * sizeof(struct pollfd) + sizeof(struct item)) + sizeof(struct pollfd);
		at = sys_mmap(NULL, p.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (sys_failed(at)) {
			signals_release(&held);
			return -ENOMEM;
		}
		p.map = (void *)at;
		p.items = p.map;
		p.kernel = (struct pollfd *)(p.items + nr_fds);
	}
	UNWOUND_BEGIN(poll_abandoned, &p);
	n = poll_loop(&p, timeout_ns, signals_asleep(&held, mask));
	UNWOUND_END();
	if (p.map)
		sys_munmap(p.map, p.map_bytes);
	signals_release(&held);
	return n;
}
