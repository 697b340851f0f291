/* SPDX-License-Identifier: MIT */
/*
 * select() as a poll() of the numbers in its sets, each asked only for what its sets mean. Sets are read by words, up to
 * the highest number given, not to FD_SETSIZE.
 */
#include "shim/ready_select.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ringbuf/sys.h"
#include "shim/conn_iov.h"
#include "shim/fdtab.h"
#include "shim/ready_poll.h"
#include "shim/sandbox.h"
#include "shim/signals.h"
#include "shim/unwound.h"

#define WORD_BITS (8 * sizeof(unsigned long))
#define FEW_FDS 64
/* What the kernel's table has place for at first, and what it grows by. */
#define TABLE_FIRST 64
#define TABLE_STEP 128

/* What each set means, as the kernel maps it. A number that was closed under the wait counts as ready for everything. */
#define IN_SET (POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR)
#define OUT_SET (POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR)
#define EX_SET POLLPRI

static unsigned long word_of(const fd_set *set, unsigned word)
{
	unsigned long bits;

	if (!set)
		return 0;
	memcpy(&bits, (const char *)set + word * sizeof(bits), sizeof(bits));
	return bits;
}

static unsigned long word_at(int nr_fds, const fd_set *set, unsigned word)
{
	unsigned long bits = word_of(set, word);
	unsigned left = (unsigned)nr_fds - word * (unsigned)WORD_BITS;

	return left < WORD_BITS ? bits & ((1ul << left) - 1) : bits;
}

static unsigned nr_words(int nr_fds)
{
	return ((unsigned)nr_fds + WORD_BITS - 1) / WORD_BITS;
}

/* Writes an entry for each number, or only counts them where `out` is NULL. */
static unsigned list_fds(int nr_fds, const fd_set *rd, const fd_set *wr, const fd_set *ex, struct pollfd *out)
{
	unsigned n = 0;

	for (unsigned w = 0; w < nr_words(nr_fds); w++) {
		unsigned long in = word_at(nr_fds, rd, w), room = word_at(nr_fds, wr, w), pri = word_at(nr_fds, ex, w);

		for (unsigned long any = in | room | pri; any; any &= any - 1, n++) {
			unsigned long bit = any & -any;

			if (!out)
				continue;
			out[n].fd = (int)(w * WORD_BITS) + __builtin_ctzl(any);
			out[n].events = (in & bit ? IN_SET : 0) | (room & bit ? OUT_SET : 0) | (pri & bit ? EX_SET : 0);
			out[n].revents = 0;
		}
	}
	return n;
}

/* How long the kernel's table is with `highest` in it: as long as the first is, or in steps. */
static int table_of(int highest)
{
	int nr = TABLE_STEP;

	if (highest < TABLE_FIRST)
		return TABLE_FIRST;
	while (nr <= highest)
		nr *= 2;
	return nr;
}

/* -1: that cannot be seen. */
static int highest_of_program(void)
{
	_Alignas(struct dirent64) char entries[1024];
	int highest = -1, dir = -1;
	long bytes;

	if (sandbox_why() != REASON_SECCOMP)
		dir = sys_openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (dir < 0)
		return -1;
	while ((bytes = sys_call3(SYS_getdents64, dir, entries, sizeof(entries))) > 0)
		for (long at = 0; at < bytes;) {
			const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
			int fd = atoi(entry->d_name);

			at += entry->d_reclen;
			if (fd > highest && fd != dir && !fdtab_hidden(fd))
				highest = fd;
		}
	sys_close(dir);
	return highest;
}

/* Has the program never had a number that concerns us, nor we one? Then the table is its own. */
static bool is_kernels(void)
{
	return !fdtab_was_used() && !load_relaxed(&fdtab.hidden_end);
}

int ready_select_within(int nr_fds)
{
	int most;

	/* As many as an fd_set has, or as the program has had. */
	if (likely(nr_fds <= FD_SETSIZE) || (uint32_t)nr_fds <= load_relaxed(&fdtab.end) || is_kernels())
		return nr_fds;
	most = highest_of_program();
	most = most < 0 ? FD_SETSIZE : table_of(most);
	return nr_fds < most ? nr_fds : most;
}

bool ready_select_concerns_us(int nr_fds, const fd_set *rd, const fd_set *wr, const fd_set *ex)
{
	size_t bytes = nr_fds > 0 ? nr_words(nr_fds) * sizeof(unsigned long) : 0;

	if (nr_fds <= 0 || (unsigned)nr_fds > FDTAB_MAX || is_kernels())
		return false;
	if ((rd && user_range_bad(rd, bytes)) || (wr && user_range_bad(wr, bytes)) || (ex && user_range_bad(ex, bytes)))
		return false;
	for (unsigned w = 0; w < nr_words(nr_fds); w++) {
		unsigned long any = word_at(nr_fds, rd, w) | word_at(nr_fds, wr, w) | word_at(nr_fds, ex, w);

		for (; any; any &= any - 1) {
			struct pollfd one = { .fd = (int)(w * WORD_BITS) + __builtin_ctzl(any) };

			if (ready_concerns_us(&one, 1))
				return true;
		}
	}
	return false;
}

static void clear_words(fd_set *set, unsigned words)
{
	if (set)
		memset(set, 0, words * sizeof(unsigned long));
}

static int tell(fd_set *set, int fd, bool on)
{
	unsigned long bits;
	char *at;

	if (!on || !set)
		return 0;
	at = (char *)set + (unsigned)fd / WORD_BITS * sizeof(bits);
	memcpy(&bits, at, sizeof(bits));
	bits |= 1ul << ((unsigned)fd % WORD_BITS);
	memcpy(at, &bits, sizeof(bits));
	return 1;
}

static int tell_all(int nr_fds, fd_set *rd, fd_set *wr, fd_set *ex, const struct pollfd *fds, unsigned n)
{
	int told = 0;

	clear_words(rd, nr_words(nr_fds));
	clear_words(wr, nr_words(nr_fds));
	clear_words(ex, nr_words(nr_fds));
	for (unsigned i = 0; i < n; i++) {
		short asked = fds[i].events, got = fds[i].revents;

		told += tell(rd, fds[i].fd, asked & POLLIN && got & (IN_SET | POLLNVAL));
		told += tell(wr, fds[i].fd, asked & POLLOUT && got & (OUT_SET | POLLNVAL));
		told += tell(ex, fds[i].fd, asked & POLLPRI && got & (EX_SET | POLLNVAL));
	}
	return told;
}

/* For more than few numbers. */
struct list_map {
	struct pollfd *fds;
	size_t bytes;
};

static void unmap(void *arg)
{
	struct list_map *map = arg;

	if (map->bytes)
		sys_munmap(map->fds, map->bytes);
}

int ready_select(int nr_fds, fd_set *rd, fd_set *wr, fd_set *ex, int64_t timeout_ns, const sigset_t *mask)
{
	struct pollfd few[FEW_FDS];
	struct list_map map = { .fds = few };
	unsigned n = list_fds(nr_fds, rd, wr, ex, NULL);
	struct signals_held held;
	int ret;

	signals_hold(&held);
	if (n > FEW_FDS) {
		long at;

		map.bytes = n * sizeof(*map.fds);
		at = sys_mmap(NULL, map.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (sys_failed(at)) {
			signals_release(&held);
			return -ENOMEM;
		}
		map.fds = (struct pollfd *)at;
	}
	list_fds(nr_fds, rd, wr, ex, map.fds);
	UNWOUND_BEGIN(unmap, &map);
	ret = ready_poll(map.fds, n, timeout_ns, signals_asleep(&held, mask), true);
	UNWOUND_END();
	if (ret >= 0)
		ret = tell_all(nr_fds, rd, wr, ex, map.fds, n);
	unmap(&map);
	signals_release(&held);
	return ret;
}
