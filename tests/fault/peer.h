/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_FAULT_PEER_H
#define RINGWAY_TESTS_FAULT_PEER_H

/*
 * The protocol spoken by hand, after PROTOCOL.md, by a program without the preload: enough of it to be honest, and a place to lie
 * at every step. Waits are bounded by PEER_PATIENCE_MS and end the program with 3.
 */

#include <stdbool.h>
#include <stdint.h>

#include "ringbuf/shm.h"
#include "shim/frame.h"
#include "shim/nego_msg.h"
#include "tests/fault/talk.h"

enum { PEER_RING = 65536, PEER_PATIENCE_MS = 15000 };

struct peer {
	struct talk talk;	/* first: the hooks are given this */
	struct nego_tuple tuple;
	int listener, link;	/* of the rendezvous, -1: none */
	struct ring_link ring;
	struct link_bells own;
	struct nego_self self, theirs;
	bool linked, acknowledges, tx_on_ring, rx_on_ring;
	uint64_t announced_at, acked_at;
	uint32_t acked_seq;	/* 0: nothing acknowledged */
};

/* The address pair of a connected socket. */
void peer_learn(struct peer *p);
/* Connector: the offer, before the connection exists. `local` is bound to its port already. */
void peer_offer(struct peer *p, uint16_t local, uint16_t port);
/* Nobody there yet: false. */
bool peer_dial(struct peer *p);
bool peer_pick_up(struct peer *p);

/* What travels over the link. The memfd of a HELLO is the caller's to close. */
int peer_make_segment(struct peer *p);
void peer_hello(struct peer *p, struct nego_hello *h);
void peer_send(int link, const void *buf, size_t len, const int *fds, size_t nr);
/* Connector: waits for a HELLO and takes its segment. Acceptor: waits for a VERDICT, which must agree. */
void peer_take_hello(struct peer *p);
void peer_take_verdict(struct peer *p);
void peer_say_verdict(struct peer *p);
void peer_close_link(struct peer *p);

/* The switch of our tx lane, step by step. */
void peer_announce(struct peer *p);
void peer_await_ack(struct peer *p);
void peer_frame(struct peer *p, uint8_t frame[FRAME_SIZE]);
void peer_write_tcp(struct peer *p, const void *buf, size_t len);

/* The peer's tx lane: acknowledges an announcement that has come. */
void peer_acknowledge(struct peer *p);

struct lane_ctl *peer_tx_ctl(struct peer *p);
struct lane_ctl *peer_rx_ctl(struct peer *p);
struct lane_front *peer_tx_front(struct peer *p);
void peer_ring_bells(struct peer *p);

/* Hooks of the talk that go by whatever road each lane is on. */
ssize_t peer_talk_send(struct talk *t, const void *buf, size_t len);
ssize_t peer_talk_recv(struct talk *t, void *buf, size_t len);

/* Runs `step` until it says true, giving the processor away in between. */
void peer_until(struct peer *p, bool (*step)(struct peer *p), const char *what);

#endif
