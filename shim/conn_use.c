/* SPDX-License-Identifier: MIT */
/*
 * Uses of a connection by the threads of this process, and the end of its mapping here. A data call needs none: it holds a
 * lane lock, and close takes both before it ends anything. Waits hold no lock and count themselves here instead.
 */
#include "shim/conn_use.h"

#include <errno.h>
#include <sys/mman.h>

#include "ringbuf/sys.h"
#include "shim/conn.h"
#include "shim/conn_end.h"
#include "shim/fdtab.h"
#include "shim/own_fd.h"

struct use {
	_Atomic uint32_t nr;
	_Atomic uint32_t closing;
	_Atomic uint32_t flushed;	/* the end of the process has been announced */
};

static struct use *uses;

int conn_use_init(void)
{
	long at = sys_mmap(NULL, sizeof(struct use) * CONN_MAX, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (sys_failed(at))
		return (int)at;
	uses = (struct use *)at;
	return 0;
}

void conn_use_opened(struct conn *c)
{
	/* Not `nr`: a thread that still has the record's former name may be between conn_hold() and its conn_drop(). */
	store_relaxed(&uses[c->index].closing, 0);
	store_relaxed(&uses[c->index].flushed, 0);
}

void conn_use_fork_child(void)
{
	sys_call3(SYS_madvise, uses, sizeof(struct use) * CONN_MAX, MADV_DONTNEED);
}

bool conn_use_flush(struct conn *c)
{
	return exchange(&uses[c->index].flushed, 1) == 0;
}

bool conn_use_unflush(struct conn *c)
{
	return exchange(&uses[c->index].flushed, 0) == 1;
}

/* The link in this process: relatives keep theirs, and the record still has the values for them. */
static void take_down(struct conn *c)
{
	if (load_acquire(&c->linked)) {
		struct segment mine = c->link.segment;

		own_fd_close(c->link.rx.bells.bell_fd);
		own_fd_close(c->link.tx.bells.bell_fd);
		segment_close(&mine);
	}
	conn_unmap(c);
}

void conn_hold_locked(struct conn *c)
{
	fetch_add(&uses[c->index].nr, 1);
}

bool conn_hold(struct conn *c, int fd)
{
	/* Pairs with conn_use_close(), which runs after the fd table has forgotten the number. */
	fetch_add(&uses[c->index].nr, 1);
	if (likely(fdtab_get(fd) == c))
		return true;
	conn_drop(c);
	return false;
}

void conn_drop(struct conn *c)
{
	struct use *u = &uses[c->index];

	if (fetch_sub(&u->nr, 1) == 1 && unlikely(load_acquire(&u->closing)) && exchange(&u->closing, 0))
		take_down(c);
}

void conn_use_close(struct conn *c)
{
	struct use *u = &uses[c->index];

	exchange(&u->closing, 1);
	if (load_acquire(&u->nr) == 0 && exchange(&u->closing, 0))
		take_down(c);
}
