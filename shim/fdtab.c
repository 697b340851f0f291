/* SPDX-License-Identifier: MIT */
/*
 * One flat table over a reserved stretch of address space: pages come into being as numbers are used, so a look-up needs
 * no second level, and growing needs no lock. 16 MiB of address space, a few KiB of memory.
 */
#include "shim/fdtab.h"

#include <errno.h>
#include <sys/mman.h>

#include "ringbuf/mapped.h"
#include "ringbuf/sys.h"

struct fdtab fdtab;

int fdtab_init(void)
{
	size_t conns_bytes = FDTAB_MAX * sizeof(*fdtab.conns);
	size_t others_bytes = FDTAB_MAX * sizeof(*fdtab.others);
	long addr = sys_mmap(NULL, conns_bytes + others_bytes, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (sys_failed(addr))
		return (int)addr;
	mapped_add(conns_bytes + others_bytes);
	fdtab.conns = (void *)addr;
	fdtab.others = (void *)(addr + (long)conns_bytes);
	store_relaxed(&fdtab.hidden_first, FDTAB_MAX);
	fdtab.nr = FDTAB_MAX;
	return 0;
}

static void raise_to(_Atomic uint32_t *bound, uint32_t value)
{
	uint32_t old = load_relaxed(bound);

	while (old < value && !compare_exchange(bound, &old, value))
		;
}

/* The bounds of walks only widen. */
static void note_used(int fd)
{
	raise_to(&fdtab.end, (uint32_t)fd + 1);
}

static void note_hidden(int fd)
{
	uint32_t first = load_relaxed(&fdtab.hidden_first);

	while ((uint32_t)fd < first && !compare_exchange(&fdtab.hidden_first, &first, (uint32_t)fd))
		;
	raise_to(&fdtab.hidden_end, (uint32_t)fd + 1);
}

bool fdtab_install(int fd, struct conn *conn)
{
	if ((unsigned int)fd >= fdtab.nr)
		return false;
	note_used(fd);
	store_release(&fdtab.others[fd], FD_MARK_NONE);
	store_release(&fdtab.conns[fd], (uintptr_t)conn); /* pairs with fdtab_word() */
	return true;
}

void fdtab_set_pinned(int fd, struct conn *conn)
{
	uintptr_t word = (uintptr_t)conn;

	if ((unsigned int)fd < fdtab.nr)
		compare_exchange(&fdtab.conns[fd], &word, word | FD_PINNED);
}

static bool install_other(int fd, uintptr_t word)
{
	if ((unsigned int)fd >= fdtab.nr)
		return false;
	if ((word & FD_MARK_BITS) == FD_MARK_HIDDEN)
		note_hidden(fd);
	else if (word != FD_MARK_NONE)
		note_used(fd);
	store_release(&fdtab.others[fd], word); /* pairs with fdtab_other() */
	return true;
}

bool fdtab_install_epoll(int fd, struct epoll_set *set)
{
	return install_other(fd, (uintptr_t)set | FD_MARK_EPOLL);
}

bool fdtab_install_hidden(int fd, int *holder)
{
	return install_other(fd, (uintptr_t)holder | FD_MARK_HIDDEN);
}

bool fdtab_mark(int fd, enum fd_mark mark)
{
	return install_other(fd, (uintptr_t)mark);
}

struct conn *fdtab_remove(int fd)
{
	if (!fdtab_get(fd))
		return NULL;
	return (struct conn *)(exchange(&fdtab.conns[fd], 0) & ~FD_PINNED);
}

struct epoll_set *fdtab_remove_epoll(int fd)
{
	uintptr_t word = fdtab_other(fd);

	while ((word & FD_MARK_BITS) == FD_MARK_EPOLL)
		if (compare_exchange(&fdtab.others[fd], &word, (uintptr_t)FD_MARK_NONE))
			return (struct epoll_set *)(word & ~(uintptr_t)FD_MARK_BITS);
	return NULL;
}

int fdtab_next(unsigned int from)
{
	uint32_t end = load_relaxed(&fdtab.end);

	for (uint32_t fd = from; fd < end; fd++)
		if (fdtab_get((int)fd) || (fdtab_other((int)fd) != FD_MARK_NONE && !fdtab_hidden((int)fd)))
			return (int)fd;
	return -1;
}

int fdtab_next_conn(unsigned int from)
{
	uint32_t end = load_relaxed(&fdtab.end);

	for (uint32_t fd = from; fd < end; fd++)
		if (fdtab_get((int)fd))
			return (int)fd;
	return -1;
}

int fdtab_next_of(const struct conn *conn, unsigned int from)
{
	int fd = fdtab_next_conn(from);

	while (fd >= 0 && fdtab_get(fd) != conn)
		fd = fdtab_next_conn((unsigned int)fd + 1);
	return fd;
}

int fdtab_next_hidden(unsigned int from)
{
	uint32_t first = load_relaxed(&fdtab.hidden_first), end = load_relaxed(&fdtab.hidden_end);

	for (uint32_t fd = from > first ? from : first; fd < end; fd++)
		if (fdtab_hidden((int)fd))
			return (int)fd;
	return -1;
}
