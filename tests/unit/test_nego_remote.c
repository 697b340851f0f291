/* SPDX-License-Identifier: MIT */
/* The rendezvous between hosts: both ends in one process, over the real engine and the double of its device. */
#include "tests/unit/nego_bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/far.h"
#include "shim/nego_remote.h"
#include "tests/unit/verbs_fake.h"

extern const struct verbs_table ringway_verbs;

static void remote_open(enum kind kind)
{
	fake_reset();
	options.transports = TRANSPORT_BIT_VERBS;
	seen.engine = (void *)(uintptr_t)&ringway_verbs;
	bench_open(kind);
}

static void remote_close(void)
{
	bench_close();
	assert_int_equal(fake_live(), 0);
}

static void poke_both(int times)
{
	for (int i = 0; i < times; i++) {
		poke_connector();
		poke_acceptor();
	}
}

static void two_ends_meet(void **state)
{
	for (enum kind kind = V4; kind < NR_KINDS; kind++) {
		remote_open(kind);
		move_counted("hello");
		errno = EDOM;
		poke_both(6);
		assert_int_equal(errno, EDOM);
		assert_linked();
		assert_true(conn_is_far(&bench.connector) && conn_is_far(&bench.acceptor));
		assert_int_equal(bench.connector.link.segment.ring_bytes, 65536);
		assert_int_equal(seen.adopts, 2);
		assert_int_equal(far_pump(&bench.connector, VERBS_RUNG), 0);
		assert_int_equal(errno, EDOM);
		remote_close();
	}
}


/* ---- what is not there --------------------------------------------------------------------------------------------- */

static void assert_pinned(struct conn *c, enum reason why)
{
	if (seen.why != why)
		fail_msg("%s, not %s", reason_word(seen.why), reason_word(why));
	assert_int_equal(c->nego.phase, NEGO_OVER);
	assert_int_equal(nego_wait_fd(c), -1);
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.links, 0);
}

/* In a process of its own, where it was not opened before. The number of the child's failed check, 0: none. */
static int in_child(int (*check)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid)
		_exit(check());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int opens_nothing(void)
{
	bench_open(V4);
	poke_connector();
	if (seen.pins != 1 || seen.why != REASON_NO_RDMA_CORE)
		return 1;
	poke_acceptor();
	if (seen.pins != 2 || seen.why != REASON_NO_RDMA_CORE)
		return 2;
	bench_close();
	return 0;
}

static int opens_another_version(void)
{
	struct verbs_table old = ringway_verbs;

	old.abi++;
	seen.engine = &old;
	return opens_nothing();
}

static void without_the_engine_it_stays_on_tcp(void **state)
{
	options.transports = TRANSPORT_BIT_VERBS;
	seen.engine = NULL;
	assert_int_equal(in_child(opens_nothing), 0);
	assert_int_equal(in_child(opens_another_version), 0);
}

static void without_a_device_it_stays_on_tcp(void **state)
{
	remote_open(V4);
	fake.no_device = true;
	poke_connector();
	assert_pinned(&bench.connector, REASON_NO_DEVICE);
	seen.pins = 0;
	poke_acceptor();
	poke_acceptor();
	assert_pinned(&bench.acceptor, REASON_NO_DEVICE);
	remote_close();
}

static void without_a_route_it_stays_on_tcp(void **state)
{
	remote_open(V4);
	fake.no_route = true;
	poke_acceptor();
	poke_acceptor();
	assert_pinned(&bench.acceptor, REASON_NO_ROUTE);
	remote_close();
}

static void memory_that_cannot_be_pinned_is_named(void **state)
{
	remote_open(V4);
	fake.fail_reg_mr = ENOMEM;
	poke_acceptor();
	poke_acceptor();
	assert_pinned(&bench.acceptor, REASON_MEMLOCK);
	remote_close();

	/* The acceptor registers its five, then the connector cannot. */
	remote_open(V4);
	fake.fail_reg_mr = ENOMEM;
	fake.reg_mr_left = 5;
	poke_both(1);
	poke_connector();
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_MEMLOCK);
	assert_int_equal(bench.connector.nego.phase, NEGO_OVER);
	assert_int_equal(seen.links, 0);
	remote_close();
}

/* A peer without the shim: dialled again and again, with nothing held in between. */
static void nobody_who_listens_is_dialled_again(void **state)
{
	remote_open(V4);
	for (int i = 0; i < 10; i++)
		poke_acceptor();
	assert_int_equal(bench.acceptor.reason, REASON_PEER_SILENT);
	assert_int_equal(seen.pins, 0);
	/* It comes late. */
	poke_both(8);
	assert_linked();
	remote_close();
}

/* However fast the calls come, until RINGWAY_PATIENCE is over. */
static void a_peer_is_looked_for_as_long_as_the_user_says(void **state)
{
	unsigned said = options.patience_ms;

	remote_open(V4);
	options.patience_ms = 600000;
	for (int i = 0; i < 40; i++)
		poke_acceptor();
	bench.acceptor.nego.first_ns -= UINT64_C(500000000000);
	poke_acceptor();
	assert_int_equal(seen.pins, 0);
	bench.acceptor.nego.first_ns -= UINT64_C(100000000000);
	poke_acceptor();
	assert_pinned(&bench.acceptor, REASON_PEER_SILENT);
	options.patience_ms = said;
	remote_close();
}

static void pass(struct conn *c, uint64_t seconds)
{
	c->nego.first_ns -= seconds * UINT64_C(1000000000);
	c->nego.dial_ns -= seconds * UINT64_C(1000000000);
}

/* The peer may be opening the libraries, and call nothing for as long. */
static void a_pause_costs_a_part_of_the_patience(void **state)
{
	unsigned said = options.patience_ms;

	remote_open(V4);
	options.patience_ms = 160000;
	for (int i = 0; i < 40; i++)
		poke_acceptor();
	for (int i = 0; i < 14; i++) {
		pass(&bench.acceptor, 3600);
		bench.acceptor.nego.last_ns -= UINT64_C(3600000000000);
		poke_acceptor();
		assert_int_equal(seen.pins, 0);
	}
	poke_both(8);
	assert_linked();
	options.patience_ms = said;
	remote_close();
}

static void a_dial_that_is_under_way_has_time_to_end(void **state)
{
	unsigned said = options.patience_ms;

	for (int late = 0; late < 2; late++) {
		remote_open(V4);
		options.patience_ms = 160000;
		poke_connector();
		for (int i = 0; i < 40; i++)
			poke_acceptor();
		assert_int_equal(bench.acceptor.nego.phase, NEGO_DIALLED);
		pass(&bench.acceptor, 300);
		poke_acceptor();
		assert_int_equal(seen.pins, 0);
		if (late) {
			pass(&bench.acceptor, 30);
			poke_acceptor();
			assert_pinned(&bench.acceptor, REASON_PEER_SILENT);
		} else {
			poke_both(8);
			assert_linked();
		}
		remote_close();
	}
	options.patience_ms = said;
}

/* ---- strangers ----------------------------------------------------------------------------------------------------- */

struct stranger {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
};

static union conn_addr address_of(int fd, bool peer)
{
	union conn_addr a;
	socklen_t len = sizeof(a);

	assert_int_equal(peer ? getpeername(fd, &a.any, &len) : getsockname(fd, &a.any, &len), 0);
	return a;
}

/* From the acceptor's address, or another one, with any bytes. */
static struct stranger stranger_asks(bool from_elsewhere, const void *data, uint8_t len)
{
	union conn_addr from = address_of(bench.acceptor_fd, false), to = address_of(bench.connector_fd, false);
	struct rdma_conn_param param = { .private_data = data, .private_data_len = len };
	struct stranger s = { .events = rdma_create_event_channel() };

	if (from_elsewhere)
		from.in.sin_addr.s_addr ^= htonl(1);
	from.in.sin_port = 0;
	assert_int_equal(rdma_create_id(s.events, &s.id, NULL, RDMA_PS_TCP), 0);
	assert_int_equal(rdma_resolve_addr(s.id, &from.any, &to.any, 0), 0);
	assert_int_equal(rdma_connect(s.id, &param), 0);
	return s;
}

static void stranger_goes(struct stranger *s)
{
	rdma_destroy_id(s->id);
	rdma_destroy_event_channel(s->events);
}

static const struct nego_remote_self honest = { .nonce = { 1, 2 }, .ring_address = 4096, .ring_key = 5, .ring_bytes = 65536 };

static void a_stranger_is_turned_away_and_the_offer_stands(void **state)
{
	static const struct {
		const char *what;
		uint8_t len;
		int flip;	/* a byte of it, -1: none */
		bool elsewhere;
		uint64_t read;
		uint32_t ring;
	} rows[] = {
		{ "nothing", 0, -1 }, { "short", 55, -1 }, { "another magic", 56, 0 }, { "another version", 56, 4 }, { "another family", 56, 7 },
		{ "another nonce", 56, 9 }, { "another check", 56, 37 }, { "another port", 56, 48 }, { "another epoch", 56, 54 },
		{ "from elsewhere", 56, -1, .elsewhere = true }, { "more read than was written", 56, -1, .read = 1 },
	};

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t wire[NEGO_REMOTE_SIZE];
		struct nego_remote_self self = honest;
		struct stranger s;

		remote_open(V4);
		poke_connector();
		self.read_bytes = rows[i].read;
		nego_remote_encode(wire, &bench.tuple, &self);
		if (rows[i].flip >= 0)
			wire[rows[i].flip] ^= 1;
		s = stranger_asks(rows[i].elsewhere, wire, rows[i].len);
		poke_connector();
		if (bench.connector.nego.phase != NEGO_OFFERED || bench.connector.reason != REASON_BAD_HELLO || seen.pins || seen.adopts != seen.disowns)
			fail_msg("%s: phase %u, %s", rows[i].what, bench.connector.nego.phase, reason_word(bench.connector.reason));
		stranger_goes(&s);
		poke_both(6);
		if (seen.links != 2)
			fail_msg("%s: no link afterwards", rows[i].what);
		remote_close();
	}
}

static void too_many_strangers_end_the_offer(void **state)
{
	remote_open(V4);
	poke_connector();
	for (int i = 0; i < 16; i++) {
		struct stranger s = stranger_asks(false, "?", 1);

		assert_int_equal(seen.pins, 0);
		poke_connector();
		stranger_goes(&s);
	}
	assert_pinned(&bench.connector, REASON_BAD_HELLO);
	remote_close();
}

/* It pins what it is asked to, but not at any price. */
static void a_ring_of_a_gigabyte_is_refused(void **state)
{
	struct nego_remote_self self = honest;
	uint8_t wire[NEGO_REMOTE_SIZE];
	struct stranger s;

	remote_open(V4);
	poke_connector();
	self.ring_bytes = UINT32_C(1) << 30;
	nego_remote_encode(wire, &bench.tuple, &self);
	s = stranger_asks(false, wire, sizeof(wire));
	poke_connector();
	assert_pinned(&bench.connector, REASON_NO_MEMORY);
	stranger_goes(&s);
	remote_close();
}

/* Right in all it says, and gone before it is heard of again. */
static void a_dialler_that_goes_leaves_nothing(void **state)
{
	uint8_t wire[NEGO_REMOTE_SIZE];
	struct nego_remote_self self = honest;
	struct ibv_qp_init_attr attr = { .cap = { .max_send_wr = 1, .max_recv_wr = 1 } };
	struct stranger s;

	remote_open(V4);
	poke_connector();
	nego_remote_encode(wire, &bench.tuple, &self);
	s = stranger_asks(false, wire, sizeof(wire));
	assert_int_equal(rdma_create_qp(s.id, NULL, &attr), 0);
	poke_connector();
	assert_int_equal(seen.adopts, 1);
	rdma_destroy_qp(s.id);
	stranger_goes(&s);
	nego_leave(&bench.connector);
	assert_int_equal(seen.disowns, 1);
	remote_close();
}

/* An answer that is none. */
static void a_wrong_answer_ends_the_attempt(void **state)
{
	static const int flips[] = { 0, 4, 6, 9, 37, 48 };

	for (unsigned i = 0; i <= sizeof(flips) / sizeof(flips[0]); i++) {
		union conn_addr at;
		struct rdma_event_channel *events;
		struct rdma_cm_id *listener, *id;
		struct rdma_cm_event *event;
		struct ibv_qp_init_attr attr = { .cap = { .max_send_wr = 1, .max_recv_wr = 1 } };
		struct nego_remote_self self = honest, asked;
		uint8_t wire[NEGO_REMOTE_SIZE];
		struct rdma_conn_param param = { .private_data = wire, .private_data_len = sizeof(wire) };

		remote_open(V4);
		at = address_of(bench.connector_fd, false);
		events = rdma_create_event_channel();
		assert_int_equal(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP), 0);
		assert_int_equal(rdma_bind_addr(listener, &at.any), 0);
		assert_int_equal(rdma_listen(listener, 1), 0);
		poke_acceptor();
		poke_acceptor();
		assert_int_equal(rdma_get_cm_event(events, &event), 0);
		id = event->id;
		assert_int_equal(nego_remote_decode(&asked, &bench.tuple, event->param.conn.private_data, event->param.conn.private_data_len), 0);
		if (i == sizeof(flips) / sizeof(flips[0]))
			memcpy(self.nonce, asked.nonce, sizeof(self.nonce)); /* what a mirror would say */
		nego_remote_encode(wire, &bench.tuple, &self);
		if (i < sizeof(flips) / sizeof(flips[0]))
			wire[flips[i]] ^= 1;
		assert_int_equal(rdma_create_qp(id, NULL, &attr), 0);
		assert_int_equal(rdma_accept(id, &param), 0);
		poke_acceptor();
		assert_pinned(&bench.acceptor, REASON_BAD_HELLO);
		assert_int_equal(seen.adopts, seen.disowns);
		rdma_destroy_qp(id);
		rdma_destroy_id(id);
		rdma_destroy_id(listener);
		rdma_destroy_event_channel(events);
		remote_close();
	}
}

static void counts_that_differ_are_refused_at_either_end(void **state)
{
	remote_open(V4);
	assert_int_equal(send(bench.connector_fd, "behind", 6, 0), 6);
	poke_both(3);
	assert_int_equal(seen.why, REASON_COUNT_MISMATCH);
	assert_int_equal(bench.connector.nego.phase, NEGO_OVER);
	assert_int_equal(seen.links, 0);
	remote_close();

	remote_open(V4);
	assert_int_equal(send(bench.acceptor_fd, "behind", 6, 0), 6);
	poke_acceptor();
	poke_acceptor();
	assert_pinned(&bench.acceptor, REASON_COUNT_MISMATCH);
	remote_close();
}

/* "Not now" is said by a refusal, and heard as one: dialled again, but not for ever. */
static void a_registration_in_the_way_is_waited_for(void **state)
{
	remote_open(V4);
	poke_connector();
	poke_acceptor();
	poke_acceptor();
	seen.adopt_rc = -EAGAIN;
	poke_connector();
	assert_int_equal(bench.connector.nego.phase, NEGO_OFFERED);
	seen.adopt_rc = 0;
	poke_both(8);
	assert_linked();
	remote_close();

	remote_open(V4);
	poke_connector();
	for (int i = 0; i < 60 && !seen.pins; i++) {
		poke_acceptor();
		poke_acceptor();
		seen.adopt_rc = -EAGAIN;
		poke_connector();
		seen.adopt_rc = 0;
	}
	assert_int_equal(seen.why, REASON_PEER_REFUSED);
	assert_int_equal(bench.acceptor.nego.phase, NEGO_OVER);
	remote_close();
}

/* ---- ends of an attempt -------------------------------------------------------------------------------------------- */

static void a_close_at_any_step_leaves_nothing(void **state)
{
	for (int steps = 0; steps < 12; steps++)
		for (int who = 0; who < 2; who++) {
			remote_open(V4);
			for (int i = 0; i < steps && seen.links < 2; i++)
				i % 2 ? poke_acceptor() : poke_connector();
			nego_leave(who ? &bench.acceptor : &bench.connector);
			/* The other one goes on, and comes to no harm. */
			for (int i = 0; i < 4 && !seen.pins && !seen.links; i++)
				who ? poke_connector() : poke_acceptor();
			remote_close();
		}
}

/* A child has its parent's numbers, and none of what they stand for. */
static int child_of_an_attempt(void)
{
	nego_fork_child();
	far_fork_child();
	if (nego_wait_fd(&bench.connector) != -1 || nego_wait_fd(&bench.acceptor) != -1)
		return 1;
	/* The record is shared in life; here it is a copy. The one holder that is left begins anew, and has no engine. */
	poke_connector();
	return seen.pins == 1 && seen.why == REASON_FORKED ? 0 : 2;
}

static void a_forked_child_leaves_the_attempt_alone(void **state)
{
	remote_open(V4);
	poke_connector();
	poke_acceptor();
	assert_int_equal(in_child(child_of_an_attempt), 0);
	poke_both(6);
	assert_linked();
	remote_close();
}

/* After a few connections of which it has heard nothing a host is not dialled for a while; one answer, and it is as before. */
static void silent_hosts_are_left_alone(void **state)
{
	remote_open(V4);
	assert_int_equal(conn_learn_addresses(&bench.acceptor, bench.acceptor_fd), 0);
	bench.acceptor.nego.remote = 1;
	for (int i = 0; i < 3; i++)
		nego_remote_over(&bench.acceptor, REASON_PEER_SILENT);
	poke_acceptor();
	assert_pinned(&bench.acceptor, REASON_PEER_SILENT);
	remote_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_the_engine_it_stays_on_tcp),
		cmocka_unit_test(two_ends_meet),
		cmocka_unit_test(without_a_device_it_stays_on_tcp),
		cmocka_unit_test(without_a_route_it_stays_on_tcp),
		cmocka_unit_test(memory_that_cannot_be_pinned_is_named),
		cmocka_unit_test(nobody_who_listens_is_dialled_again),
		cmocka_unit_test(a_peer_is_looked_for_as_long_as_the_user_says),
		cmocka_unit_test(a_pause_costs_a_part_of_the_patience),
		cmocka_unit_test(a_dial_that_is_under_way_has_time_to_end),
		cmocka_unit_test(a_stranger_is_turned_away_and_the_offer_stands),
		cmocka_unit_test(too_many_strangers_end_the_offer),
		cmocka_unit_test(a_ring_of_a_gigabyte_is_refused),
		cmocka_unit_test(a_dialler_that_goes_leaves_nothing),
		cmocka_unit_test(a_wrong_answer_ends_the_attempt),
		cmocka_unit_test(counts_that_differ_are_refused_at_either_end),
		cmocka_unit_test(a_registration_in_the_way_is_waited_for),
		cmocka_unit_test(a_close_at_any_step_leaves_nothing),
		cmocka_unit_test(a_forked_child_leaves_the_attempt_alone),
		cmocka_unit_test(silent_hosts_are_left_alone),
	};

	return cmocka_run_group_tests_name("nego_remote", tests, NULL, NULL);
}
