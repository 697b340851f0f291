/* SPDX-License-Identifier: MIT */
/* See fd_conn.h. Counts stand in an array beside the arena, not in the records: those are shared with other processes. */
#include "shim/fd_conn.h"

#include <errno.h>
#include <sys/mman.h>

#include "ringbuf/mapped.h"
#include "ringbuf/sys.h"
#include "shim/epoll.h"
#include "shim/glibc.h"
#include "shim/nego.h"
#include "shim/ready.h"
#include "shim/renew.h"
#include "shim/retreat.h"
#include "shim/stats_slots.h"
#include "shim/unseen.h"

/*
 * Changes are many and short, forks few: a change only counts itself, and a fork waits until none is left and keeps new
 * ones out. A signal handler that forks in the middle of a change of its own thread does not wait for that one.
 */
static _Atomic int nr_changing;
static _Atomic int fork_waits;
static __thread int changing_here __attribute__((tls_model("initial-exec")));

static void yield(void)
{
	(void)sys_call0(SYS_sched_yield);
}

/*
 * A handler that jumped out of a change has left the count too high; one that changes something in the middle of a call may be waited for
 * by the fork, which wants what that call has locked. Better a fork that saw half a change than none.
 */
enum { FORK_PATIENCE = 1 << 17 };

/* Where there is one thread, only its own handlers come in between, and they leave the count as they found it. */
static void count_change(int by)
{
	if (likely(__libc_single_threaded))
		count_add(&nr_changing, by);
	else
		fetch_add(&nr_changing, by);
}

static void change_begin(void)
{
	for (int i = 0;; i++) {
		count_change(1);
		/* Pairs with fd_fork_prepare(): one of the two sees the other. */
		if (likely(!load_relaxed(&fork_waits)) || changing_here || i == FORK_PATIENCE)
			break;
		count_change(-1);
		yield();
	}
	changing_here++;
}

static void change_end(void)
{
	changing_here--;
	count_change(-1);
}

int fd_set_change_begin(void)
{
	change_begin();
	return unseen_change_begin();
}

void fd_set_change_end(int change, int fd)
{
	unseen_change_end(change, fd);
	change_end();
}

void fd_fork_prepare(void)
{
	exchange(&fork_waits, 1);
	for (int i = 0; load_acquire(&nr_changing) > changing_here && i < FORK_PATIENCE; i++)
		yield();
}

void fd_fork_done(void)
{
	store_release(&fork_waits, 0);
}

/* The other threads' changes, none of which was half done, are not ours. */
void fd_fork_child(void)
{
	store_relaxed(&nr_changing, changing_here);
	store_relaxed(&fork_waits, 0);
}

/* By conn->index; pages come into being as records are used. */
static _Atomic uint32_t *nr_fds;

static void *map_anonymous(size_t bytes)
{
	long addr = sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return sys_failed(addr) ? NULL : (void *)addr;
}

int fd_conn_init(void)
{
	nr_fds = map_anonymous(CONN_MAX * sizeof(*nr_fds));
	if (!nr_fds)
		return -ENOMEM;
	mapped_add(CONN_MAX * sizeof(*nr_fds));
	return 0;
}

/* The number `fd` does not name c any more; the caller has counted it out. */
static void conn_number_gone(struct conn *c, int fd, bool last)
{
	ready_forget(c, fd, last);
	if (last) {
		stats_slots_close(c);
		conn_release(c, fd);
	}
}

static bool count_out(const struct conn *c)
{
	return fetch_sub(&nr_fds[c->index], 1) == 1;
}

/* What fd names, with one number more; NULL also where another thread is closing it: the record may be another's by now. */
static struct conn *count_in(int fd)
{
	struct conn *c = fdtab_get(fd);
	uint32_t nr = c ? load_relaxed(&nr_fds[c->index]) : 0;

	while (nr && !compare_exchange(&nr_fds[c->index], &nr, nr + 1))
		;
	if (!nr)
		return NULL;
	if (likely(fdtab_get(fd) == c))
		return c;
	if (count_out(c))
		conn_number_gone(c, -1, true);
	return NULL;
}

void fd_opened(int fd, enum conn_role role, bool nonblock)
{
	struct conn *c;

	fd_forget(fd);
	if ((unsigned int)fd >= fdtab.nr)
		return;
	change_begin();
	c = conn_opened(role, nonblock);
	if (c) {
		store_relaxed(&nr_fds[c->index], 1);
		ready_opened(c);
	}
	/* Before another thread can find it and move it. */
	if (c && role == CONN_CONNECTED)
		epoll_early_bind(c, fd);
	else
		epoll_early_forget(fd);
	if (c)
		fdtab_install(fd, c);
	change_end();
	if (unlikely(fd_is_standard(fd)))
		(void)fd_pin(fd, REASON_EXEC);
}

void fd_fresh(int fd, enum fd_mark mark)
{
	fd_forget(fd);
	epoll_early_forget(fd);
	fdtab_mark(fd, mark);
}

/* The sets keep the socket, and what they are to tell of it stands in the list of those that are not connected. */
void fd_dissolved(int fd)
{
	struct conn *c = fdtab_get(fd);
	uint8_t why = c ? load_relaxed(&c->reason) : REASON_NONE;
	bool copied = why == REASON_COPIED || why == REASON_STDIO || fdtab_copied(fd);

	if (c && conn_hold(c, fd)) {
		for (int other = fdtab_next_of(c, 0); other >= 0; other = fdtab_next_of(c, (unsigned int)other + 1))
			epoll_early_forget(other);
		ready_dissolved(c);
		conn_drop(c);
	}
	for (int other = c ? fdtab_next_of(c, 0) : -1; other >= 0; other = fdtab_next_of(c, (unsigned int)other + 1)) {
		if (other == fd)
			continue;
		fd_forget(other);
		fdtab_mark(other, FD_MARK_COPIED);
		copied = true;
	}
	fd_forget(fd);
	fdtab_mark(fd, copied ? FD_MARK_COPIED : FD_MARK_TCP);
}

struct fd_copy fd_copy_begin(int fd)
{
	struct fd_copy what = { .conn = NULL };

	change_begin();
	what.conn = count_in(fd);
	what.set = fdtab_epoll(fd);
	if (unlikely(what.set))
		what.change = unseen_change_begin();
	what.tcp = !what.conn && fdtab_tcp(fd);
	/* The record that it gets later would be that of one number only. */
	if (what.tcp)
		fdtab_mark(fd, FD_MARK_COPIED);
	return what;
}

void fd_copy_end(const struct fd_copy *what, int copy)
{
	bool entered = true, last = false;

	if (copy >= 0)
		fd_forget(copy);
	if (what->conn) {
		entered = copy >= 0 && fdtab_install(copy, what->conn);
		if (!entered)
			last = count_out(what->conn);
	} else if (copy >= 0 && what->set) {
		if (fdtab_install_epoll(copy, what->set))
			epoll_set_dup(what->set, copy);
	} else if (copy >= 0) {
		fdtab_mark(copy, what->tcp ? FD_MARK_COPIED : FD_MARK_NONE);
	}
	if (unlikely(what->set))
		unseen_change_end(what->change, copy);
	change_end();
	if (!entered)
		conn_number_gone(what->conn, copy, last);
}

static void let_go(int fd, int fd_for_records)
{
	struct epoll_set *set;
	bool last = false;
	struct conn *c;

	change_begin();
	c = fdtab_remove(fd);
	if (c)
		last = count_out(c);
	set = fdtab_remove_epoll(fd);
	if (fdtab_tcp(fd))
		fdtab_mark(fd, FD_MARK_NONE);
	change_end();
	if (c)
		conn_number_gone(c, fd_for_records, last);
	if (set)
		epoll_set_drop(set, fd_for_records);
}

void fd_closing(int fd)
{
	let_go(fd, fd);
}

void fd_forget(int fd)
{
	if (unlikely(fdtab_get(fd) || fdtab_other(fd) != FD_MARK_NONE))
		let_go(fd, -1);
}

bool fd_pin(int fd, enum reason why)
{
	struct conn *c = fdtab_get(fd);
	bool on_tcp;

	if (!c || !conn_hold(c, fd))
		return true;
	on_tcp = conn_pin(c, why);
	conn_drop(c);
	return on_tcp;
}

static bool pin_and(int fd, enum reason why, bool (*retreat)(struct conn *c, int fd, enum reason why))
{
	struct conn *c = fdtab_get(fd);
	bool on_tcp;

	if (!c || !conn_hold(c, fd))
		return true;
	on_tcp = conn_pin(c, why);
	if (conn_is_linked(c))
		on_tcp = retreat(c, fd, why);
	if (renew_is_due(c))
		nego_poke(c, fd);
	conn_drop(c);
	return on_tcp;
}

bool fd_hand_on(int fd, enum reason why)
{
	return pin_and(fd, why, retreat_go_unlocked);
}

bool fd_come_back(int fd, enum reason why)
{
	return pin_and(fd, why, retreat_back_unlocked);
}

struct fd_list fd_list_conns(void)
{
	struct fd_list list = { .nr = 0 };
	unsigned int nr = 0;
	uint8_t *seen;
	char *memory;

	for (int fd = fdtab_next_conn(0); fd >= 0; fd = fdtab_next_conn((unsigned int)fd + 1))
		nr++;
	if (nr == 0)
		return list;
	/* One bit a record, to tell a second number of one connection. */
	list.bytes = CONN_MAX / 8 + nr * (sizeof(*list.conns) + sizeof(*list.fds));
	memory = map_anonymous(list.bytes);
	if (!memory) {
		list.bytes = 0;
		return list;
	}
	list.conns = (struct conn **)memory;
	list.fds = (int *)(memory + nr * sizeof(*list.conns));
	seen = (uint8_t *)memory + nr * (sizeof(*list.conns) + sizeof(*list.fds));
	for (int fd = fdtab_next_conn(0); fd >= 0 && list.nr < nr; fd = fdtab_next_conn((unsigned int)fd + 1)) {
		struct conn *c = fdtab_get(fd);

		if (!c || seen[c->index / 8] & 1u << c->index % 8)
			continue;
		seen[c->index / 8] |= (uint8_t)(1u << c->index % 8);
		list.conns[list.nr] = c;
		list.fds[list.nr++] = fd;
	}
	return list;
}

void fd_list_free(struct fd_list *list)
{
	if (list->bytes)
		(void)sys_munmap(list->conns, list->bytes);
	*list = (struct fd_list){ .nr = 0 };
}
