/* SPDX-License-Identifier: MIT */
#include "tests/fault/peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ringbuf/lane.h"
#include "shim/nego_link.h"
#include "tests/support/rendezvous.h"

static void give_up(const char *what)
{
	printf("peer: %s\n", what);
	fflush(stdout);
	_exit(3);
}

static void must(bool good, const char *what)
{
	if (!good)
		give_up(what);
}

static long now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void peer_until(struct peer *p, bool (*step)(struct peer *p), const char *what)
{
	long end = now_ms() + PEER_PATIENCE_MS;

	while (!step(p)) {
		must(now_ms() < end, what);
		sched_yield();
	}
}

static void tuple_of(struct peer *p, const struct sockaddr *mine, const struct sockaddr *theirs)
{
	bool connector = p->talk.role == TALK_CONNECTOR;

	must(!nego_tuple_make(&p->tuple, connector ? mine : theirs, connector ? theirs : mine), "no tuple");
}

void peer_learn(struct peer *p)
{
	struct sockaddr_storage mine, theirs;
	socklen_t len = sizeof(mine), len2 = sizeof(theirs);

	must(!getsockname(p->talk.fd, (struct sockaddr *)&mine, &len) &&
	     !getpeername(p->talk.fd, (struct sockaddr *)&theirs, &len2), "no address");
	tuple_of(p, (struct sockaddr *)&mine, (struct sockaddr *)&theirs);
}

void peer_offer(struct peer *p, uint16_t local, uint16_t port)
{
	struct sockaddr_in mine = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) }, .sin_port = htons(local) };
	struct sockaddr_in theirs = mine;

	theirs.sin_port = htons(port);
	tuple_of(p, (struct sockaddr *)&mine, (struct sockaddr *)&theirs);
	p->listener = rendezvous_listen(&p->tuple);
	must(p->listener >= 0, "no offer");
}

bool peer_dial(struct peer *p)
{
	p->link = rendezvous_dial(&p->tuple);
	return p->link >= 0;
}

bool peer_pick_up(struct peer *p)
{
	p->link = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
	return p->link >= 0;
}

static void make_self(struct peer *p)
{
	must(getrandom(p->self.nonce, sizeof(p->self.nonce), 0) == sizeof(p->self.nonce), "no nonce");
	p->self.data_key = p->own.data.key;
	p->self.data_port = p->own.data.port;
	p->self.room_key = p->own.room.key;
	p->self.room_port = p->own.room.port;
	p->self.read_bytes = p->talk.got;
}

static void meet(struct peer *p)
{
	struct link_bells theirs = {
		.data = { .key = p->theirs.data_key, .port = p->theirs.data_port },
		.room = { .key = p->theirs.room_key, .port = p->theirs.room_port },
	};

	shm_meet(&p->ring, &theirs);
	p->linked = true;
}

int peer_make_segment(struct peer *p)
{
	int fd = shm_create(&p->ring, PEER_RING, &p->own);

	must(fd >= 0, "no segment");
	make_self(p);
	return fd;
}

void peer_hello(struct peer *p, struct nego_hello *h)
{
	*h = (struct nego_hello){
		.tuple = p->tuple,
		.self = p->self,
		.ring_bytes = PEER_RING,
		.segment_bytes = SEGMENT_BYTES(PEER_RING),
	};
}

void peer_send(int link, const void *buf, size_t len, const int *fds, size_t nr)
{
	/* A victim that has hung up already needs no more of it. */
	must(rendezvous_send(link, buf, len, fds, nr) >= 0 || errno == EPIPE || errno == ECONNRESET, "link send");
}

static int link_recv(struct peer *p, void *buf, size_t room, int *fd)
{
	struct pollfd pfd = { .fd = p->link, .events = POLLIN };

	must(poll(&pfd, 1, PEER_PATIENCE_MS) == 1, "nothing came over the link");
	return nego_link_recv(p->link, buf, room, fd);
}

void peer_take_hello(struct peer *p)
{
	uint8_t wire[NEGO_HELLO_SIZE];
	struct nego_hello h;
	int fd = -1, n = link_recv(p, wire, sizeof(wire), &fd);

	must(n > 0 && fd >= 0 && !nego_hello_decode(&h, wire, (size_t)n), "no HELLO");
	must(nego_tuple_equal(&h.tuple, &p->tuple), "a HELLO for somebody else");
	must(!shm_attach(&p->ring, fd, (uint32_t)h.ring_bytes, &p->own), "no attach");
	close(fd);
	make_self(p);
	p->theirs = h.self;
}

void peer_say_verdict(struct peer *p)
{
	struct nego_verdict_msg v = { .verdict = NEGO_AGREE, .self = p->self };
	uint8_t wire[NEGO_VERDICT_SIZE];

	nego_verdict_encode(wire, &v);
	peer_send(p->link, wire, sizeof(wire), NULL, 0);
	meet(p);
}

void peer_take_verdict(struct peer *p)
{
	uint8_t wire[NEGO_VERDICT_SIZE];
	struct nego_verdict_msg v;
	int n = link_recv(p, wire, sizeof(wire), NULL);

	must(n > 0 && !nego_verdict_decode(&v, wire, (size_t)n) && v.verdict == NEGO_AGREE, "no agreement");
	p->theirs = v.self;
	meet(p);
}

void peer_close_link(struct peer *p)
{
	if (p->link >= 0)
		close(p->link);
	p->link = -1;
}

struct lane_ctl *peer_tx_ctl(struct peer *p)
{
	return p->ring.tx.ctl;
}

struct lane_ctl *peer_rx_ctl(struct peer *p)
{
	return p->ring.rx.ctl;
}

struct lane_front *peer_tx_front(struct peer *p)
{
	return p->ring.tx.front;
}

/* Both, armed or not: a wake-up too many does no harm. */
void peer_ring_bells(struct peer *p)
{
	bell_ring(p->ring.tx.bells.bell_fd, &p->ring.tx.bells.peer);
	bell_ring(p->ring.rx.bells.bell_fd, &p->ring.rx.bells.peer);
}

void peer_announce(struct peer *p)
{
	p->announced_at = p->talk.sent;
	lane_announce(peer_tx_ctl(p), 1, p->announced_at);
	peer_ring_bells(p);
}

static bool acked(struct peer *p)
{
	return lane_acked(peer_tx_ctl(p), 1);
}

void peer_await_ack(struct peer *p)
{
	peer_until(p, acked, "no acknowledgement");
}

void peer_frame(struct peer *p, uint8_t frame[FRAME_SIZE])
{
	frame_make(frame, FRAME_SWITCH, p->self.nonce, p->theirs.nonce, p->announced_at);
}

void peer_write_tcp(struct peer *p, const void *buf, size_t len)
{
	must(send(p->talk.fd, buf, len, MSG_NOSIGNAL) == (ssize_t)len, "tcp send");
}

void peer_acknowledge(struct peer *p)
{
	uint64_t at = 0;
	uint32_t seq = lane_announced(peer_rx_ctl(p), &at);

	if (!seq || p->acked_seq || p->rx_on_ring || lane_voided(peer_rx_ctl(p), seq) || at < p->talk.got)
		return;
	p->acked_seq = seq;
	p->acked_at = at;
	lane_ack(peer_rx_ctl(p), seq);
	peer_ring_bells(p);
}

/* At S: the frame, or data after all. The look at the bytes comes before the look at the void, see PROTOCOL.md. */
static bool at_frame(struct peer *p)
{
	uint8_t expected[FRAME_SIZE], got[FRAME_SIZE];
	ssize_t n = recv(p->talk.fd, got, FRAME_SIZE, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return errno != EAGAIN;
	frame_make(expected, FRAME_SWITCH, p->theirs.nonce, p->self.nonce, p->acked_at);
	if (n == FRAME_SIZE && !memcmp(expected, got, FRAME_SIZE)) {
		must(recv(p->talk.fd, got, FRAME_SIZE, 0) == FRAME_SIZE, "tcp recv");
		p->rx_on_ring = true;
		return true;
	}
	if (!n || memcmp(expected, got, (size_t)n) || lane_voided(peer_rx_ctl(p), p->acked_seq)) {
		p->acked_seq = 0;
		return true;
	}
	return false;
}

static ssize_t ring_recv(struct peer *p, void *buf, size_t len)
{
	long end = now_ms() + PEER_PATIENCE_MS;

	for (;;) {
		ssize_t n = ring_read(&p->ring.rx, buf, len);
		char byte;

		must(n >= 0, "their ring lies");
		if (n) {
			peer_ring_bells(p);
			return n;
		}
		/* The end of the stream; what was put into the ring before it is there now. */
		if (recv(p->talk.fd, &byte, 1, MSG_DONTWAIT) == 0)
			return ring_read(&p->ring.rx, buf, len);
		must(now_ms() < end, "nothing in the ring");
		sched_yield();
	}
}

static ssize_t ring_send(struct peer *p, const void *buf, size_t len)
{
	long end = now_ms() + PEER_PATIENCE_MS;

	for (;;) {
		ssize_t n = ring_write(&p->ring.tx, buf, len);

		must(n >= 0, "their head lies");
		peer_ring_bells(p);
		if (n)
			return n;
		must(now_ms() < end, "no room in the ring");
		sched_yield();
	}
}

ssize_t peer_talk_send(struct talk *t, const void *buf, size_t len)
{
	struct peer *p = (struct peer *)t;

	return p->tx_on_ring ? ring_send(p, buf, len) : send(t->fd, buf, len, MSG_NOSIGNAL);
}

/* Looks for announcements for as long as nothing comes: a victim that waits for our answer stands still. */
static bool something_came(struct peer *p)
{
	char byte;

	peer_acknowledge(p);
	return recv(p->talk.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

ssize_t peer_talk_recv(struct talk *t, void *buf, size_t len)
{
	struct peer *p = (struct peer *)t;

	if (p->acknowledges && !p->acked_seq)
		peer_until(p, something_came, "nothing came");

	if (p->acked_seq && !p->rx_on_ring) {
		if (p->acked_at > t->got) {
			if (len > p->acked_at - t->got)
				len = (size_t)(p->acked_at - t->got);
			return recv(t->fd, buf, len, 0);
		}
		peer_until(p, at_frame, "neither frame nor data");
	}
	return p->rx_on_ring ? ring_recv(p, buf, len) : recv(t->fd, buf, len, 0);
}
