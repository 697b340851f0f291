/* SPDX-License-Identifier: MIT */
/*
 * Two ends of a verbs link on a real device, with nothing of the shim: what test_engine.py runs in the guests.
 *
 *	far ENGINE offer ADDRESS PORT MODE [NUMBER]
 *	far ENGINE dial ADDRESS PEER PORT MODE [NUMBER]
 *
 * ENGINE is libringway-verbs.so. Modes: stream N (the dialler sends N bytes, checked by position), duplex N (both do), threads N (in a
 * thread for each direction), pingpong N, pingspin N (without sleeping), burst (the dialler sends small messages and then sleeps for good), forever (until the link dies). Says
 * "ready" when it listens, "linked" when it may send, and what it counted as one JSON object at the end. Exit 0: as it should be; 3:
 * the link died.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ringbuf/verbs.h"

#define RING_BYTES (UINT32_C(1) << 18)
#define SECONDS 300
#define PIECE 65536
#define QUIET_MS 2000
#define PATIENCE_MS 10000	/* an emulated machine that shares its processors can stand still for seconds */

static const struct verbs_table *verbs;
static struct ring_link far_link;

static void die(const char *what, int code)
{
	printf("{\"failed\":\"%s\",\"code\":%d}\n", what, code);
	exit(1);
}

static uint8_t byte_at(uint64_t pos)
{
	return (uint8_t)(pos * 7 + (pos >> 8) * 31 + (pos >> 16));
}

static union {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
} addr[2];

static const struct sockaddr *address(int i, const char *text, const char *port)
{
	if (inet_pton(AF_INET, text, &addr[i].in.sin_addr) == 1) {
		addr[i].in.sin_family = AF_INET;
		addr[i].in.sin_port = htons((uint16_t)atoi(port));
	} else if (inet_pton(AF_INET6, text, &addr[i].in6.sin6_addr) == 1) {
		addr[i].in6.sin6_family = AF_INET6;
		addr[i].in6.sin6_port = htons((uint16_t)atoi(port));
	} else {
		die("address", 0);
	}
	return &addr[i].any;
}

static enum verbs_step next_step(struct verbs_attempt *a)
{
	struct pollfd p = { .fd = verbs->attempt_fd(a), .events = POLLIN };
	enum verbs_step step;

	while ((step = verbs->step(a)) == VERBS_WAIT)
		poll(&p, 1, -1);
	if (step == VERBS_FAILED)
		die("rendezvous", (int)verbs->attempt_error(a));
	return step;
}

static void take_memory(const struct verbs_attempt *a, struct verbs_memory *peer)
{
	size_t len;
	const void *msg = verbs->message(a, &len);

	if (len < sizeof(*peer))
		die("message", (int)len);
	memcpy(peer, msg, sizeof(*peer));
	if (peer->ring_bytes != RING_BYTES)
		die("ring size", (int)peer->ring_bytes);
}

static void meet_by_offer(const char *local, const char *port)
{
	struct verbs_memory own, peer;
	struct verbs_attempt *a;
	int r = verbs->offer(&a, address(0, local, port));

	if (r)
		die("offer", r);
	puts("ready");
	fflush(stdout);
	while (next_step(a) != VERBS_ASKED)
		;
	take_memory(a, &peer);
	r = verbs->equip(a, &far_link, RING_BYTES, LANE_OF_ATTACHER, &own);
	if (r)
		die("equip", r);
	verbs->meet(a, &peer);
	verbs->set_patience(a, PATIENCE_MS);
	r = verbs->answer(a, &own, sizeof(own));
	if (r)
		die("answer", r);
	while (next_step(a) != VERBS_UP)
		;
	verbs->end(a);
}

static void meet_by_dial(const char *local, const char *peer_address, const char *port)
{
	struct verbs_memory own, peer;
	struct verbs_attempt *a;
	int r = verbs->dial(&a, address(0, local, "0"), address(1, peer_address, port));

	if (r)
		die("dial", r);
	while (next_step(a) != VERBS_ROUTED)
		;
	r = verbs->equip(a, &far_link, RING_BYTES, LANE_OF_CREATOR, &own);
	if (r)
		die("equip", r);
	verbs->set_patience(a, PATIENCE_MS);
	r = verbs->ask(a, &own, sizeof(own));
	if (r)
		die("ask", r);
	while (next_step(a) != VERBS_ANSWERED)
		;
	take_memory(a, &peer);
	verbs->meet(a, &peer);
	verbs->end(a);
}

static unsigned lost, quiet; /* wake-ups; times that nothing came for long */
static int64_t began_ms;

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

static void finish(uint64_t sent, uint64_t received, int dead)
{
	const struct verbs_counts *c = verbs->counts(&far_link);
#define COUNT(name) (unsigned long long)load_relaxed(&((struct verbs_counts *)c)->name)

	printf("{\"sent\":%llu,\"received\":%llu,\"dead\":%d,\"wr\":%llu,\"doorbells\":%llu,\"cqes\":%llu,\"send_cqes\":%llu,"
	       "\"recvs\":%llu,\"recv_posts\":%llu,\"credits\":%llu,\"fetches\":%llu,\"arms\":%llu,\"events\":%llu,\"status\":%llu,\"lost\":%u,\"quiet\":%u,\"ms\":%lld}\n",
	       (unsigned long long)sent, (unsigned long long)received, dead, COUNT(wr), COUNT(doorbells), COUNT(cqes), COUNT(send_cqes),
	       COUNT(recvs), COUNT(recv_posts), COUNT(credits), COUNT(fetches), COUNT(arms), COUNT(events), COUNT(status), lost, quiet,
	       (long long)(now_ms() - began_ms));
	verbs->close(&far_link);
	exit(dead ? 3 : 0);
}

/*
 * After a long silence: is there something that nothing has told of? An armed queue makes its event before what it is about can be seen. Then
 * asks whether the peer lives, which TCP would tell if it were here.
 */
static void look_for_lost(struct pollfd p[2])
{
	uint64_t tail = ring_rx_published(&far_link.rx), head = peer_read_u64(&far_link.tx.ctl->rx.head_pos);

	quiet++;
	verbs->pump(&far_link, 0);
	if (tail != ring_rx_published(&far_link.rx) || head != peer_read_u64(&far_link.tx.ctl->rx.head_pos))
		lost += !poll(p, 2, 0);
	verbs->pump(&far_link, VERBS_PROBE);
	poll(p, 2, 0);
}

/* The sleep that every caller of the engine makes. */
static int sleep_for(bool rx, size_t want)
{
	const struct transport_ops *ops = far_link.ops;
	struct pollfd p[2] = { { .fd = verbs->wait_fd(&far_link), .events = POLLIN },
			       { .fd = rx ? link_rx_fd(&far_link) : link_tx_fd(&far_link), .events = POLLIN } };

	if (rx ? ops->rx_sleep_begin(&far_link) : ops->tx_sleep_begin(&far_link, want)) {
		ring_rx_take_attention(&far_link.rx);
		ring_tx_take_attention(&far_link.tx);
		return verbs->pump(&far_link, VERBS_EMPTY);
	}
	if (!poll(p, 2, QUIET_MS))
		look_for_lost(p);
	if (p[0].revents)
		verbs->pump(&far_link, VERBS_RUNG);
	if (rx)
		link_rx_sleep_end(&far_link, p[1].revents != 0);
	else
		link_tx_sleep_end(&far_link, p[1].revents != 0);
	return verbs->pump(&far_link, 0);
}

static uint64_t sent, received;
static uint64_t enough = UINT64_MAX; /* received so many, with which the peer says that it may go */

static ssize_t put(size_t len)
{
	static uint8_t buf[PIECE];
	ssize_t n;

	for (size_t i = 0; i < len; i++)
		buf[i] = byte_at(sent + i);
	n = far_link.ops->send(&far_link, buf, len);
	if (n < 0)
		die("send", (int)n);
	sent += (uint64_t)n;
	return n;
}

static ssize_t take(size_t len)
{
	static uint8_t buf[PIECE];
	ssize_t n = far_link.ops->recv(&far_link, buf, len);

	if (n < 0)
		die("recv", (int)n);
	for (ssize_t i = 0; i < n; i++)
		if (buf[i] != byte_at(received + (uint64_t)i))
			die("wrong byte", (int)((received + (uint64_t)i) & INT32_MAX));
	received += (uint64_t)n;
	return n;
}

static size_t some(size_t most)
{
	return 1 + (size_t)random() % most;
}

static void sleep_or_finish(bool rx)
{
	int dead = sleep_for(rx, PIECE);

	if (dead) {
		while (take(PIECE))
			;
		finish(sent, received, received == enough ? 0 : dead);
	}
}

static void stream(bool sends, bool receives, uint64_t bytes)
{
	while ((sends && sent < bytes) || (receives && received < bytes)) {
		uint64_t left = sends ? bytes - sent : 0;
		size_t len = some(PIECE);
		ssize_t out = 0, in = 0;

		if (left)
			out = put(left < len ? (size_t)left : len);
		if (receives && received < bytes)
			in = take(some(PIECE));
		if (!out && !in)
			sleep_or_finish(receives && received < bytes);
	}
}

static void *send_all(void *arg)
{
	uint64_t bytes = *(uint64_t *)arg;

	while (sent < bytes) {
		size_t len = some(PIECE / 16);

		if (!put(bytes - sent < len ? (size_t)(bytes - sent) : len))
			sleep_or_finish(false);
	}
	return NULL;
}

/* One thread sends, one receives: each takes what the other's look would have found. */
static void threads(uint64_t bytes)
{
	pthread_t sender;

	if (pthread_create(&sender, NULL, send_all, &bytes))
		die("thread", 0);
	stream(false, true, bytes);
	pthread_join(sender, NULL);
}

static void pingpong(bool first, uint64_t rounds, bool spin)
{
	for (uint64_t i = 0; i < rounds; i++) {
		if (first)
			put(8);
		for (size_t got = 0; got < 8;) {
			ssize_t n = take(8 - got);

			got += (size_t)n;
			if (!n && !spin)
				sleep_or_finish(true);
		}
		if (!first)
			put(8);
	}
}

static void burst(bool sends)
{
	for (int i = 0; sends && i < 200; i++)
		put(8);
	if (sends) {
		puts("sent");
		fflush(stdout);
		pause();
	}
	while (!sends && received < 1600)
		if (!take(PIECE))
			sleep_or_finish(true);
}

/* A last byte each way: nobody takes its queue pair down before the other has said that it has everything. */
static void part(uint64_t expected)
{
	int r = verbs->flush(&far_link, PATIENCE_MS);

	if (r)
		die("flush", r);
	while (!put(1))
		sleep_or_finish(false);
	enough = expected + 1;
	while (received < enough)
		if (!take(1))
			sleep_or_finish(true);
	/* The other one may have gone by now. */
	verbs->flush(&far_link, PATIENCE_MS);
}

/* How many bytes this end was to receive. */
static uint64_t talk(const char *mode, bool dialled, uint64_t number)
{
	if (!strcmp(mode, "stream")) {
		stream(dialled, !dialled, number);
		return dialled ? 0 : number;
	}
	if (!strcmp(mode, "pingpong") || !strcmp(mode, "pingspin")) {
		pingpong(dialled, number, !strcmp(mode, "pingspin"));
		return 8 * number;
	}
	if (!strcmp(mode, "duplex"))
		stream(true, true, number);
	else if (!strcmp(mode, "threads"))
		threads(number);
	else if (!strcmp(mode, "burst"))
		burst(dialled);
	else if (!strcmp(mode, "forever"))
		stream(true, true, UINT64_MAX / 2);
	else
		die("mode", 0);
	return number;
}

int main(int argc, char **argv)
{
	bool dials = argc > 2 && !strcmp(argv[2], "dial");
	char **rest = argv + (dials ? 6 : 5);
	uint64_t expected;
	void *object;

	if (argc < (dials ? 7 : 6))
		die("arguments", argc);
	alarm(SECONDS);
	srandom((unsigned)getpid());
	object = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	verbs = object ? dlsym(object, VERBS_TABLE_SYMBOL) : NULL;
	if (!verbs || verbs->abi != VERBS_ABI || verbs->bytes != sizeof(*verbs))
		die(object ? "table" : dlerror(), 0);
	if (dials)
		meet_by_dial(argv[3], argv[4], argv[5]);
	else
		meet_by_offer(argv[3], argv[4]);
	puts("linked");
	fflush(stdout);
	began_ms = now_ms();
	expected = talk(rest[0], dials, rest[1] ? strtoull(rest[1], NULL, 0) : 0);
	if (strcmp(rest[0], "burst"))
		part(expected);
	finish(sent, received, 0);
}
