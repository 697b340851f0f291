/* SPDX-License-Identifier: MIT */
/*
 * A page on which whoever touches it stops, in the middle of what it was doing, until it is told to go on: this is how a thread is
 * held inside a call of ours, or of the kernel's, that reads its arguments there. Needs the privilege to handle page faults.
 */
#ifndef RINGWAY_TESTS_TRAP_H
#define RINGWAY_TESTS_TRAP_H

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRAP_BYTES 4096

struct trap {
	char *page;
	int faults;
	char content[TRAP_BYTES] __attribute__((aligned(TRAP_BYTES)));
};

/* `content` is what stands in the page once it is open. False: not allowed here. */
static inline bool trap_set(struct trap *t, const void *content, size_t len)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register all = { .mode = UFFDIO_REGISTER_MODE_MISSING };

	memcpy(t->content, content, len);
	t->faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (t->faults < 0)
		return false;
	t->page = mmap(NULL, TRAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(t->page != MAP_FAILED);
	all.range.start = (uintptr_t)t->page;
	all.range.len = TRAP_BYTES;
	assert_int_equal(ioctl(t->faults, UFFDIO_API, &api), 0);
	assert_int_equal(ioctl(t->faults, UFFDIO_REGISTER, &all), 0);
	return true;
}

/* Until somebody stands in it. */
static inline void trap_await(struct trap *t)
{
	struct uffd_msg msg;

	assert_int_equal(read(t->faults, &msg, sizeof(msg)), sizeof(msg));
	assert_int_equal(msg.event, UFFD_EVENT_PAGEFAULT);
}

static inline void trap_open(struct trap *t)
{
	struct uffdio_copy copy = { .dst = (uintptr_t)t->page, .src = (uintptr_t)t->content, .len = TRAP_BYTES };

	assert_int_equal(ioctl(t->faults, UFFDIO_COPY, &copy), 0);
}

static inline void trap_clear(struct trap *t)
{
	close(t->faults);
	munmap(t->page, TRAP_BYTES);
}

#endif
