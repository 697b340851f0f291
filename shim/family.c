/* SPDX-License-Identifier: MIT */
/* See family.h. */
#include "shim/family.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>

#include "ringbuf/sys.h"
#include "shim/fdtab.h"
#include "shim/own_fd.h"
#include "shim/text.h"
#include "shim/unseen.h"

#define FOUNDER UINT32_C(1)
#define ENDS_KEPT 16384	/* bytes of notices that nobody needs any more */

_Atomic uint32_t family_me;

static struct family *family;
static bool founded;	/* the first fork of all has been: nobody makes another file */
static int file = -1;	/* without locks of its own: who asks through it meets all others' */
static int my_lock = -1;
static int heir_lock = -1;
static uint32_t heir;
static int notices = -1;	/* of ends of lock descriptions; shared with the descendants, never read but to shorten it */
static int watch = -1;

void family_init(struct family *shared)
{
	family = shared;
	store_relaxed(&family->last_member, FOUNDER);
	store_relaxed(&family_me, FOUNDER);
	circle_init(&family->circle);
}

static struct flock byte_of(uint32_t member)
{
	return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = member, .l_len = 1 };
}

static void path_of_file(char *path, size_t size)
{
	struct text text;

	text_start(&text, path, size);
	text_add(&text, "/proc/self/fd/");
	text_add_number(&text, (uint64_t)file, 10);
	text_end(&text);
}

/* Another description of the file, at a low number. */
static int open_again(void)
{
	char path[32];

	path_of_file(path, sizeof(path));
	return (int)sys_call4(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
}

static int lock_byte(int fd, uint32_t member)
{
	struct flock lock = byte_of(member);

	return (int)sys_fcntl(fd, F_OFD_SETLK, (long)&lock);
}

static uint32_t next_member(void)
{
	uint32_t member;

	do
		member = (fetch_add(&family->last_member, 1) + 1) & FAMILY_MAX;
	while (member == 0);
	return member;
}

/* A number that no living process has, and the hidden descriptor of its lock; or an unsure number and -1. */
static uint32_t take_number(int *lock)
{
	uint32_t member = next_member();
	int fd = file < 0 ? -1 : open_again(), r;

	*lock = -1;
	if (fd < 0)
		return member | FAMILY_UNSURE;
	while ((r = lock_byte(fd, member)) == -EAGAIN || r == -EACCES)
		member = next_member();
	if (r < 0)
		sys_close(fd);
	else if (own_fd_adopt(fd, lock) >= 0)
		return member;
	*lock = -1;
	return member | FAMILY_UNSURE;
}

/* The file, and the founder's own lock. */
static void found(void)
{
	int fd = sys_memfd_create("ringway-family", 1 /* MFD_CLOEXEC */), mine;

	founded = true;
	if (fd < 0 || own_fd_adopt(fd, &file) < 0)
		return;
	mine = open_again();
	if (mine >= 0 && lock_byte(mine, FOUNDER) == 0 && own_fd_adopt(mine, &my_lock) >= 0)
		return;
	own_fd_close(file);
	file = -1;
}

/* ---- The watch: see family.h. Made around forks, when no other thread can be at it. */

static void make_notices(void)
{
	char path[32];
	int fd;

	if (notices >= 0 || file < 0)
		return;
	fd = (int)sys_call1(SYS_inotify_init1, IN_NONBLOCK | IN_CLOEXEC);
	if (fd < 0)
		return;
	path_of_file(path, sizeof(path));
	if (sys_call3(SYS_inotify_add_watch, fd, path, IN_CLOSE_WRITE | IN_MODIFY) < 0)
		sys_close(fd);
	else
		(void)own_fd_adopt(fd, &notices);
}

static void make_watch(void)
{
	struct epoll_event news = { .events = EPOLLIN | EPOLLET };
	int fd, change;

	if (watch >= 0 || notices < 0)
		return;
	change = unseen_change_begin();
	fd = (int)sys_call1(SYS_epoll_create1, EPOLL_CLOEXEC);
	if (fd >= 0 && sys_call4(SYS_epoll_ctl, fd, EPOLL_CTL_ADD, notices, &news) < 0)
		sys_close(fd);
	else if (fd >= 0)
		(void)own_fd_adopt(fd, &watch);
	unseen_change_end(change, fd);
}

int family_watch(void)
{
	return watch;
}

/* An event unlike the end of a description. */
static void tell_apart(void)
{
	(void)sys_call4(SYS_pwrite64, my_lock, "", 1, 0);
}

/* Readable no more, it would be silent for those who have not looked yet: so they are woken once more. */
static void shorten_notices(void)
{
	char buf[512];
	int bytes = 0;

	if (notices < 0 || sys_call3(SYS_ioctl, notices, FIONREAD, &bytes) < 0 || bytes < ENDS_KEPT)
		return;
	while (sys_call3(SYS_read, notices, buf, sizeof(buf)) > 0)
		;
	tell_apart();
}

void family_watch_clear(void)
{
	struct epoll_event event;

	(void)sys_call6(SYS_epoll_pwait, watch, (long)&event, 1, 0, 0, 0);
	tell_apart();
}

/* The table of hidden numbers is to tell where it has moved. */
static void keep_lock(int fd)
{
	my_lock = fd;
	if (fd >= 0)
		fdtab_install_hidden(fd, &my_lock);
}

void family_join(void)
{
	uint32_t nobody = 0, member;
	int lock;

	if (load_relaxed(&family_me))
		return;
	member = take_number(&lock);
	if (compare_exchange(&family_me, &nobody, member))
		keep_lock(lock);
	else /* Another thread, or the code that this handler has interrupted, was first. */
		own_fd_close(lock);
}

uint32_t family_fork_prepare(bool heir_of_records)
{
	if (!founded)
		found();
	if (heir_of_records) {
		make_notices();
		make_watch();
		shorten_notices();
	}
	heir = heir_of_records ? take_number(&heir_lock) : 0;
	return heir;
}

void family_fork_parent(void)
{
	own_fd_close(heir_lock);
	heir_lock = -1;
}

void family_fork_child(void)
{
	own_fd_close(my_lock);
	keep_lock(heir_lock);
	heir_lock = -1;
	own_fd_close(watch);
	watch = -1;
	if (heir)
		make_watch();
	store_relaxed(&family_me, heir);
}

bool family_is_gone(uint32_t member)
{
	struct flock lock = byte_of(member);

	if (file < 0 || member == 0 || member & FAMILY_UNSURE || member == load_relaxed(&family_me))
		return false;
	return sys_fcntl(file, F_OFD_GETLK, (long)&lock) == 0 && lock.l_type == F_UNLCK;
}
