/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_NEGO_STATE_H
#define RINGWAY_NEGO_STATE_H

/*
 * The part of a connection record that the rendezvous keeps.
 *
 * The record is shared by every process that holds the connection, file descriptors are not: sockets of an attempt that is
 * under way stand in a table private to one process (nego_row.c), and `slot` says which row. Only the one process that holds
 * the connection negotiates, under both lane locks.
 */

#include <stdbool.h>
#include <stdint.h>

enum nego_phase {
	NEGO_IDLE,	/* below the threshold, or between two attempts */
	NEGO_OFFERED,	/* connector: the listener stands, nobody has introduced itself */
	NEGO_DIALLED,	/* acceptor: HELLO is sent, VERDICT is awaited */
	NEGO_AGREED,	/* both ends have the segment: the switch has the rest */
	NEGO_OVER,	/* given up: never looked at again */
};

#define NEGO_NEVER UINT64_MAX

struct nego_part {
	uint64_t due_calls;	/* nego_poke() is due at this many data calls on the connection; NEGO_NEVER: no more */
	uint64_t due_bytes;	/* or at this many bytes, both directions together */
	uint64_t first_ns;	/* CLOCK_MONOTONIC_COARSE of the first attempt */
	uint64_t last_ns;	/* between hosts: of the last step, and of the dial that is under way */
	uint64_t dial_ns;
	uint32_t attempts;	/* steps so far without news, the exponent of the distance to the next */
	uint32_t dials;		/* links dialled so far: bounds what a peer that never agrees can cost */
	uint32_t phase;		/* enum nego_phase */
	uint32_t slot;		/* row + 1 in the private table of the process that negotiates, 0: none */
	uint32_t remote;	/* the peer is on another host, or is to be met as if it were */
	uint32_t stalled;	/* the last poke found a lane in use: the wait fd is not worth waking for */
	uint32_t unproven;	/* pokes at which nothing said that the program waits for the connection through us */
	uint32_t again;		/* attempts (an acceptor's, between hosts: dials) that a connection has made in vain since it came back from its last ring */
	uint32_t rests;		/* its link was given up, and nothing has moved since */
	uint64_t again_ns;	/* an acceptor dials then, and not before, though there was nobody on another host, or no room */
	uint8_t known;		/* the peer runs Ringway, and one of the two had no room for a link when they met */
	uint8_t short_of;	/* enum reason: this end, in the step that is under way */
	uint8_t peer_short;	/* the peer has said so in it */
	uint8_t lost;		/* links between hosts that have died under it */
	uint32_t dry;		/* calls on TCP in a row that found nothing to take, or no room, while the program spins */
};

/* There is something for nego_poke() to do though no step is due. */
static inline void nego_look_soon(struct nego_part *np)
{
	np->due_calls = 0;
}

/* The peer is looked for, or will be. */
static inline bool nego_is_under_way(const struct nego_part *np)
{
	return np->phase < NEGO_AGREED;
}

/* The only thing that a data call on plain TCP pays: two compares. */
static inline bool nego_due(const struct nego_part *np, uint64_t calls, uint64_t bytes)
{
	return calls >= np->due_calls || bytes >= np->due_bytes;
}

#endif
