/* SPDX-License-Identifier: MIT */
/* See links.h. A forked child has the links of its parent, and the count with them. */
#include "shim/links.h"

#include "ringbuf/atomic.h"
#include "shim/options.h"

static _Atomic uint32_t nr_links;

bool links_take(void)
{
	uint32_t nr = load_relaxed(&nr_links);

	do {
		if (options.max_links && nr >= options.max_links)
			return false;
	} while (!compare_exchange(&nr_links, &nr, nr + 1));
	return true;
}

void links_give(void)
{
	fetch_sub(&nr_links, 1);
}

uint32_t links_nr(void)
{
	return load_relaxed(&nr_links);
}
