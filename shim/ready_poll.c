/* SPDX-License-Identifier: MIT */
/*
 * poll() over connections of which some are on rings: derive what is ready, else spin by policy, arm, look again, and sleep
 * in one ppoll() on the program's fds and the bells. The kernel is asked about the program's own fds only for what it
 * knows: a lane on a ring is not its to report, and a frame is not the program's to see.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include "shim/conn_far.h"
#include "shim/conn_probe.h"
#include "shim/counted.h"
#include "shim/epoll_set.h"
#include "shim/fdtab.h"
#include "shim/idle.h"
#include "shim/nego.h"
#include "shim/ready_call.h"
#include "shim/renew.h"
#include "shim/retreat.h"
#include "shim/ready_poll.h"
#include "shim/signals.h"
#include "shim/unwound.h"
#include "ringbuf/sys.h"
#include "shim/wait.h"

/* Calls with fewer fds need no memory but the stack; with fewer still little of that, which a signal handler may have (README.md, "Where it differs"). */
#define FEW_FDS 4
#define SOME_FDS 32
/* While rings give an answer the kernel is asked no more often than this for what else there may be. */
#define LOOK_EVERY_NS 30000
#define ASK_ALWAYS (POLLERR | POLLHUP)

/* When the kernel was last asked, and of what. */
static __thread struct {
	int64_t ns;
	uint64_t name;
} looked __attribute__((tls_model("initial-exec")));

/* Of numbers and events. What has the same name by chance is asked of a moment later. */
static uint64_t name_of(const struct pollfd *fds, uint64_t nr_fds)
{
	uint64_t name = nr_fds;

	for (uint64_t i = 0; i < nr_fds; i++) {
		name ^= (uint32_t)fds[i].fd | (uint64_t)(uint16_t)fds[i].events << 32;
		name *= UINT64_C(0x9e3779b97f4a7c15);
		name ^= name >> 29;
	}
	return name;
}

static bool looked_just_now(const struct poll_call *p)
{
	return looked.name == p->name && now_ns() - looked.ns < LOOK_EVERY_NS;
}

static bool conn_concerns_us(const struct conn *c)
{
	return c && (conn_is_linked(c) || nego_wait_fd(c) >= 0 || conn_wait_counts(c));
}

static bool is_ours(int fd)
{
	struct conn *c = fdtab_get(fd);
	struct epoll_set *set;

	if (c) {
		conn_wait_seen(c);
		return conn_concerns_us(c);
	}
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
		if (c)
			conn_wait_seen(c);
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

/* Who closes it has taken it out of the table, and is not done with the connection: the kernel has it yet. */
static bool is_closing(const struct item *it, int fd)
{
	uint64_t cookie;
	unsigned len = sizeof(cookie);

	return it->generation == it->conn->generation && !fdtab_get(fd) && fdtab_other(fd) == FD_MARK_NONE &&
	       sys_getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0 && cookie == it->conn->cookie;
}

/* Numbers are looked up anew after each sleep, as the kernel does: other threads may have closed some, or used them anew. */
static bool numbers_changed(struct poll_call *p)
{
	struct item *it = p->items, *end = it + p->nr_items;

	for (uint64_t i = 0; i < p->nr_fds; i++) {
		int fd = p->fds[i].fd;
		struct conn *c = fd < 0 ? NULL : fdtab_get(fd);

		if (it == end || it->at != i) {
			if (conn_concerns_us(c))
				return true;
			continue;
		}
		it->closing = unlikely(!is_still(it, c)) && is_closing(it, fd);
		if (!is_still(it, c) && !it->closing)
			return true;
		it++;
	}
	return false;
}

/*
 * A lane may have come back to TCP since the kernel was asked, by another thread, or by the look at another place where the connection stands, and the link be gone: then the
 * kernel was not asked of all that it alone knows now, and may have named a frame that was taken since.
 */
static short ask_on_new_roads(struct item *it, int fd, short want)
{
	it->asked_on = poll_roads(it->conn);
	return sys_ready_now(fd, conn_kernel_events(it->conn, want) | POLLRDHUP);
}

/*
 * Who has slept is woken by the kernel when there is something, and asks of all numbers then. Here each is looked at in its turn, and that may be for nothing: what comes between two
 * numbers of one connection is told of both.
 */
static void tell_under_all_numbers(struct poll_call *p)
{
	for (uint64_t i = 0; i < p->nr_fds; i++) {
		const struct pollfd *f = &p->fds[i];
		struct conn *c = f->revents && !(f->revents & POLLNVAL) ? fdtab_get(f->fd) : NULL;

		for (uint64_t j = 0; c && j < p->nr_fds; j++)
			if (fdtab_get(p->fds[j].fd) == c)
				p->fds[j].revents |= f->revents;
	}
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

		if (kernel & POLLNVAL)
			continue;
		/* What the kernel has may be frames, and what it has not in a ring: the number is looked up again before anybody sleeps. */
		if (unlikely(!item_is_named(p, it))) {
			f->revents = 0;
			continue;
		}
		if (unlikely(poll_roads(it->conn) != it->asked_on))
			kernel = f->revents = ask_on_new_roads(it, f->fd, f->events);
		if (!conn_is_linked(it->conn))
			continue;
		if (!item_hold(p, it)) {
			f->revents = 0;
			continue;
		}
		it->rx_seen = conn_rx_edge(it->conn);
		it->tx_seen = conn_tx_edge(it->conn);
		mask = conn_ready(it->conn, f->fd, f->events, kernel);
		f->revents = mask & (f->events | ASK_ALWAYS);
		it->asserted = kernel & ~f->revents;
		/* Room in the socket is wanted, by us: what comes after the look that has used it up must wake. */
		if (retreat_owes(it->conn))
			it->asserted &= ~(POLLOUT | POLLWRNORM);
		if (f->events & (POLLOUT | POLLWRNORM))
			conn_probe_if_due(it->conn, f->fd);
		if (renew_is_due(it->conn))
			nego_poke(it->conn, f->fd);
		conn_drop(it->conn);
	}
	if (p->again)
		tell_under_all_numbers(p);
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

		it->asked_on = poll_roads(it->conn);
		if (conn_is_linked(it->conn))
			p->kernel[it->at].events = conn_kernel_events(it->conn, p->fds[it->at].events) | POLLRDHUP;
	}
	n = sys_call5(SYS_ppoll, p->kernel, p->nr_fds, &zero, 0, 0);
	looked.ns = now_ns();
	looked.name = p->name;
	return n < 0 ? (int)n : 0;
}

static bool has_closed(const struct poll_call *p)
{
	for (uint64_t i = 0; i < p->nr_fds; i++)
		if (p->kernel[i].revents & POLLNVAL)
			return true;
	return false;
}

static bool has_news(void *arg)
{
	struct poll_call *p = arg;
	bool news = false;

	for (uint64_t i = 0; i < p->nr_items && !news; i++) {
		struct item *it = &p->items[i];

		if (!conn_is_linked(it->conn) || !item_hold(p, it))
			continue;
		conn_pump_look(it->conn);
		news = conn_rx_edge(it->conn) != it->rx_seen || conn_tx_edge(it->conn) != it->tx_seen ||
		       conn_attention(it->conn);
		conn_drop(it->conn);
	}
	return news;
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
		it->asked_on = poll_roads(it->conn);
		can = conn_rx_on_ring(it->conn) && !conn_has_more_to_tell(it->conn) &&
		      (conn_tx_on_ring(it->conn) || !(f->events & (POLLOUT | POLLWRNORM)));
		conn_drop(it->conn);
		if (!can)
			return false;
	}
	return true;
}

/* No lane is on a ring, nor about to be: the kernel alone has something to tell, and it does so in the sleep. */
static bool is_kernels(const struct poll_call *p)
{
	for (uint64_t i = 0; i < p->nr_items; i++)
		if (conn_is_linked(p->items[i].conn) || nego_wait_fd(p->items[i].conn) >= 0)
			return false;
	return !p->select && !p->has_sets;
}

static int poll_loop(struct poll_call *p, int64_t timeout_ns, const sigset_t *mask)
{
	int64_t deadline = timeout_ns > 0 ? now_ns() + timeout_ns : 0, left = timeout_ns, slice, slept_from = 0;
	bool spun = false;
	int n;

	fill(p);
	p->name = name_of(p->fds, p->nr_fds);
	/* Rings that have something answer by themselves while the kernel was asked a moment ago. */
	if (p->nr_items && looked_just_now(p) && rings_can_tell(p)) {
		n = derive(p);
		if (n)
			return n;
	}
	if (left && is_kernels(p))
		spun = true;
	n = spun ? 0 : ask_kernel(p);
	if (n < 0)
		return n;
	if (p->select && has_closed(p))
		return -EBADF;
	for (;;) {
		/* Before the numbers are looked at: it may take links back. */
		idle_look(looked.ns);
		if (unlikely(numbers_changed(p))) {
			fill(p);
			n = ask_kernel(p);
			if (n < 0)
				return n;
		}
		n = derive(p);
		if (n)
			return n;
		p->again = true;
		if (left == 0)
			return mask ? let_signals_in(p, mask) : 0;
		if (!spun && p->nr_items) {
			spun = true;
			if (spin_until(has_news, p))
				goto again;
			slept_from = spin_sleep_begins();
		}
		if (poll_arm(p))
			goto again;
		if (deadline) {
			left = deadline - now_ns();
			if (left < 0)
				left = 0;
		}
		slice = poll_until_look(p, left);
		n = poll_sleep(p, slice, mask);
		if (n > 0)
			spin_slept_from(slept_from);
		slept_from = 0;
		poll_after_sleep(p);
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
		if (left == 0 || !looked_just_now(p)) {
			n = ask_kernel(p);
			if (n < 0)
				return n;
		}
	}
}

static int poll_in(struct poll_call *p, struct pollfd *kernel, struct item *items, int64_t timeout_ns, const sigset_t *mask)
{
	int n;

	p->kernel = kernel;
	p->items = items;
	UNWOUND_BEGIN(poll_abandoned, p);
	n = poll_loop(p, timeout_ns, signals_asleep(p->held, mask));
	UNWOUND_END();
	return n;
}

static NOINLINE int poll_few(struct poll_call *p, int64_t timeout_ns, const sigset_t *mask)
{
	struct pollfd kernel[4 * FEW_FDS + 1];
	struct item items[FEW_FDS];

	return poll_in(p, kernel, items, timeout_ns, mask);
}

static NOINLINE int poll_some(struct poll_call *p, int64_t timeout_ns, const sigset_t *mask)
{
	struct pollfd kernel[4 * SOME_FDS + 1];
	struct item items[SOME_FDS];

	return poll_in(p, kernel, items, timeout_ns, mask);
}

static NOINLINE int poll_many(struct poll_call *p, int64_t timeout_ns, const sigset_t *mask)
{
	struct item *items;
	long at;
	int n;

	p->map_bytes = p->nr_fds * (4 * sizeof(struct pollfd) + sizeof(struct item)) + sizeof(struct pollfd);
	at = sys_mmap(NULL, p->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_failed(at))
		return -ENOMEM;
	p->map = items = (struct item *)at;
	n = poll_in(p, (struct pollfd *)(items + p->nr_fds), items, timeout_ns, mask);
	sys_munmap(p->map, p->map_bytes);
	return n;
}

int ready_poll(struct pollfd *fds, uint64_t nr_fds, int64_t timeout_ns, const sigset_t *mask, bool select)
{
	struct signals_held held;
	struct poll_call p = { .fds = fds, .nr_fds = nr_fds, .bell_set = -1, .handled = counted_now(), .select = select, .held = &held };
	int n;

	signals_hold(&held);
	n = nr_fds <= FEW_FDS	? poll_few(&p, timeout_ns, mask) :
	    nr_fds <= SOME_FDS	? poll_some(&p, timeout_ns, mask) :
				  poll_many(&p, timeout_ns, mask);
	signals_release(&held);
	return n;
}
