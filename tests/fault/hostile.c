/* SPDX-License-Identifier: MIT */
/*
 * A peer that speaks the protocol by hand and misbehaves in one way: hostile SCENARIO accept 4, hostile SCENARIO connect 4 PORT.
 * Its end of the conversation is held over TCP, or over the rings where it has switched honestly. Says "ok", or how the
 * conversation ended, or "peer: ..." (exit 3) where the victim did not do its part.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/lane.h"
#include "tests/fault/peer.h"

enum step { OFFERED, DIALLED, GREETED, LINKED, ANNOUNCED, ACKED, HALF_FRAME, FRAMED, NR_STEPS };

struct scenario {
	const char *name;
	enum step die_after;	/* NR_STEPS: lives */
	/* Replaces the rendezvous: called before each round until it says true. NULL: honest. */
	bool (*meet)(struct peer *p);
	/* Called before each round, from the one after the rendezvous on. */
	void (*play)(struct peer *p, int rounds_since);
};

static struct peer peer;
static const struct scenario *scenario;
static int met_at = -1;

static void reached(enum step step)
{
	if (scenario->die_after == step)
		raise(SIGKILL);
}

/* ---- rendezvous -------------------------------------------------------------------------------------------------- */

static bool is_connector(void)
{
	return peer.talk.role == TALK_CONNECTOR;
}

static bool come_together(struct peer *p)
{
	if (!(is_connector() ? peer_pick_up(p) : peer_dial(p)))
		return false;
	reached(DIALLED);
	return true;
}

static bool honest(struct peer *p)
{
	uint8_t wire[NEGO_HELLO_SIZE];
	struct nego_hello h;
	int fd;

	if (!come_together(p))
		return false;
	if (is_connector()) {
		peer_take_hello(p);
		reached(GREETED);
		peer_say_verdict(p);
	} else {
		fd = peer_make_segment(p);
		peer_hello(p, &h);
		nego_hello_encode(wire, &h);
		peer_send(p->link, wire, sizeof(wire), &fd, 1);
		close(fd);
		reached(GREETED);
		peer_take_verdict(p);
	}
	peer_close_link(p);
	reached(LINKED);
	return true;
}

/* Comes, and says nothing for ever. */
static bool mute(struct peer *p)
{
	return come_together(p);
}

static bool garbage(struct peer *p)
{
	if (!come_together(p))
		return false;
	peer_send(p->link, "how do you do", 13, NULL, 0);
	return true;
}

static bool oversized(struct peer *p)
{
	static uint8_t wire[4096];

	if (!come_together(p))
		return false;
	peer_send(p->link, wire, sizeof(wire), NULL, 0);
	return true;
}

static bool hangs_up(struct peer *p)
{
	if (!come_together(p))
		return false;
	peer_close_link(p);
	return true;
}

/* Only what an acceptor can do from here on: a HELLO with something wrong. */
static bool wrong_hello(struct peer *p, unsigned int at, int fd)
{
	uint8_t wire[NEGO_HELLO_SIZE];
	struct nego_hello h;
	int good;

	if (!come_together(p))
		return false;
	good = peer_make_segment(p);
	peer_hello(p, &h);
	nego_hello_encode(wire, &h);
	if (at < sizeof(wire))
		wire[at] ^= 3;
	if (fd < 0)
		fd = good;
	peer_send(p->link, wire, sizeof(wire), &fd, 1);
	close(good);
	return true;
}

static bool another_version(struct peer *p)
{
	return wrong_hello(p, 4, -1);
}

static bool another_connection(struct peer *p)
{
	return wrong_hello(p, 18, -1);
}

static bool no_seals(struct peer *p)
{
	int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)SEGMENT_BYTES(PEER_RING)))
		exit(2);
	return wrong_hello(p, NEGO_HELLO_SIZE, fd);
}

static bool wrong_size(struct peer *p)
{
	int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, 4096) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		exit(2);
	return wrong_hello(p, NEGO_HELLO_SIZE, fd);
}

/* ---- the switch -------------------------------------------------------------------------------------------------- */

static void announce_and_wait(struct peer *p)
{
	peer_announce(p);
	reached(ANNOUNCED);
	peer_await_ack(p);
	reached(ACKED);
}

static void switch_tx(struct peer *p)
{
	uint8_t frame[FRAME_SIZE];

	announce_and_wait(p);
	peer_frame(p, frame);
	if (scenario->die_after == HALF_FRAME)
		peer_write_tcp(p, frame, FRAME_SIZE / 2);
	reached(HALF_FRAME);
	peer_write_tcp(p, frame, FRAME_SIZE);
	reached(FRAMED);
	p->tx_on_ring = true;
}

static void play_honest(struct peer *p, int rounds_since)
{
	if (!rounds_since)
		switch_tx(p);
	p->acknowledges = true;
}

/* Linked, and never touches the segment again. */
static void play_absent(struct peer *p, int rounds_since)
{
}

/* What follows the acknowledgement is data, and nobody was told. */
static void play_no_frame(struct peer *p, int rounds_since)
{
	if (!rounds_since)
		announce_and_wait(p);
}

/* The lie stands: what is published honestly from now on goes nowhere. */
static void publish_tail(struct peer *p, uint64_t tail)
{
	static struct lane_front nowhere;

	peer_publish_u64(&peer_tx_front(p)->tail_pos, tail);
	p->ring.tx.front = &nowhere;
	peer_ring_bells(p);
}

static void publish_head(struct peer *p, uint64_t head)
{
	static struct lane_ctl nowhere;

	peer_publish_u64(&peer_rx_ctl(p)->rx.head_pos, head);
	p->ring.rx.ctl = &nowhere;
	peer_ring_bells(p);
}

static void play_tail_ahead(struct peer *p, int rounds_since)
{
	if (rounds_since)
		return;
	switch_tx(p);
	publish_tail(p, (uint64_t)p->ring.segment.ring_bytes + 1);
}

static void play_tail_back(struct peer *p, int rounds_since)
{
	if (!rounds_since)
		switch_tx(p);
	if (rounds_since == 3)
		publish_tail(p, 1);
}

static void play_head_ahead(struct peer *p, int rounds_since)
{
	static int lied;

	p->acknowledges = true;
	if (p->rx_on_ring && !lied++)
		publish_head(p, UINT64_C(1) << 40);
}

static void play_ack_unasked(struct peer *p, int rounds_since)
{
	lane_ack(peer_rx_ctl(p), 0x7fffffffu + (uint32_t)rounds_since);
	peer_ring_bells(p);
}

static void play_announce_past(struct peer *p, int rounds_since)
{
	lane_announce(peer_tx_ctl(p), 1 + (uint32_t)rounds_since, rounds_since & 1 ? 0 : UINT64_MAX);
	peer_ring_bells(p);
}

/* Everything but the header becomes noise; then it leaves, so that the victim ends whatever it made of it. */
static void play_scribble(struct peer *p, int rounds_since)
{
	uint64_t x = 88172645463325252u;

	if (rounds_since < 2) {
		play_honest(p, rounds_since);
		return;
	}
	for (uint64_t at = SEGMENT_LINE; at < p->ring.segment.bytes; at++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		p->ring.segment.base[at] = (uint8_t)x;
	}
	peer_ring_bells(p);
	_exit(0);
}

static const struct scenario scenarios[] = {
	{ "honest", NR_STEPS, NULL, play_honest },
	{ "mute", NR_STEPS, mute, NULL },
	{ "garbage", NR_STEPS, garbage, NULL },
	{ "oversized", NR_STEPS, oversized, NULL },
	{ "hangs-up", NR_STEPS, hangs_up, NULL },
	{ "version", NR_STEPS, another_version, NULL },
	{ "tuple", NR_STEPS, another_connection, NULL },
	{ "no-seals", NR_STEPS, no_seals, NULL },
	{ "wrong-size", NR_STEPS, wrong_size, NULL },
	{ "absent", NR_STEPS, NULL, play_absent },
	{ "no-frame", NR_STEPS, NULL, play_no_frame },
	{ "tail-ahead", NR_STEPS, NULL, play_tail_ahead },
	{ "tail-back", NR_STEPS, NULL, play_tail_back },
	{ "head-ahead", NR_STEPS, NULL, play_head_ahead },
	{ "ack-unasked", NR_STEPS, NULL, play_ack_unasked },
	{ "announce-past", NR_STEPS, NULL, play_announce_past },
	{ "scribble", NR_STEPS, NULL, play_scribble },
	{ "foreign", NR_STEPS, garbage, NULL },
	{ "die-offered", OFFERED, NULL, play_honest },
	{ "die-dialled", DIALLED, NULL, play_honest },
	{ "die-greeted", GREETED, NULL, play_honest },
	{ "die-linked", LINKED, NULL, play_honest },
	{ "die-announced", ANNOUNCED, NULL, play_honest },
	{ "die-acked", ACKED, NULL, play_honest },
	{ "die-half-frame", HALF_FRAME, NULL, play_honest },
	{ "die-framed", FRAMED, NULL, play_honest },
};

static void before_round(struct talk *t, int round)
{
	struct peer *p = (struct peer *)t;

	if (round == 1)
		reached(OFFERED);
	if (met_at < 0) {
		if (!(scenario->meet ? scenario->meet(p) : honest(p)))
			return;
		met_at = round;
	}
	if (scenario->play)
		scenario->play(p, round - met_at);
}

/* A port of our own before the connection exists, so that the offer can stand under its name. */
static int connect_with_offer(uint16_t port, bool foreign)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(fd, (struct sockaddr *)&in, len) || getsockname(fd, (struct sockaddr *)&in, &len))
		exit(2);
	if (foreign && seteuid(65534))
		exit(2);
	peer_offer(&peer, ntohs(in.sin_port), port);
	if (foreign && seteuid(0))
		exit(2);
	in.sin_port = htons(port);
	if (connect(fd, (struct sockaddr *)&in, len))
		exit(2);
	return fd;
}

int main(int argc, char **argv)
{
	bool foreign;
	int rc;

	alarm(40);
	for (size_t i = 0; argc > 2 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
		if (!strcmp(scenarios[i].name, argv[1]))
			scenario = &scenarios[i];
	if (!scenario) {
		fprintf(stderr, "usage: hostile SCENARIO accept 4, hostile SCENARIO connect 4 PORT\n");
		return 2;
	}
	foreign = !strcmp(argv[1], "foreign");
	peer.listener = peer.link = -1;
	peer.talk.send = peer_talk_send;
	peer.talk.recv = peer_talk_recv;
	peer.talk.before_round = before_round;
	peer.talk.role = argc > 4 ? TALK_CONNECTOR : TALK_ACCEPTOR;
	if (is_connector()) {
		peer.talk.fd = connect_with_offer((uint16_t)atoi(argv[4]), foreign);
	} else {
		peer.talk.fd = talk_accept('4');
		if (foreign && seteuid(65534))
			return 2;
	}
	peer_learn(&peer);
	rc = talk_run(&peer.talk);
	close(peer.talk.fd);
	printf("%s\n", rc ? peer.talk.error : met_at < 0 ? "never met" : "ok");
	return rc ? 1 : 0;
}
