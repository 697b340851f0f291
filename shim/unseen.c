/* SPDX-License-Identifier: MIT */
/* See unseen.h. */
#include "shim/unseen.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/clock.h"
#include "shim/fdtab.h"

#define LOOKS_SHARE 64
/* A set that a system call of the program's own has made may be for something else, and soon be gone. */
#define SURE_AFTER_NS 10000000
#define FIND_OUT_AFTER_NS 500000
/* Files whose kind is asked for. What such a runtime waits with is made before what it waits for, so its number is low. */
#define MOST_FILES 512
/* Changes of other threads are short, but such a thread may have lost its processor. */
#define LOOK_YIELDS 16

static struct {
	_Atomic int busy;
	_Atomic int verdict;	/* enum unseen; final once it names something */
	_Atomic int64_t next_ns;
	_Atomic uint64_t was_there[MOST_FILES / 64];	/* sets from before main */
} look;

_Atomic bool unseen_leavings;

/*
 * A suspect is the number of a set that was not known. It is the program's own if no change that had begun before it was seen has had to do with that
 * number: each ends by taking the suspicion back. So a suspect begins a new era, and is judged when the changes of the era before are over,
 * however many there are of later ones.
 */
static struct {
	_Atomic int number;	/* + 1; 0: nobody */
	_Atomic int era;
	_Atomic int changing[2];	/* threads, by the era in which they began */
} suspect;

int unseen_change_begin(void)
{
	for (;;) {
		int era = load_acquire(&suspect.era) & 1;

		fetch_add(&suspect.changing[era], 1);
		/* Pairs with suspect_note(): who judges either sees us there, or we see that the era is another one. */
		fence_full();
		if (likely((load_acquire(&suspect.era) & 1) == era))
			return era;
		fetch_sub(&suspect.changing[era], 1);
	}
}

void unseen_change_end(int change, int fd)
{
	int number = load_acquire(&suspect.number);

	if (unlikely(number) && (fd < 0 || number == fd + 1))
		(void)compare_exchange(&suspect.number, &number, 0);
	fetch_sub(&suspect.changing[change], 1);
}

static bool known(int fd)
{
	return fdtab_get(fd) || fdtab_other(fd) != FD_MARK_NONE;
}

static enum unseen kind_of(int dir, int fd, const char *name)
{
	char to[32];
	ssize_t len;

	if (known(fd))
		return UNSEEN_NONE;
	len = sys_readlinkat(dir, name, to, sizeof(to) - 1);
	if (len < 0)
		return UNSEEN_NONE;
	to[len] = 0;
	if (strcmp(to, "anon_inode:[io_uring]") == 0)
		return UNSEEN_IO_URING;
	return strcmp(to, "anon_inode:[eventpoll]") == 0 ? UNSEEN_EPOLL : UNSEEN_NONE;
}

/* The changes of the era before are over. */
static bool era_is_clear(void)
{
	return load_acquire(&suspect.changing[(load_relaxed(&suspect.era) + 1) & 1]) <= 0;
}

static bool suspect_stands(void)
{
	return era_is_clear() && load_acquire(&suspect.number);
}

static bool wait_for_changes(int *patience)
{
	while (!era_is_clear())
		if ((*patience)-- > 0)
			(void)sys_call0(SYS_sched_yield);
		else
			return false;
	return true;
}

/*
 * Nobody is suspected until now. A change that was over before it could have taken that back has made the set known, or closed it. Those that are not over must all be of
 * one era, the one that ends.
 */
static enum unseen suspect_note(int dir, int fd, const char *name, int *patience)
{
	enum unseen kind;

	if (!wait_for_changes(patience))
		return UNSEEN_MAYBE;
	store_relaxed(&suspect.number, fd + 1);
	fence_full();
	kind = kind_of(dir, fd, name);
	if (kind != UNSEEN_EPOLL) {
		store_relaxed(&suspect.number, 0);
		return kind;
	}
	fetch_add(&suspect.era, 1);
	fence_full();
	return UNSEEN_MAYBE;
}

/* A set that is not known, at a number that is not suspected yet. Most often it is so for a moment only. */
static enum unseen find_out(int dir, int fd, const char *name, int *patience)
{
	enum unseen kind = UNSEEN_MAYBE;

	while (*patience > 0 && (kind = suspect_note(dir, fd, name, patience)) == UNSEEN_MAYBE && wait_for_changes(patience) &&
	       !load_acquire(&suspect.number))
		;
	return kind;
}

/* What was there before main, and still is, is noted in `there`. */
static enum unseen judge(int dir, int fd, const char *name, uint64_t there[MOST_FILES / 64], int *patience)
{
	int number = load_acquire(&suspect.number);

	if (fd < MOST_FILES && load_relaxed(&look.was_there[fd / 64]) >> fd % 64 & 1) {
		there[fd / 64] |= UINT64_C(1) << fd % 64;
		return UNSEEN_NONE;
	}
	if (!number)
		return find_out(dir, fd, name, patience);
	return number == fd + 1 && suspect_stands() ? UNSEEN_EPOLL : UNSEEN_MAYBE;
}

/* `first`: what is there is only noted. */
static enum unseen look_through(int dir, bool first)
{
	_Alignas(struct dirent64) char entries[1024];
	uint64_t there[MOST_FILES / 64] = { 0 };
	enum unseen verdict = UNSEEN_NONE;
	int left = MOST_FILES, patience = LOOK_YIELDS, suspected = load_acquire(&suspect.number);
	bool seen = false;
	long bytes;

	while (left > 0 && (bytes = sys_call3(SYS_getdents64, dir, entries, sizeof(entries))) > 0) {
		for (long at = 0; at < bytes && left > 0;) {
			const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
			int fd = entry->d_name[0] == '.' ? dir : atoi(entry->d_name);
			enum unseen kind;

			at += entry->d_reclen;
			if (fd == dir || known(fd))
				continue;
			left--;
			kind = kind_of(dir, fd, entry->d_name);
			if (first) {
				if (kind == UNSEEN_EPOLL && fd < MOST_FILES)
					there[fd / 64] |= UINT64_C(1) << fd % 64;
				continue;
			}
			if (kind == UNSEEN_EPOLL) {
				seen |= fd + 1 == suspected;
				kind = judge(dir, fd, entry->d_name, there, &patience);
			}
			if (kind > UNSEEN_MAYBE)
				return kind;
			if (kind == UNSEEN_MAYBE)
				verdict = kind;
		}
	}
	for (int i = 0; i < MOST_FILES / 64; i++)
		if (!first)
			fetch_and(&look.was_there[i], there[i]);
		else if (there[i]) {
			store_relaxed(&look.was_there[i], there[i]);
			store_relaxed(&unseen_leavings, true);
		}
	/* Closed meanwhile. */
	if (suspected && !seen)
		(void)compare_exchange(&suspect.number, &suspected, 0);
	return verdict;
}

void unseen_forget(unsigned int first, unsigned int last)
{
	for (unsigned int fd = first; fd <= last && fd < MOST_FILES; fd++)
		fetch_and(&look.was_there[fd / 64], ~(UINT64_C(1) << fd % 64));
}

static int open_files(void)
{
	return sys_openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
}

int unseen_init(void)
{
	int dir = open_files();

	if (dir >= 0) {
		look_through(dir, true);
		sys_close(dir);
	}
	return 0;
}

static enum unseen look_now(int64_t began)
{
	int dir = open_files();
	enum unseen verdict = UNSEEN_NONE;
	int64_t ended;

	if (dir >= 0) {
		verdict = look_through(dir, false);
		sys_close(dir);
	}
	ended = now_ns();
	if (verdict != UNSEEN_MAYBE)
		ended += (ended - began) * LOOKS_SHARE;
	else
		ended += suspect_stands() ? SURE_AFTER_NS : FIND_OUT_AFTER_NS;
	store_relaxed(&look.next_ns, ended);
	store_relaxed(&look.verdict, verdict);
	return verdict;
}

enum unseen unseen_look(void)
{
	enum unseen verdict = (enum unseen)load_relaxed(&look.verdict);
	int64_t now;
	int idle = 0;

	if (verdict > UNSEEN_MAYBE)
		return verdict;
	now = now_ns();
	if (now < load_relaxed(&look.next_ns))
		return verdict;
	if (!compare_exchange(&look.busy, &idle, 1))
		return UNSEEN_MAYBE;
	verdict = look_now(now);
	store_release(&look.busy, 0);
	return verdict;
}

void unseen_fork_child(void)
{
	store_relaxed(&look.busy, 0);
	store_relaxed(&suspect.number, 0);
	store_relaxed(&suspect.changing[0], 0);
	store_relaxed(&suspect.changing[1], 0);
}
