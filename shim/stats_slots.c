/* SPDX-License-Identifier: MIT */
/* See stats_slots.h. */
#include "shim/stats_slots.h"

#include <string.h>

#include "shim/conn.h"
#include "shim/own_fd.h"
#include "shim/program.h"
#include "shim/sandbox.h"

static struct stats_writer writer;
static int segment_fd = -1;

static const peer_u32 nothing_asked;
const peer_u32 *stats_off_word = &nothing_asked;

enum { UNMADE, BEING_MADE, MADE, REFUSED };
static _Atomic int segment_state;

int stats_slots_init(void)
{
	store_relaxed(&segment_state, UNMADE);
	return 0;
}

/* One thread makes it; the others do without until it is there. */
static bool have_segment(void)
{
	int state = load_acquire(&segment_state); /* pairs with the store below: the writer is complete */
	int fd;

	if (likely(state != UNMADE))
		return state == MADE;
	if (!compare_exchange(&segment_state, &state, BEING_MADE))
		return false;
	fd = stats_create(&writer, program_name, CONN_MAX);
	if (fd >= 0)
		fd = own_fd_adopt(fd, &segment_fd);
	if (fd < 0)
		stats_abandon(&writer);
	else
		stats_off_word = &writer.header->any_off;
	store_release(&segment_state, fd < 0 ? REFUSED : MADE);
	return fd >= 0;
}

void stats_slots_make(void)
{
	if (unlikely(load_relaxed(&segment_state) == UNMADE) && sandbox_why() == REASON_NONE)
		(void)have_segment();
}

struct stats_slot *stats_slot_of(const struct conn *c)
{
	struct stats_slot *slot;

	if (load_acquire(&segment_state) != MADE)
		return NULL;
	slot = stats_slot_at(&writer, c->index);
	return slot && load_relaxed(&slot->generation.peer_word) & 1 ? slot : NULL;
}

static void describe(const struct conn *c, int fd, struct stats_identity *identity)
{
	*identity = (struct stats_identity){ .fd = fd, .family = c->local.any.sa_family };
	if (identity->family == AF_INET) {
		identity->local_port = ntohs(c->local.in.sin_port);
		identity->peer_port = ntohs(c->peer.in.sin_port);
		memcpy(identity->local_addr, &c->local.in.sin_addr, sizeof(c->local.in.sin_addr));
		memcpy(identity->peer_addr, &c->peer.in.sin_addr, sizeof(c->peer.in.sin_addr));
	} else {
		identity->local_port = ntohs(c->local.in6.sin6_port);
		identity->peer_port = ntohs(c->peer.in6.sin6_port);
		memcpy(identity->local_addr, &c->local.in6.sin6_addr, sizeof(c->local.in6.sin6_addr));
		memcpy(identity->peer_addr, &c->peer.in6.sin6_addr, sizeof(c->peer.in6.sin6_addr));
	}
}

/* In a cage it does not try: one refused call could be the end of the process. */
void stats_slots_open(struct conn *c, int fd)
{
	struct stats_identity identity;

	if (stats_slot_of(c) || sandbox_why() != REASON_NONE || !have_segment() || conn_learn_addresses(c, fd) < 0)
		return;
	describe(c, fd, &identity);
	(void)stats_slot_open(&writer, c->index, &identity);
}

void stats_slots_close(const struct conn *c)
{
	struct stats_slot *slot = stats_slot_of(c);

	if (slot)
		stats_slot_close(slot);
}

bool stats_is_off(const struct conn *c)
{
	const struct stats_slot *slot = stats_slot_of(c);

	if (load_acquire(&segment_state) != MADE)
		return false;
	return peer_read_u32(&writer.header->all_off) || (slot && peer_read_u32(&slot->off));
}

void stats_slots_in_child(void)
{
	stats_off_word = &nothing_asked;
	stats_abandon(&writer);
	own_fd_close(segment_fd);
	segment_fd = -1;
	store_relaxed(&segment_state, UNMADE);
}
