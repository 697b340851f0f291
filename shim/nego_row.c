/* SPDX-License-Identifier: MIT */
/* What an attempt holds in this process, and the checks that both sides make. */
#include "shim/nego_row.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/clock.h"
#include "shim/diag.h"
#include "shim/links.h"
#include "shim/nego_remote.h"
#include "shim/options.h"
#include "shim/own_fd.h"
#include "shim/ready.h"

#define NEGO_ROWS 1024

#define RING_USUAL (UINT32_C(256) << 10) /* with RINGWAY_RING=auto */

/* Untouched rows cost no memory. More attempts at once than rows: the rest is asked again later. */
static struct nego_row rows[NEGO_ROWS];
static _Atomic uint32_t rows_end;	/* no row at or beyond it was ever taken */
static _Atomic uint32_t nr_under_way[CONN_ACCEPTED + 1];	/* rows in use, by role */
static _Atomic uint32_t nr_counted;	/* ... that have a place for a link */

enum { FDS_OF_LINK = 2, FDS_OF_ATTEMPT = 1 + FDS_OF_LINK };

/* Between two dials, while there is no room. */
#define ROOM_AGAIN_NS UINT64_C(10000000)
#define REMOTE_AGAINS 16	/* ... to another host, of its patience */

static void row_blank(struct nego_row *row)
{
	row->watched = -1;
	row->listener = -1;
	row->link = -1;
	for (int i = 0; i < NEGO_MAX_SILENT; i++)
		row->silent[i] = -1;
	row->next_silent = 0;
	row->strangers = 0;
	row->adopted = false;
	row->counted = false;
	row->attempt = NULL;
	row->attempt_fd = -1;
	row->undecided = false;
	row->waits = false;
	row->data_bell = -1;
	row->room_bell = -1;
	row->segment = (struct segment){ 0 };
}

/*
 * Bells are what is wanted; listeners and links only lead to them. Where descriptors are few (own_fd.c), many attempts at once would take
 * them all, and none would come to its bells. A dial gets them at once, but so does the offer that it goes to, which may be ours.
 */
int nego_row_room(const struct conn *c, enum reason *why)
{
	int offers = (int)load_relaxed(&nr_under_way[CONN_CONNECTED]), dials = (int)load_relaxed(&nr_under_way[CONN_ACCEPTED]);
	int to_come = c->role == CONN_CONNECTED || offers <= dials ? offers : dials + 1;

	if (own_fd_room() >= FDS_OF_ATTEMPT + FDS_OF_LINK * to_come)
		return 0;
	*why = REASON_NO_FDS;
	return offers + dials ? -EAGAIN : -EMFILE;
}

int nego_row_count(struct nego_row *row, enum reason *why)
{
	if (row->counted)
		return 0;
	row->counted = links_take();
	if (row->counted) {
		fetch_add(&nr_counted, 1);
		return 0;
	}
	*why = REASON_CEILING;
	return -EDQUOT;
}

void nego_row_uncount(struct nego_row *row)
{
	if (!row->counted)
		return;
	row->counted = false;
	fetch_sub(&nr_counted, 1);
	links_give();
}

void nego_has_met(struct conn *c)
{
	c->nego.known = true;
	c->nego.dials = 0;
	if (c->role != CONN_ACCEPTED)
		return;
	c->nego.again_ns = coarse_ns() + (c->nego.remote ? options.patience_ms * UINT64_C(1000000) / REMOTE_AGAINS : ROOM_AGAIN_NS);
}

static bool has_switched(const struct conn *c)
{
	return load_relaxed(&((struct conn *)c)->switches) != 0;
}

bool nego_is_known(const struct conn *c)
{
	return has_switched(c) || c->nego.known;
}

enum reason nego_silent_reason(const struct conn *c)
{
	return has_switched(c) ? REASON_RETREAT : c->nego.known ? REASON_CEILING : REASON_PEER_SILENT;
}

bool nego_others_have_links(void)
{
	return links_nr() > load_relaxed(&nr_counted);
}

bool nego_is_short(struct conn *c, int err, enum reason why)
{
	bool never = err == -EFBIG || err == -EAGAIN;
	bool of_room = why == REASON_CEILING || why == REASON_NO_FDS || why == REASON_NO_MEMORY || why == REASON_MEMLOCK;

	if (!of_room || never || (why != REASON_CEILING && !nego_others_have_links()))
		return false;
	c->nego.short_of = (uint8_t)why;
	nego_has_met(c);
	return true;
}

struct nego_row *nego_row_take(struct conn *c)
{
	for (uint32_t at = 0; at < NEGO_ROWS; at++) {
		uint32_t owner = 0, end = load_relaxed(&rows_end);

		if (load_relaxed(&rows[at].owner) || !compare_exchange(&rows[at].owner, &owner, c->index + 1))
			continue;
		while (end <= at && !compare_exchange(&rows_end, &end, at + 1))
			;
		fetch_add(&nr_under_way[c->role], 1);
		row_blank(&rows[at]);
		c->nego.slot = at + 1;
		return &rows[at];
	}
	return NULL;
}

struct nego_row *nego_row_claim(struct conn *c, enum nego_outcome *out, enum reason *why)
{
	int rc = nego_row_room(c, why);

	*out = rc && rc != -EAGAIN ? NEGO_FAILED : NEGO_LATER;
	return rc ? NULL : nego_row_take(c);
}

/* The record may hold the slot of another process: a child whose parent was in the middle of an attempt. */
struct nego_row *nego_row_of(const struct conn *c)
{
	uint32_t slot = c->nego.slot;

	if (!slot || slot > NEGO_ROWS || load_relaxed(&rows[slot - 1].owner) != c->index + 1)
		return NULL;
	return &rows[slot - 1];
}

void nego_row_close(struct conn *c, struct nego_row *row, int *fd)
{
	if (*fd < 0)
		return;
	if (*fd == row->watched) {
		ready_unwatch(c, *fd);
		row->watched = -1;
	}
	own_fd_close(*fd);
	*fd = -1;
}

static void row_close_sockets(struct conn *c, struct nego_row *row)
{
	nego_row_close(c, row, &row->listener);
	nego_row_close(c, row, &row->link);
	for (int i = 0; i < NEGO_MAX_SILENT; i++)
		nego_row_close(c, row, &row->silent[i]);
}

static void row_release(struct conn *c, struct nego_row *row)
{
	row_close_sockets(c, row);
	nego_row_uncount(row);
	c->nego.slot = 0;
	fetch_sub(&nr_under_way[c->role], 1);
	store_release(&row->owner, 0); /* pairs with nego_row_take() */
}

void nego_row_drop(struct conn *c)
{
	struct nego_row *row = nego_row_of(c);

	if (!row)
		return;
	nego_remote_drop(c, row);
	nego_row_unequip(c, row);
	row_release(c, row);
}

void nego_row_done(struct conn *c, struct nego_row *row)
{
	if (row->counted)
		fetch_sub(&nr_counted, 1);
	row->counted = false;
	row_release(c, row);
}

/*
 * The record is shared with the parent, so it is left as it is. Sockets are closed by number: the wrappers' table of hidden
 * numbers was copied, the parent's descriptors were too.
 */
void nego_row_forget_all(void)
{
	for (uint32_t i = 0, end = load_relaxed(&rows_end); i < end; i++) {
		struct nego_row *row = &rows[i];

		if (!load_relaxed(&row->owner))
			continue;
		row->watched = -1;
		own_fd_close(row->listener);
		own_fd_close(row->link);
		for (int k = 0; k < NEGO_MAX_SILENT; k++)
			own_fd_close(row->silent[k]);
		own_fd_close(row->data_bell);
		own_fd_close(row->room_bell);
		segment_close(&row->segment);
		nego_row_uncount(row);
		store_relaxed(&row->owner, 0);
	}
	store_relaxed(&nr_under_way[CONN_CONNECTED], 0);
	store_relaxed(&nr_under_way[CONN_ACCEPTED], 0);
}

/* The newest link that has said nothing is likeliest to speak next: its HELLO follows its connect(). */
int nego_row_wait_fd(const struct nego_row *row)
{
	if (row->attempt_fd >= 0)
		return row->attempt_fd;
	for (uint32_t i = 0; i < NEGO_MAX_SILENT; i++) {
		uint32_t at = (row->next_silent + NEGO_MAX_SILENT - 1 - i) % NEGO_MAX_SILENT;

		if (row->silent[at] >= 0)
			return row->silent[at];
	}
	return row->link >= 0 ? row->link : row->listener;
}

void nego_row_watch(struct conn *c, struct nego_row *row)
{
	int fd = nego_row_wait_fd(row);

	if (fd == row->watched)
		return;
	if (row->watched >= 0)
		ready_unwatch(c, row->watched);
	row->watched = fd >= 0 && ready_watch(c, fd) ? fd : -1;
}

int nego_hide(int fd, int *holder)
{
	if (fd < 0) {
		*holder = -1;
		return fd;
	}
	fd = own_fd_adopt(fd, holder);
	if (fd < 0)
		*holder = -1;
	return fd;
}

enum reason nego_reason_of(int err, enum reason otherwise)
{
	switch (err) {
	case -EMFILE:
	case -ENFILE:
		return REASON_NO_FDS;
	case -ENOMEM:
	case -ENOBUFS:
	case -EFBIG:
		return REASON_NO_MEMORY;
	default:
		return otherwise;
	}
}

void nego_link_blank(struct conn *c)
{
	shm_blank(&c->link);
}

/* Bells do not move later: their numbers stand in a record that forked processes share. */
static int bell_hide(int *bell, int fd)
{
	*bell = own_fd_adopt(fd, NULL);
	return *bell < 0 ? *bell : 0;
}

int nego_row_equip(struct conn *c, struct nego_row *row, enum reason *why)
{
	int rc, rc2;

	row->segment = c->link.segment;
	rc = bell_hide(&row->data_bell, c->link.rx.bells.bell_fd);
	rc2 = bell_hide(&row->room_bell, c->link.tx.bells.bell_fd);
	shm_move_bells(&c->link, row->data_bell, row->room_bell);
	if (rc || rc2) {
		*why = REASON_NO_FDS;
		return -EMFILE;
	}
	if (sys_getrandom(row->nonce, sizeof(row->nonce), 1 /* GRND_NONBLOCK */) != sizeof(row->nonce) ||
	    !(row->nonce[0] | row->nonce[1])) {
		*why = REASON_SECCOMP;
		return -EIO;
	}
	rc = ready_adopt(c);
	if (rc) {
		*why = rc == -EAGAIN ? REASON_ONE_SHOT : nego_reason_of(rc, REASON_NO_FDS);
		return rc;
	}
	row->adopted = true;
	return 0;
}

/* What making memory and bells can be refused for. */
static enum reason make_reason(int err)
{
	switch (err) {
	case -EPROTO:
		return REASON_BAD_SEGMENT;
	case -EAFNOSUPPORT:
	case -EPROTONOSUPPORT:
		return REASON_NO_BELL;
	case -EPERM:
	case -EACCES:
	case -ENOSYS:
		return REASON_SECCOMP;
	default:
		return nego_reason_of(err, REASON_NO_MEMORY);
	}
}

uint32_t nego_ring_bytes(void)
{
	return options.ring_bytes == OPTION_RING_AUTO ? RING_USUAL : options.ring_bytes;
}

int nego_row_create(struct conn *c, struct nego_row *row, uint32_t ring_bytes, int *segment_fd, enum reason *why)
{
	int rc, fd = shm_create(&c->link, ring_bytes, &row->own);

	if (fd < 0) {
		*why = make_reason(fd);
		nego_link_blank(c);
		return fd;
	}
	rc = nego_row_equip(c, row, why);
	if (rc) {
		nego_row_unequip(c, row);
		sys_close(fd);
		return rc;
	}
	*segment_fd = fd;
	return 0;
}

int nego_row_attach(struct conn *c, struct nego_row *row, uint32_t ring_bytes, int segment_fd, enum reason *why)
{
	int rc = shm_attach(&c->link, segment_fd, ring_bytes, &row->own);

	if (rc) {
		*why = make_reason(rc);
		nego_link_blank(c);
		return rc;
	}
	rc = nego_row_equip(c, row, why);
	if (rc)
		nego_row_unequip(c, row);
	return rc;
}

void nego_row_unequip(struct conn *c, struct nego_row *row)
{
	if (!row->segment.base)
		return;
	if (row->adopted)
		ready_link_over(c);
	row->adopted = false;
	nego_link_blank(c);
	own_fd_close(row->data_bell);
	own_fd_close(row->room_bell);
	row->data_bell = -1;
	row->room_bell = -1;
	segment_close(&row->segment);
	row->segment = (struct segment){ 0 };
}

void nego_row_self(struct conn *c, const struct nego_row *row, struct nego_self *self)
{
	*self = (struct nego_self){
		.nonce = { row->nonce[0], row->nonce[1] },
		.data_key = row->own.data.key,
		.room_key = row->own.room.key,
		.data_port = row->own.data.port,
		.room_port = row->own.room.port,
		.read_bytes = load_relaxed(&c->rx.tcp_bytes),
	};
}

void nego_row_link(struct conn *c, struct nego_row *row, const struct nego_self *peer)
{
	struct link_bells theirs = {
		.data = { .key = peer->data_key, .port = peer->data_port },
		.room = { .key = peer->room_key, .port = peer->room_port },
	};

	shm_meet(&c->link, &theirs);
	conn_linked(c, row->nonce, peer->nonce);
	nego_row_done(c, row);
}

/*
 * The look-up says ENOENT both when no socket has the 4-tuple and when the kernel has no look-up. Our own socket is there for
 * certain, so it tells the two apart.
 */
int nego_find_peer(const struct conn *c, const struct nego_tuple *t, uint32_t *uid, enum reason *why)
{
	enum diag_side theirs = c->role == CONN_CONNECTED ? DIAG_ACCEPTOR : DIAG_CONNECTOR;
	enum diag_side ours = c->role == CONN_CONNECTED ? DIAG_CONNECTOR : DIAG_ACCEPTOR;
	uint32_t scope = c->local.any.sa_family == AF_INET6 ? c->local.in6.sin6_scope_id : 0;
	struct diag_socket s;
	int rc = diag_lookup(&s, t, theirs, scope);

	if (rc == -ENOENT) {
		rc = diag_lookup(&s, t, ours, scope);
		*why = rc ? REASON_NO_DIAG : s.cookie == c->cookie ? REASON_NO_PEER : REASON_STALE_FD;
		return -ENOENT;
	}
	if (rc) {
		*why = nego_reason_of(rc, REASON_NO_DIAG);
		return rc;
	}
	if (!s.open || !s.inode)
		return -EAGAIN;
	if (!diag_uid_is_exact(s.uid)) {
		*why = REASON_PEER_UID;
		return -EACCES;
	}
	*uid = s.uid;
	return 0;
}

bool nego_peer_is(int link, uint32_t uid)
{
	struct ucred cred = { 0 };
	unsigned int len = sizeof(cred);

	return !sys_getsockopt(link, SOL_SOCKET, SO_PEERCRED, &cred, &len) && len == sizeof(cred) && cred.uid == uid;
}

int nego_counts(struct conn *c, int fd, enum reason *why)
{
	struct diag_bytes b;
	uint64_t cookie = 0;
	unsigned int len = sizeof(cookie);
	int rc = diag_counts(fd, c->role == CONN_CONNECTED, &b);

	if (rc == -EAGAIN)
		return rc;
	if (rc || sys_getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len)) {
		*why = REASON_NO_DIAG;
		return -ENOSYS;
	}
	if (cookie != c->cookie) {
		*why = REASON_STALE_FD;
		return -EBADF;
	}
	if (!b.writable && !b.readable)
		return -EAGAIN;
	if (b.written != load_relaxed(&c->tx.tcp_bytes) || b.read != load_relaxed(&c->rx.tcp_bytes)) {
		*why = REASON_COUNT_MISMATCH;
		return -EPROTO;
	}
	return 0;
}
