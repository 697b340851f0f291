/* SPDX-License-Identifier: MIT */
#include "shim/maps.h"

#include <fcntl.h>

#include "ringbuf/sys.h"

/* -1: no more. */
static int next_byte(struct maps *m)
{
	ssize_t n;

	if (m->next == m->len) {
		n = sys_read(m->fd, m->bytes, sizeof(m->bytes));
		if (n <= 0)
			return -1;
		m->len = (size_t)n;
		m->next = 0;
	}
	return (unsigned char)m->bytes[m->next++];
}

/* A number, and what comes behind it. */
static int next_number(struct maps *m, uintptr_t *number)
{
	int c;

	for (*number = 0;; *number = *number << 4 | (uintptr_t)(c <= '9' ? c - '0' : c - 'a' + 10)) {
		c = next_byte(m);
		if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
			return c;
	}
}

bool maps_open(struct maps *m)
{
	m->len = 0;
	m->next = 0;
	m->fd = sys_openat(AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
	return m->fd >= 0;
}

bool maps_next(struct maps *m, uintptr_t *from, uintptr_t *to, char *said, size_t size)
{
	size_t len = 0;

	if (next_number(m, from) != '-' || next_number(m, to) != ' ')
		return false;
	for (int c; (c = next_byte(m)) >= 0 && c != '\n';)
		if (said && len + 1 < size)
			said[len++] = (char)c;
	if (said)
		said[len] = 0;
	return true;
}

void maps_close(struct maps *m)
{
	sys_close(m->fd);
}
