/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_NEGO_ROW_H
#define RINGWAY_NEGO_ROW_H

/*
 * Inside the rendezvous: what an attempt holds in this process. Included by nego*.c only.
 *
 * A row exists from the first step of an attempt that needs a descriptor to the attempt's end. Whoever has both lane locks of the
 * connection owns its row.
 */

#include <stdbool.h>
#include <stdint.h>

#include "ringbuf/shm.h"
#include "ringbuf/stats.h"
#include "shim/conn.h"
#include "shim/nego.h"
#include "shim/nego_msg.h"
#include "shim/nego_remote_msg.h"

/* Accepted links that have not introduced themselves. */
#define NEGO_MAX_SILENT 4

struct verbs_attempt;

struct nego_row {
	_Atomic uint32_t owner;	/* index + 1 of the connection, 0: free */
	int watched;		/* what ready_watch() was told, -1: nothing */
	int listener;		/* connector: the offer */
	int silent[NEGO_MAX_SILENT];	/* connector: accepted, nothing said yet */
	uint32_t next_silent;	/* where the next one goes: the oldest of four */
	int link;		/* acceptor: the dialled link, HELLO sent */
	uint32_t strangers;	/* connector: turned away from this offer */
	/* The link in the making: c->link is shared with forked processes, these are this process's numbers and mapping. */
	int data_bell, room_bell;
	struct segment segment;
	uint64_t nonce[2];
	struct link_bells own;
	bool adopted;		/* ready_adopt() was called for it */
	bool counted;		/* links_take() was: the link takes that over */
	/* Between hosts (nego_remote.c) all but the bells is the engine's. */
	struct verbs_attempt *attempt;
	int attempt_fd;	/* its descriptor: what sleepers look at without a lock */
	bool waits;	/* the dial only says that there is no room here */
	bool undecided;	/* the peer is found, or waits for an answer, and the byte counts move */
	struct nego_remote_self peer;	/* what the other end has said */
};

/* The outcome of one step. */
enum nego_outcome {
	NEGO_LATER,	/* nothing new: the next poke is farther off */
	NEGO_SOON,	/* something moved, or stood in the way for a moment: at the next call */
	NEGO_LINKED,	/* conn_linked() was called */
	NEGO_FAILED,	/* *why says why, for good */
	NEGO_OFF,	/* not as long as *why lasts; what is under way ends */
};

/*
 * Is there room for one more attempt? 0; -EAGAIN for not now: the descriptors that are left are needed by those under way; -EMFILE: none
 * is under way, and there are none left. With the reason in *why.
 */
int nego_row_room(const struct conn *c, enum reason *why);

/*
 * There is to be a link. 0; -EDQUOT with the reason in *why: RINGWAY_MAX are there. Given back with the row.
 */
int nego_row_count(struct nego_row *row, enum reason *why);
void nego_row_uncount(struct nego_row *row);

/*
 * Would what a link failed for (-errno, *why) be there if another connection went back? Then that is noted, and that both ends know each other: true, and the step comes to
 * NEGO_LATER.
 */
bool nego_is_short(struct conn *c, int err, enum reason why);
/* Are there any that could? */
bool nego_others_have_links(void);

/* The peer runs Ringway, and one of the two has no room: they are not done with each other, and the acceptor dials again in a while. */
void nego_has_met(struct conn *c);
/* That it does: there was a link, or they have met. */
bool nego_is_known(const struct conn *c);
/* Why it is on TCP for as long as an attempt finds nothing. */
enum reason nego_silent_reason(const struct conn *c);

/* NULL if all rows are in use. */
struct nego_row *nego_row_take(struct conn *c);
/* Both at once; where it is NULL the step comes to *out. */
struct nego_row *nego_row_claim(struct conn *c, enum nego_outcome *out, enum reason *why);
/* The row of the connection in this process, or NULL. */
struct nego_row *nego_row_of(const struct conn *c);
/* Closes everything the row holds and gives it back. */
void nego_row_drop(struct conn *c);
/* A link in the making whose maker is gone: the record forgets it. */
void nego_link_blank(struct conn *c);
/* In a forked child: every row is the parent's, whose copies are closed. */
void nego_row_forget_all(void);
void nego_row_close(struct conn *c, struct nego_row *row, int *fd);
/* The fd that the connection waits for, -1: none. */
int nego_row_wait_fd(const struct nego_row *row);
/* Tells the readiness code of it, if it has changed. */
void nego_row_watch(struct conn *c, struct nego_row *row);

/* Bytes of each ring of a link that the acceptor makes, where nothing speaks for more. */
uint32_t nego_ring_bytes(void);
/*
 * What this end brings to a link: a segment of its own (`segment_fd` is then set to the memfd, the caller's to close) or the peer's, both
 * bells, a nonce; the readiness code adopts the connection. 0, -EAGAIN for not now, or -errno with the reason in *why, -EPROTO
 * being the peer's fault. Nothing is left behind on failure; unequip takes it all back.
 */
int nego_row_create(struct conn *c, struct nego_row *row, uint32_t ring_bytes, int *segment_fd, enum reason *why);
int nego_row_attach(struct conn *c, struct nego_row *row, uint32_t ring_bytes, int segment_fd, enum reason *why);
void nego_row_unequip(struct conn *c, struct nego_row *row);
void nego_row_self(struct conn *c, const struct nego_row *row, struct nego_self *self);
/* Takes the peer's half in, hands all of it to the connection and drops the row. */
void nego_row_link(struct conn *c, struct nego_row *row, const struct nego_self *peer);

/*
 * c->link has a segment and two bells at low numbers: the bells hidden, a nonce, the connection adopted. 0, -EAGAIN, or -errno with the reason in *why;
 * what there is by then is undone by unequip.
 */
int nego_row_equip(struct conn *c, struct nego_row *row, enum reason *why);
/* conn_linked() has all of it. */
void nego_row_done(struct conn *c, struct nego_row *row);

/* Hides a descriptor just made, -errno passed through; `*holder` has its number, and follows it if it must move. */
int nego_hide(int fd, int *holder);

/* The reason that stands for a failed system call: `otherwise` unless it is descriptors or memory that ran out. */
enum reason nego_reason_of(int err, enum reason otherwise);

/* Who owns the peer's socket. 0, -EAGAIN: not known yet, or -errno with the reason in *why. */
int nego_find_peer(const struct conn *c, const struct nego_tuple *t, uint32_t *uid, enum reason *why);
/* Does the other end of the link belong to `uid`? */
bool nego_peer_is(int link, uint32_t uid);
/* Are our counts the kernel's, and is `fd` still this connection? 0, -EAGAIN: they move, or -errno with the reason in *why. */
int nego_counts(struct conn *c, int fd, enum reason *why);

/*
 * One step of either side; the caller holds both lane locks. *why is what speaks for TCP so far: a step that ends with LATER
 * may set it, and one that fails does.
 */
enum nego_outcome nego_offer_step(struct conn *c, int fd, const struct nego_tuple *t, enum reason *why);
enum nego_outcome nego_dial_step(struct conn *c, int fd, const struct nego_tuple *t, enum reason *why);

#endif
