/* SPDX-License-Identifier: MIT */
#include "tests/unit/conn_bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/shm.h"
#include "shim/asleep.h"
#include "shim/fdtab.h"
#include "shim/links.h"
#include "shim/nego.h"
#include "shim/options.h"
#include "shim/own_fd.h"
#include "shim/ready.h"
#include "shim/real.h"
#include "shim/signals.h"
#include "shim/stats_slots.h"
#include "shim/summary.h"
#include "tests/support/loopback.h"

#define RING_BYTES 4096

struct options options = { .spin_us = 0, .transports = TRANSPORT_BIT_SHM, .patience_ms = 1000, .summary_path = "asked for" };
struct told told;
_Atomic uint64_t signals_restart, signals_norestart, signals_uncounted;
_Atomic uint32_t signals_leave;

int asleep_in_poll(struct pollfd *fds, nfds_t nr, int64_t ns, const sigset_t *mask, uint64_t since)
{
	struct timespec left = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
	int n;

	if (told.sleeps_for)
		told.sleeps_for(ns);
	n = ppoll(fds, nr, ns < 0 ? NULL : &left, mask);
	told.sleeps++;
	return n < 0 ? -errno : n;
}

void signals_hold_now(struct signals_held *h)
{
	h->held = false;
}

void signals_hold_these(struct signals_held *h, uint64_t these)
{
	h->held = false;
}

void signals_release_now(const struct signals_held *h)
{
}

int own_fd_adopt(int fd, int *holder)
{
	if (holder)
		*holder = fd;
	return fd;
}

void *real_open_beside(const char *name, const char *needs, const char *symbol, bool *apart)
{
	return NULL;
}

void ready_changed(struct conn *c)
{
	told.changed++;
}

void nego_conn_init(struct nego_part *np)
{
	np->due_calls = NEGO_NEVER;
	np->due_bytes = NEGO_NEVER;
}

void nego_poke(struct conn *c, int fd)
{
}

void nego_came_back_dry(struct conn *c)
{
}

int nego_wait_fd(const struct conn *c)
{
	return -1;
}

void nego_abandon(struct conn *c)
{
}

void nego_leave(struct conn *c)
{
}

void summary_add_connection(void)
{
}

void summary_add_retreated(void)
{
	told.retreated++;
}

void summary_add_switch(void)
{
	told.switches++;
}

void summary_add_retreat(void)
{
	told.retreats++;
}

int ready_part(struct conn *c)
{
	return told.no_part;
}

static peer_u32 any_off;
const peer_u32 *stats_off_word = &any_off;

bool stats_is_off(const struct conn *c)
{
	if (told.looks)
		told.looks();
	return told.off;
}

void bench_off(bool off)
{
	told.off = off;
	peer_publish_u32(&any_off, off);
}

void bench_when_looked(void (*looks)(void))
{
	told.looks = looks;
	peer_publish_u32(&any_off, looks != NULL);
}

void summary_add_switched(unsigned int transport)
{
}

void summary_add_bytes(uint64_t tcp_tx, uint64_t tcp_rx, uint64_t ring_tx, uint64_t ring_rx)
{
	told.tcp_tx += tcp_tx;
	told.tcp_rx += tcp_rx;
	told.ring_tx += ring_tx;
	told.ring_rx += ring_rx;
}

void summary_add_verbs(uint64_t wr, uint64_t doorbells, uint64_t cqes)
{
	told.wr += wr;
	told.doorbells += doorbells;
	told.cqes += cqes;
}

void summary_add_reason(unsigned int reason)
{
	told.reasons[reason]++;
}

struct stats_slot *stats_slot_of(const struct conn *c)
{
	return NULL;
}

void stats_slots_open(struct conn *c, int fd)
{
}

int bench_setup_group(void **state)
{
	(void)state;
	return fdtab_init() || conn_arena_init();
}

struct bench bench_open(void)
{
	struct sockaddr_in at = loopback_address();
	struct bench b;

	told = (struct told){ 0 };
	assert_true(loopback_connect(&at, sizeof(at), &b.a_fd, &b.b_fd));
	assert_int_equal(fcntl(b.a_fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(fcntl(b.b_fd, F_SETFL, O_NONBLOCK), 0);
	b.a = conn_opened(CONN_CONNECTED, true);
	b.b = conn_opened(CONN_ACCEPTED, true);
	assert_non_null(b.a);
	assert_non_null(b.b);
	assert_true(fdtab_install(b.a_fd, b.a) && fdtab_install(b.b_fd, b.b));
	return b;
}

void bench_agree(struct bench *b)
{
	static const uint64_t nonce_a[2] = { 0x1111, 0x2222 }, nonce_b[2] = { 0x3333, 0x4444 };

	assert_int_equal(conn_trylock_both(b->a), 0);
	assert_true(links_take() && links_take());
	conn_linked(b->a, nonce_a, nonce_b);
	conn_unlock_both(b->a);
	assert_int_equal(conn_trylock_both(b->b), 0);
	conn_linked(b->b, nonce_b, nonce_a);
	conn_unlock_both(b->b);
}

void bench_link(struct bench *b)
{
	struct link_bells bells_a, bells_b;
	int fd = shm_create(&b->b->link, RING_BYTES, &bells_b);

	assert_true(fd >= 0);
	assert_int_equal(shm_attach(&b->a->link, fd, RING_BYTES, &bells_a), 0);
	close(fd);
	shm_meet(&b->a->link, &bells_b);
	shm_meet(&b->b->link, &bells_a);
	bench_agree(b);
}

void bench_switch(struct bench *b)
{
	char byte;

	for (int i = 0; i < 8 && !(conn_tx_on_ring(b->a) && conn_tx_on_ring(b->b)); i++) {
		assert_int_equal(conn_send(b->a, b->a_fd, "x", 1, 0), 1);
		assert_int_equal(conn_recv(b->b, b->b_fd, &byte, 1, 0), 1);
		assert_int_equal(conn_send(b->b, b->b_fd, "y", 1, 0), 1);
		assert_int_equal(conn_recv(b->a, b->a_fd, &byte, 1, 0), 1);
	}
	assert_true(conn_tx_on_ring(b->a) && conn_rx_on_ring(b->a));
	assert_true(conn_tx_on_ring(b->b) && conn_rx_on_ring(b->b));
}

struct bench bench_on_rings(void)
{
	struct bench b = bench_open();

	bench_link(&b);
	bench_switch(&b);
	setsockopt(b.a_fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
	setsockopt(b.b_fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
	return b;
}

static void close_one(struct conn **c, int *fd)
{
	if (*fd < 0)
		return;
	assert_ptr_equal(fdtab_remove(*fd), *c);
	conn_release(*c, *fd);
	close(*fd);
	*c = NULL;
	*fd = -1;
}

void bench_close_a(struct bench *b)
{
	close_one(&b->a, &b->a_fd);
}

void bench_close_b(struct bench *b)
{
	close_one(&b->b, &b->b_fd);
}

void bench_close(struct bench *b)
{
	bench_close_a(b);
	bench_close_b(b);
}
