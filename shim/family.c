/* SPDX-License-Identifier: MIT */
/* See family.h. */
#include "shim/family.h"

#include <errno.h>
#include <fcntl.h>

#include "ringbuf/sys.h"
#include "shim/fdtab.h"
#include "shim/own_fd.h"
#include "shim/text.h"

#define FOUNDER UINT32_C(1)

_Atomic uint32_t family_me;

static struct family *family;
static bool founded;	/* the first fork of all has been: nobody makes another file */
static int file = -1;	/* without locks of its own: who asks through it meets all others' */
static int my_lock = -1;
static int heir_lock = -1;
static uint32_t heir;

void family_init(struct family *shared)
{
	family = shared;
	store_relaxed(&family->last_member, FOUNDER);
	store_relaxed(&family_me, FOUNDER);
}

static struct flock byte_of(uint32_t member)
{
	return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = member, .l_len = 1 };
}

/* Another description of the file, at a low number. */
static int open_again(void)
{
	char path[32];
	struct text text;

	text_start(&text, path, sizeof(path));
	text_add(&text, "/proc/self/fd/");
	text_add_number(&text, (uint64_t)file, 10);
	text_end(&text);
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
	store_relaxed(&family_me, heir);
}

bool family_is_gone(uint32_t member)
{
	struct flock lock = byte_of(member);

	if (file < 0 || member == 0 || member & FAMILY_UNSURE || member == load_relaxed(&family_me))
		return false;
	return sys_fcntl(file, F_OFD_GETLK, (long)&lock) == 0 && lock.l_type == F_UNLCK;
}
