/* SPDX-License-Identifier: MIT */
#include "tests/unit/nego_bench.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/atomic.h"
#include "ringbuf/sys.h"
#include "shim/ceiling.h"
#include "shim/conn_holders.h"
#include "shim/far.h"
#include "shim/fdtab.h"
#include "shim/links.h"
#include "shim/own_fd.h"
#include "shim/ready.h"
#include "shim/renew.h"
#include "shim/real.h"
#include "shim/sandbox.h"
#include "tests/support/loopback.h"
#include "tests/support/rendezvous.h"

struct options options = { .transports = TRANSPORT_BIT_SHM, .ring_bytes = 65536, .patience_ms = 1000 };

struct seen seen;

int own_fd_adopt(int fd, int *holder)
{
	if (seen.hide_rc && !seen.hide_after--) {
		close(fd);
		return seen.hide_rc;
	}
	if (holder)
		*holder = fd;
	return fd;
}

/* What there is, test_nego_remote.c says. */
void *real_open_beside(const char *name, const char *needs, const char *symbol, bool *apart)
{
	return seen.engine;
}

int own_fd_room(void)
{
	return seen.few_fds ? seen.room : 1000;
}

int ready_adopt(struct conn *c)
{
	assert_true(seen.locked && c->link.rx.bells.bell_fd >= 0 && c->link.tx.bells.bell_fd >= 0);
	if (!seen.adopt_rc)
		seen.adopts++;
	return seen.adopt_rc;
}

bool ready_waits_to_be_armed(struct conn *c)
{
	assert_true(seen.locked);
	return seen.waits_to_be_armed;
}

bool ready_is_adopted(const struct conn *c)
{
	return false;
}

int ready_link_over(struct conn *c)
{
	seen.disowns++;
	return 0;
}

bool renew_is_off(const struct conn *c)
{
	return seen.off;
}

bool renew_is_clear(struct conn *c)
{
	return true;
}

enum renew_part renew_part(struct conn *c)
{
	return seen.part;
}

void conn_unseek(struct conn *c)
{
	seen.seeks--;
}

void conn_reap_holders(struct conn *c)
{
}

enum reason renew_weigh(struct conn *c)
{
	return REASON_NONE;
}

static const peer_u32 nothing_asked;
const peer_u32 *stats_off_word = &nothing_asked;

bool ready_watch(struct conn *c, int fd)
{
	assert_true(fcntl(fd, F_GETFD) >= 0);
	seen.watched++;
	return true;
}

void ready_unwatch(struct conn *c, int fd)
{
	assert_true(fcntl(fd, F_GETFD) >= 0);
	seen.watched--;
}

int conn_trylock_both(struct conn *c)
{
	void (*before_lock)(void) = seen.before_lock;

	assert_false(seen.locked);
	seen.before_lock = NULL;
	if (before_lock)
		before_lock();
	if (seen.busy)
		return -EBUSY;
	seen.locked = true;
	return 0;
}

void conn_unlock_both(struct conn *c)
{
	assert_true(seen.locked);
	seen.locked = false;
}

int conn_count_holders(struct conn *c)
{
	return load_relaxed(&c->nr_holders);
}

void conn_seek(struct conn *c)
{
	seen.seeks++;
}

int conn_frames_try(struct conn *c, int fd)
{
	return 0;
}

void renew_serve(struct conn *c, int fd)
{
}

bool ceiling_make_room(struct conn *c, enum reason why, int64_t now)
{
	(void)c;
	(void)now;
	assert_false(seen.locked);
	seen.room_asked++;
	seen.lacks = why;
	return seen.room_comes;
}

void ceiling_help(int64_t now)
{
	(void)now;
	assert_false(seen.locked);
	seen.helped++;
}

bool conn_pin(struct conn *c, enum reason why)
{
	assert_false(seen.locked);
	seen.pins++;
	seen.why = why;
	c->pinned = 1;
	store_relaxed(&c->reason, (uint8_t)why);
	return true;
}

void conn_tell_stats(struct conn *c, int fd)
{
	(void)c;
	(void)fd;
	assert_false(seen.locked);
}

void conn_linked(struct conn *c, const uint64_t nonce[2], const uint64_t peer_nonce[2])
{
	assert_true(seen.locked);
	seen.links++;
	memcpy(c->nonce, nonce, sizeof(c->nonce));
	memcpy(c->peer_nonce, peer_nonce, sizeof(c->peer_nonce));
	c->linked = 1;
}

int conn_learn_addresses(struct conn *c, int fd)
{
	socklen_t len = sizeof(c->local);

	if (c->have_addr)
		return 0;
	if (getsockname(fd, &c->local.any, &len))
		return -errno;
	len = sizeof(c->peer);
	if (getpeername(fd, &c->peer.any, &len))
		return -errno;
	len = sizeof(c->cookie);
	if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &c->cookie, &len))
		return -errno;
	c->have_addr = 1;
	return 0;
}

/* ---- two ends ---------------------------------------------------------------------------------------------------- */

struct bench bench;

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int nr = 0;

	assert_non_null(dir);
	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

void conn_blank(struct conn *c, enum conn_role role, uint32_t index)
{
	memset(c, 0, sizeof(*c));
	c->role = (uint8_t)role;
	c->live = 1;
	c->index = index;
	c->nr_holders = 1;
	c->link.rx.bells.bell_fd = -1;
	c->link.tx.bells.bell_fd = -1;
	nego_conn_init(&c->nego);
}

void bench_open(enum kind kind)
{
	struct sockaddr_storage ss = { 0 }, near;
	struct sockaddr_in *in4 = (struct sockaddr_in *)&ss;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&ss;
	socklen_t len = kind == V4 ? sizeof(*in4) : sizeof(*in6);

	seen = (struct seen){ .engine = seen.engine };
	bench.nr_fds = count_fds();
	if (kind == V4) {
		*in4 = loopback_address();
	} else {
		in6->sin6_family = AF_INET6;
		assert_int_equal(inet_pton(AF_INET6, kind == V6 ? "::1" : "::ffff:127.0.0.1", &in6->sin6_addr), 1);
	}
	assert_true(loopback_connect(&ss, len, &bench.connector_fd, &bench.acceptor_fd));
	assert_int_equal(getsockname(bench.connector_fd, (struct sockaddr *)&near, &len), 0);
	assert_int_equal(nego_tuple_make(&bench.tuple, (struct sockaddr *)&near, (struct sockaddr *)&ss), 0);
	conn_blank(&bench.connector, CONN_CONNECTED, 3);
	conn_blank(&bench.acceptor, CONN_ACCEPTED, 4);
}

static void end_close(struct conn *c)
{
	nego_leave(c);
	if (!c->linked)
		return;
	if (conn_is_far(c))
		far_leave(c);
	own_fd_close(c->link.rx.bells.bell_fd);
	own_fd_close(c->link.tx.bells.bell_fd);
	segment_close(&c->link.segment);
	links_give();
}

void bench_close(void)
{
	end_close(&bench.connector);
	end_close(&bench.acceptor);
	assert_int_equal(seen.watched, 0);
	close(bench.connector_fd);
	close(bench.acceptor_fd);
	assert_int_equal(count_fds(), bench.nr_fds);
}

void poke_by(struct conn *c, int fd)
{
	if (!fdtab.nr)
		assert_int_equal(fdtab_init(), 0);
	assert_true(fdtab_install(fd, c));
	nego_poke(c, fd);
	assert_ptr_equal(fdtab_remove(fd), c);
}

void poke_connector(void)
{
	poke_by(&bench.connector, bench.connector_fd);
}

void poke_acceptor(void)
{
	poke_by(&bench.acceptor, bench.acceptor_fd);
}

void move_counted(const char *text)
{
	char buf[64];
	size_t len = strlen(text);

	assert_int_equal(send(bench.connector_fd, text, len, 0), (ssize_t)len);
	assert_int_equal(recv(bench.acceptor_fd, buf, len, MSG_WAITALL), (ssize_t)len);
	bench.connector.tx.tcp_bytes += len;
	bench.acceptor.rx.tcp_bytes += len;
}

void assert_linked(void)
{
	assert_int_equal(seen.links, 2);
	assert_int_equal(seen.pins, 0);
	assert_memory_equal(bench.connector.nonce, bench.acceptor.peer_nonce, 16);
	assert_memory_equal(bench.acceptor.nonce, bench.connector.peer_nonce, 16);
	assert_memory_not_equal(bench.connector.nonce, bench.acceptor.nonce, 16);
	assert_int_equal(bench.connector.nego.phase, NEGO_AGREED);
	assert_int_equal(bench.acceptor.nego.phase, NEGO_AGREED);
}

/* ---- strangers --------------------------------------------------------------------------------------------------- */

int stranger_dial(void)
{
	int fd = rendezvous_dial(&bench.tuple);

	assert_true(fd >= 0);
	return fd;
}

int stranger_listen(void)
{
	int fd = rendezvous_listen(&bench.tuple);

	assert_true(fd >= 0);
	return fd;
}

void stranger_send(int link, const void *buf, size_t len, const int *fds, size_t nr)
{
	assert_int_equal(rendezvous_send(link, buf, len, fds, nr), (ssize_t)len);
}

struct nego_hello honest_hello(uint32_t ring_bytes)
{
	return (struct nego_hello){
		.tuple = bench.tuple,
		.self = { .nonce = { 1, 2 }, .data_key = 3, .room_key = 4, .data_port = 5, .room_port = 6 },
		.ring_bytes = ring_bytes,
		.segment_bytes = SEGMENT_BYTES(ring_bytes),
	};
}
