/* SPDX-License-Identifier: MIT */
/* What pinned.h has out of line. */
#include "shim/pinned.h"

#include "shim/plain.h"

void pinned_note(struct conn *c, int fd)
{
	/* Held, it cannot be given back and used anew before the entry is made. */
	if (load_relaxed(&c->linked) || !conn_hold(c, fd))
		return;
	if (load_acquire(&c->tx.mode) == MODE_PINNED && load_acquire(&c->rx.mode) == MODE_PINNED && !load_relaxed(&c->linked))
		fdtab_set_pinned(fd, c);
	conn_drop(c);
}

ssize_t pinned_end(int fd)
{
	struct conn *c = fdtab_get(fd);

	return c ? plain_end(c, 0) : 0;
}

ssize_t pinned_tell(struct conn *c, int fd, uint64_t had, ssize_t n)
{
	if (plain_is_step(had, (uint64_t)n))
		conn_tell_stats(c, fd);
	return n;
}
