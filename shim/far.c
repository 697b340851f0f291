/* SPDX-License-Identifier: MIT */
/* See far.h. */
#include "shim/far.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "ringbuf/sys.h"
#include "shim/fdtab.h"
#include "shim/log.h"
#include "shim/maps.h"
#include "shim/own_fd.h"
#include "shim/real.h"

const struct verbs_table *far_engine;

enum { NOT_TRIED, TRYING, TRIED };
static _Atomic int tried;
static bool forked;
static bool alone; /* the program does not use the libraries itself */

/* Which of the hidden descriptors are the libraries'. */
static _Atomic uint64_t theirs[FDTAB_MAX / 64];

static int hide(int fd)
{
	int number = own_fd_take(fd);

	if (number >= 0)
		fetch_or(&theirs[number / 64], UINT64_C(1) << number % 64);
	return number;
}

static void forget(int fd)
{
	if (fd >= 0 && (unsigned int)fd < FDTAB_MAX)
		fetch_and(&theirs[fd / 64], ~(UINT64_C(1) << fd % 64));
}

static void reveal(int fd)
{
	forget(fd);
	own_fd_let_go(fd);
}

static __thread int inside __attribute__((tls_model("initial-exec")));

static void go_inside(bool in)
{
	inside += in ? 1 : -1;
}

static const struct verbs_host host = { .hide = hide, .reveal = reveal, .inside = go_inside };

bool far_is_libs(int fd)
{
	return (unsigned int)fd < FDTAB_MAX && load_relaxed(&theirs[fd / 64]) & UINT64_C(1) << fd % 64;
}

bool far_lets_close(int fd)
{
	if (!inside || !far_is_libs(fd))
		return false;
	reveal(fd);
	return true;
}

static const struct verbs_table *open_engine(void)
{
	const struct verbs_table *table = real_open_beside("libringway-verbs.so", "librdmacm.so.1", VERBS_TABLE_SYMBOL, &alone);

	if (!table) {
		log_info("libringway-verbs.so, libibverbs and librdmacm cannot all be opened");
		return NULL;
	}
	if (table->abi != VERBS_ABI || table->bytes != sizeof(*table)) {
		log_warn("libringway-verbs.so is of another version");
		return NULL;
	}
	/* A program that uses these libraries itself shares their devices with us, and waits for their descriptors. */
	table->set_host(alone ? &host : NULL);
	return table;
}

void far_load(void)
{
	int before = NOT_TRIED;

	if (likely(load_relaxed(&tried) != NOT_TRIED) || forked || !compare_exchange(&tried, &before, TRYING))
		return;
	far_engine = open_engine();
	store_release(&tried, TRIED);
}

int far_loaded(enum reason *why)
{
	*why = forked ? REASON_FORKED : REASON_NO_RDMA_CORE;
	if (!forked && load_acquire(&tried) != TRIED)
		return -EAGAIN;
	return far_engine && !forked ? 0 : -ENOSYS;
}

/*
 * Queues of the device's that were mapped at the moment of the fork: an attempt's, or those of a link that could not be left. As long as anybody has a
 * part of it mapped, soft-RoCE does not let a device go, and who removes it waits. The places stay taken, for what this process does not use any more may still name them.
 */
static void let_go_of_queues(void)
{
	struct maps m;
	uintptr_t from, to;
	char said[160];

	if (!maps_open(&m))
		return;
	while (maps_next(&m, &from, &to, said, sizeof(said)))
		if (strstr(said, "/dev/infiniband/uverbs"))
			sys_mmap((void *)from, to - from, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	maps_close(&m);
}

void far_fork_child(void)
{
	/* Another thread of the parent was at it. */
	if (load_relaxed(&tried) == TRYING)
		store_relaxed(&tried, NOT_TRIED);
	if (!far_engine)
		return;
	forked = true;
	if (alone)
		let_go_of_queues();
	for (int fd = fdtab_next_hidden(0); fd >= 0; fd = fdtab_next_hidden((unsigned int)fd + 1))
		if (far_is_libs(fd)) {
			/* The number may be ours in this process, whose children are not to close it. */
			forget(fd);
			own_fd_close(fd);
		}
}

void far_leave(struct conn *c)
{
	far_engine->leave(&c->link);
}

void far_leave_engine(void *engine)
{
	struct ring_link link = { .tx.bells.engine = engine };

	if (unlikely(engine != NULL))
		far_engine->leave(&link);
}
