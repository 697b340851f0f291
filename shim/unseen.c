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
/* A set that a thread of the program is just making, or closing, is unknown for a moment. */
#define SURE_AFTER_NS 10000000
#define SURE_LOOKS 3
/* Files whose kind is asked for. What such a runtime waits with is made before what it waits for, so its number is low. */
#define MOST_FILES 512

static struct {
	_Atomic int busy;
	_Atomic int verdict;	/* enum unseen; final once it names something */
	_Atomic int64_t next_ns;
	int suspect;		/* + 1; belongs to whoever is busy */
} look;

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

static enum unseen kind_for_sure(int dir, int fd, const char *name)
{
	enum unseen kind = kind_of(dir, fd, name);

	for (int i = 1; i < SURE_LOOKS && kind == UNSEEN_EPOLL; i++) {
		(void)sys_call0(SYS_sched_yield);
		kind = kind_of(dir, fd, name);
	}
	return kind;
}

static enum unseen look_through(int dir)
{
	_Alignas(struct dirent64) char entries[1024];
	int suspect = 0, left = MOST_FILES;
	long bytes;

	while (left > 0 && (bytes = sys_call3(SYS_getdents64, dir, entries, sizeof(entries))) > 0) {
		for (long at = 0; at < bytes && left > 0;) {
			const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
			int fd = entry->d_name[0] == '.' ? dir : atoi(entry->d_name);

			at += entry->d_reclen;
			if (fd == dir || known(fd))
				continue;
			left--;
			switch (kind_for_sure(dir, fd, entry->d_name)) {
			case UNSEEN_IO_URING:
				return UNSEEN_IO_URING;
			case UNSEEN_EPOLL:
				if (look.suspect == fd + 1)
					return UNSEEN_EPOLL;
				if (!suspect)
					suspect = fd + 1;
				break;
			default:
				break;
			}
		}
	}
	look.suspect = suspect;
	return suspect ? UNSEEN_MAYBE : UNSEEN_NONE;
}

static enum unseen look_now(int64_t began)
{
	int dir = sys_openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	enum unseen verdict = UNSEEN_NONE;
	int64_t ended;

	if (dir >= 0) {
		verdict = look_through(dir);
		sys_close(dir);
	}
	ended = now_ns();
	store_relaxed(&look.next_ns, ended + (verdict == UNSEEN_MAYBE ? SURE_AFTER_NS : (ended - began) * LOOKS_SHARE));
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
}
