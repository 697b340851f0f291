/* SPDX-License-Identifier: MIT */
/* See epoll_fired.h. */
#include "shim/epoll_fired.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "ringbuf/sys.h"
#include "shim/text.h"

/* Many registrations make a long text, which is read with the set locked: then it is not worth it. */
#define READ_MAX 16384

/* What the kernel leaves of a registration's events when it has fired. */
#define LEFT_OF_FIRED ((uint32_t)EPOLLONESHOT | (uint32_t)EPOLLET | (uint32_t)EPOLLWAKEUP | (uint32_t)EPOLLEXCLUSIVE)

/* The lines of one number: two, where another file had it before and lives on elsewhere, say nothing. */
struct seen {
	int fd, lines;
	bool fired;
};

static void take_line(struct seen *s, const char *line)
{
	const char *events;

	if (strncmp(line, "tfd:", 4) != 0 || atoi(line + 4) != s->fd)
		return;
	events = strstr(line, "events:");
	if (!events)
		return;
	s->lines++;
	s->fired = !(strtoul(events + 7, NULL, 16) & ~(unsigned long)LEFT_OF_FIRED);
}

/* Whole lines are taken; what of one is not there yet is moved to the front. */
static size_t take_lines(struct seen *s, char *bytes, size_t len)
{
	char *line = bytes, *end;

	while ((end = memchr(line, '\n', len - (size_t)(line - bytes))) != NULL) {
		*end = 0;
		take_line(s, line);
		line = end + 1;
	}
	len -= (size_t)(line - bytes);
	memmove(bytes, line, len);
	return len;
}

static int open_fdinfo(int epfd)
{
	char path[64];
	struct text text;

	text_start(&text, path, sizeof(path));
	text_add(&text, "/proc/self/fdinfo/");
	text_add_number(&text, (uint64_t)epfd, 10);
	text_end(&text);
	return sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
}

bool epoll_has_fired(int epfd, int fd)
{
	struct seen seen = { .fd = fd };
	char bytes[512];
	size_t len = 0, total = 0;
	ssize_t n = 0;
	int info = open_fdinfo(epfd);

	if (info < 0)
		return false;
	while (total < READ_MAX && len < sizeof(bytes) && (n = sys_read(info, bytes + len, sizeof(bytes) - len)) > 0) {
		total += (size_t)n;
		len = take_lines(&seen, bytes, len + (size_t)n);
	}
	sys_close(info);
	return n == 0 && seen.lines == 1 && seen.fired;
}
