/* SPDX-License-Identifier: MIT */
#include "tests/unit/nego_bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/nego_row.h"
#include "shim/sandbox.h"

static void two_ends_in_one_thread_meet(void **state)
{
	for (enum kind kind = V4; kind < NR_KINDS; kind++) {
		bench_open(kind);
		move_counted("hello");
		poke_connector();
		assert_int_equal(bench.connector.nego.phase, NEGO_OFFERED);
		poke_acceptor();
		assert_int_equal(bench.acceptor.nego.phase, NEGO_DIALLED);
		poke_connector();
		poke_acceptor();
		assert_linked();
		assert_int_equal(bench.connector.link.segment.ring_bytes, 65536);
		assert_int_equal(bench.connector.link.tx.bells.peer.port, bench.acceptor.link.rx.bells.own.port);
		assert_int_equal(bench.acceptor.link.rx.bells.peer.port, bench.connector.link.tx.bells.own.port);
		bench_close();
	}
}

static void the_order_of_the_first_steps_does_not_matter(void **state)
{
	bench_open(V4);
	poke_acceptor();
	assert_int_equal(bench.acceptor.nego.phase, NEGO_IDLE);
	poke_connector();
	poke_acceptor();
	poke_connector();
	poke_acceptor();
	assert_linked();
	bench_close();
}

static void acceptor_steps(void)
{
	nego_poke(&bench.acceptor, bench.acceptor_fd);
}

static void connector_steps(void)
{
	nego_poke(&bench.connector, bench.connector_fd);
}

/* Both have seen that a step is due, and one was slower to the locks. */
static void a_step_that_comes_too_late_changes_nothing(void **state)
{
	struct ring_link was;

	bench_open(V4);
	poke_connector();
	poke_acceptor();
	seen.before_lock = connector_steps;
	poke_connector();
	was = bench.connector.link;
	assert_non_null(was.ops);
	seen.before_lock = acceptor_steps;
	poke_acceptor();
	assert_linked();
	assert_memory_equal(&bench.connector.link, &was, sizeof(was));
	assert_non_null(bench.acceptor.link.ops);
	assert_null(nego_row_of(&bench.acceptor));
	bench_close();
}

static void both_ends_see_one_ring(void **state)
{
	char out[6] = { 0 };

	bench_open(V4);
	poke_connector();
	poke_acceptor();
	poke_connector();
	poke_acceptor();
	assert_linked();
	assert_int_equal(shm_transport.send(&bench.connector.link, "north", 5), 5);
	assert_int_equal(shm_transport.recv(&bench.acceptor.link, out, 5), 5);
	assert_string_equal(out, "north");
	assert_int_equal(shm_transport.send(&bench.acceptor.link, "south", 5), 5);
	assert_int_equal(shm_transport.recv(&bench.connector.link, out, 5), 5);
	assert_string_equal(out, "south");
	bench_close();
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void a_sleeper_is_woken_by_each_step_of_the_peer(void **state)
{
	bench_open(V4);
	assert_int_equal(nego_wait_fd(&bench.connector), -1);
	poke_connector();
	assert_true(nego_wait_fd(&bench.connector) >= 0);
	assert_false(readable(nego_wait_fd(&bench.connector)));
	poke_acceptor();
	assert_true(readable(nego_wait_fd(&bench.connector)));
	assert_false(readable(nego_wait_fd(&bench.acceptor)));
	poke_connector();
	assert_int_equal(nego_wait_fd(&bench.connector), -1);
	assert_true(readable(nego_wait_fd(&bench.acceptor)));
	poke_acceptor();
	assert_int_equal(nego_wait_fd(&bench.acceptor), -1);
	assert_linked();
	bench_close();
}

static void a_link_that_says_nothing_yet_is_waited_for(void **state)
{
	struct nego_hello h;
	uint8_t wire[NEGO_HELLO_SIZE];
	int link;

	bench_open(V4);
	poke_connector();
	link = stranger_dial();
	poke_connector();
	assert_false(readable(nego_wait_fd(&bench.connector)));
	h = honest_hello(4096);
	nego_hello_encode(wire, &h);
	stranger_send(link, wire, sizeof(wire), NULL, 0);
	assert_true(readable(nego_wait_fd(&bench.connector)));
	close(link);
	bench_close();
}

static void poke_until_pinned(void (*poke)(void), struct conn *c)
{
	unsigned int pokes = 0;

	while (!seen.pins && pokes++ < 1000000000)
		poke();
	assert_int_equal(c->nego.due_calls, NEGO_NEVER);
	assert_int_equal(c->nego.due_bytes, NEGO_NEVER);
	assert_int_equal(nego_wait_fd(c), -1);
}

static void a_silent_peer_is_given_up(void **state)
{
	bench_open(V4);
	poke_until_pinned(poke_connector, &bench.connector);
	assert_int_equal(seen.why, REASON_PEER_SILENT);
	seen.pins = 0;
	poke_until_pinned(poke_acceptor, &bench.acceptor);
	assert_int_equal(seen.why, REASON_PEER_SILENT);
	bench_close();
}

static void the_distance_between_steps_doubles_up_to_64_calls(void **state)
{
	uint64_t last = 0, gap = 0;

	bench_open(V4);
	for (int i = 0; i < 14; i++) {
		uint64_t due;

		poke_acceptor();
		due = bench.acceptor.nego.due_calls;
		if (i >= 4)
			assert_int_equal(due - last, gap < 64 ? gap * 2 : 64);
		gap = due - last;
		last = due;
		bench.acceptor.rx.calls = due;
	}
	bench_close();
}

static void nothing_is_due_below_the_threshold(void **state)
{
	struct nego_part np;

	options.after = (struct option_after){ .calls = 8, .bytes = 1000 };
	nego_conn_init(&np);
	assert_false(nego_due(&np, 7, 999));
	assert_true(nego_due(&np, 8, 0));
	assert_true(nego_due(&np, 0, 1000));
	options.after = (struct option_after){ .calls = 8 };
	nego_conn_init(&np);
	assert_false(nego_due(&np, 7, UINT64_MAX - 1));
	options.after = (struct option_after){ 0 };
	nego_conn_init(&np);
	assert_true(nego_due(&np, 0, 0));
	options.transports = 0;
	nego_conn_init(&np);
	assert_false(nego_due(&np, UINT64_MAX - 1, UINT64_MAX - 1));
	options.transports = TRANSPORT_BIT_SHM;
}

static void bytes_behind_the_shim_pin_the_connector(void **state)
{
	bench_open(V4);
	poke_connector();
	poke_acceptor();
	assert_int_equal(send(bench.connector_fd, "x", 1, 0), 1);
	poke_connector();
	assert_int_equal(seen.why, REASON_COUNT_MISMATCH);
	seen.pins = 0;
	poke_acceptor();
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_PEER_REFUSED);
	bench_close();
}

static void bytes_behind_the_shim_pin_the_acceptor(void **state)
{
	char byte;

	bench_open(V4);
	poke_connector();
	assert_int_equal(send(bench.connector_fd, "x", 1, 0), 1);
	bench.connector.tx.tcp_bytes++;
	assert_int_equal(recv(bench.acceptor_fd, &byte, 1, 0), 1);
	poke_acceptor();
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_COUNT_MISMATCH);
	bench_close();
}

static void a_number_that_was_reused_is_noticed(void **state)
{
	bench_open(V4);
	poke_connector();
	poke_acceptor();
	poke_by(&bench.connector, bench.acceptor_fd);
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_STALE_FD);
	bench_close();
}

/* By a thread that had begun before another one closed: nothing may be made that nobody would take down. */
static void a_step_after_the_close_is_none(void **state)
{
	int lowest;

	bench_open(V4);
	lowest = dup(bench.connector_fd);
	close(lowest);
	nego_poke(&bench.connector, bench.connector_fd);
	nego_poke(&bench.acceptor, bench.acceptor_fd);
	assert_int_equal(dup(bench.connector_fd), lowest);
	assert_int_equal(bench.connector.nego.slot, 0);
	assert_false(seen.locked);
	close(lowest);
	bench_close();
}

/* Or a call that sleeps would wake up for the peer again and again. */
static void with_two_holders_there_is_nothing_to_wake_up_for(void **state)
{
	bench_open(V4);
	poke_connector();
	assert_true(nego_wait_fd(&bench.connector) >= 0);
	bench.connector.nr_holders = 2;
	poke_acceptor();
	poke_connector();
	assert_int_equal(nego_wait_fd(&bench.connector), -1);
	bench.connector.nr_holders = 1;
	poke_connector();
	poke_acceptor();
	assert_int_equal(seen.links, 2);
	bench_close();
}

static void a_connection_with_two_holders_waits(void **state)
{
	bench_open(V4);
	bench.connector.nr_holders = 2;
	for (int i = 0; i < 40; i++)
		poke_connector();
	assert_int_equal(seen.pins, 0);
	assert_int_equal(bench.connector.reason, REASON_SHARED);
	assert_int_equal(bench.connector.nego.phase, NEGO_IDLE);
	bench.connector.nr_holders = 1;
	poke_connector();
	poke_acceptor();
	poke_connector();
	poke_acceptor();
	assert_linked();
	bench_close();
}

static void a_forked_child_leaves_the_offer_to_the_parent(void **state)
{
	int status;
	pid_t pid;

	bench_open(V4);
	poke_connector();
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		int listener = nego_wait_fd(&bench.connector);

		nego_fork_child();
		_exit(fcntl(listener, F_GETFD) == -1 && nego_wait_fd(&bench.connector) == -1 ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	poke_acceptor();
	poke_connector();
	poke_acceptor();
	assert_linked();
	bench_close();
}

static void a_child_that_is_left_alone_begins_anew(void **state)
{
	int status, gone[2];
	char byte = 0;
	pid_t pid;

	bench_open(V4);
	poke_connector();
	assert_int_equal(pipe(gone), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		/* Its copy of the record still says that an offer stands. */
		nego_fork_child();
		close(gone[1]);
		if (read(gone[0], &byte, 1) != 1)
			_exit(2);
		poke_connector();
		_exit(bench.connector.nego.phase == NEGO_OFFERED && nego_wait_fd(&bench.connector) >= 0 ? 0 : 1);
	}
	nego_leave(&bench.connector);
	assert_int_equal(write(gone[1], &byte, 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(gone[0]);
	close(gone[1]);
	bench_close();
}

static void a_lane_in_use_is_waited_out(void **state)
{
	bench_open(V4);
	poke_connector();
	poke_acceptor();
	seen.busy = 1;
	bench.connector.rx.in_calls = 1;
	poke_connector();
	assert_int_equal(nego_wait_fd(&bench.connector), -1);
	seen.busy = 0;
	bench.connector.rx.in_calls = 0;
	poke_connector();
	poke_acceptor();
	assert_linked();
	bench_close();
}

static void readiness_may_ask_for_a_later_link(void **state)
{
	bench_open(V4);
	poke_connector();
	seen.adopt_rc = -EAGAIN;
	poke_acceptor();
	assert_int_equal(bench.acceptor.nego.phase, NEGO_IDLE);
	seen.adopt_rc = 0;
	poke_acceptor();
	assert_int_equal(bench.acceptor.nego.phase, NEGO_DIALLED);
	seen.adopt_rc = -EAGAIN;
	for (int i = 0; i < 3; i++)
		poke_connector();
	seen.adopt_rc = 0;
	poke_acceptor();
	assert_int_equal(bench.acceptor.nego.phase, NEGO_IDLE);
	poke_acceptor();
	poke_connector();
	poke_acceptor();
	assert_linked();
	bench_close();
}

/* Dials are counted; those that are made in vain before the program arms its registration again must not use them up. */
static void a_one_shot_is_waited_for_before_the_peer_is_troubled(void **state)
{
	bench_open(V4);
	poke_connector();
	seen.waits_to_be_armed = true;
	for (int i = 0; i < 12; i++)
		poke_acceptor();
	assert_int_equal(bench.acceptor.nego.dials, 0);
	assert_int_equal(bench.acceptor.reason, REASON_ONE_SHOT);
	seen.waits_to_be_armed = false;
	poke_acceptor();
	poke_connector();
	poke_acceptor();
	assert_linked();
	bench_close();
}

static void no_room_for_hidden_fds_pins_and_leaks_nothing(void **state)
{
	/* connector: listener, data bell, room bell; acceptor: link, data bell, room bell */
	for (int nth = 0; nth < 3; nth++) {
		bench_open(V4);
		poke_connector();
		seen.hide_rc = -EMFILE;
		seen.hide_after = nth;
		poke_acceptor();
		assert_int_equal(seen.pins, 1);
		assert_int_equal(seen.why, REASON_NO_FDS);
		bench_close();
	}
	for (int nth = 0; nth < 3; nth++) {
		bench_open(V4);
		seen.hide_rc = -EMFILE;
		seen.hide_after = nth;
		poke_connector();
		if (nth) {
			poke_acceptor();
			poke_connector();
		}
		if (!seen.pins) {
			poke_acceptor();
			poke_connector();
		}
		assert_true(seen.pins >= 1);
		assert_int_equal(seen.why, REASON_NO_FDS);
		bench_close();
	}
}

static void without_descriptors_nothing_is_begun(void **state)
{
	bench_open(V4);
	seen.few_fds = true;
	seen.room = 2;
	poke_connector();
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_NO_FDS);
	bench_close();
}

/* The attempt that is under way needs those that are left; a dial that had to be put off is none. */
static void few_descriptors_are_left_to_the_attempts_under_way(void **state)
{
	bench_open(V4);
	poke_connector();
	seen.few_fds = true;
	seen.room = 4;
	for (int i = 0; i < 12; i++)
		poke_acceptor();
	assert_int_equal(seen.pins, 0);
	assert_int_equal(bench.acceptor.nego.dials, 0);
	assert_int_equal(bench.acceptor.reason, REASON_NO_FDS);
	seen.room = 5;
	poke_acceptor();
	poke_connector();
	poke_acceptor();
	assert_linked();
	bench_close();
}

static void an_unknown_role_stays_on_tcp(void **state)
{
	bench_open(V4);
	bench.connector.role = CONN_UNKNOWN;
	poke_connector();
	assert_int_equal(seen.why, REASON_ROLE_UNKNOWN);
	bench_close();
}

/* TCP_REPAIR makes an established socket without anybody at the other end. */
static void a_peer_elsewhere_is_known_at_the_first_step(void **state)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on))) {
		close(fd);
		skip();
	}
	assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	in.sin_port = htons(9);
	assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	for (int role = CONN_CONNECTED; role <= CONN_ACCEPTED; role++) {
		memset(&seen, 0, sizeof(seen));
		conn_blank(&bench.connector, (enum conn_role)role, 3);
		poke_by(&bench.connector, fd);
		assert_int_equal(seen.pins, 1);
		assert_int_equal(seen.why, REASON_NO_PEER);
		assert_int_equal(seen.seeks, 0);
	}
	close(fd);
}

static void a_kernel_that_does_not_find_ourselves_does_not_tell(void **state)
{
	bench_open(V4);
	assert_int_equal(conn_learn_addresses(&bench.connector, bench.connector_fd), 0);
	bench.connector.local.in.sin_port ^= htons(1);
	poke_connector();
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_NO_DIAG);
	bench_close();
}

static void a_caged_process_stays_on_tcp(void **state)
{
	bench_open(V4);
	sandbox_reason = REASON_SECCOMP;
	poke_connector();
	sandbox_reason = REASON_NONE;
	assert_int_equal(seen.pins, 1);
	assert_int_equal(seen.why, REASON_SECCOMP);
	bench_close();
}

static void a_half_closed_connection_links_for_the_other_half(void **state)
{
	for (int first = 0; first < 2; first++) {
		bench_open(V4);
		move_counted("before the end");
		assert_int_equal(shutdown(first ? bench.acceptor_fd : bench.connector_fd, SHUT_WR), 0);
		poke_connector();
		poke_acceptor();
		poke_connector();
		poke_acceptor();
		assert_linked();
		bench_close();
	}
}

static void a_connection_that_has_ended_does_not_link(void **state)
{
	bench_open(V4);
	poke_connector();
	poke_acceptor();
	assert_int_equal(shutdown(bench.acceptor_fd, SHUT_WR), 0);
	assert_int_equal(shutdown(bench.connector_fd, SHUT_WR), 0);
	poke_connector();
	poke_acceptor();
	assert_int_equal(seen.links, 0);
	bench_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_ends_in_one_thread_meet),
		cmocka_unit_test(the_order_of_the_first_steps_does_not_matter),
		cmocka_unit_test(a_step_that_comes_too_late_changes_nothing),
		cmocka_unit_test(both_ends_see_one_ring),
		cmocka_unit_test(a_sleeper_is_woken_by_each_step_of_the_peer),
		cmocka_unit_test(a_link_that_says_nothing_yet_is_waited_for),
		cmocka_unit_test(a_silent_peer_is_given_up),
		cmocka_unit_test(the_distance_between_steps_doubles_up_to_64_calls),
		cmocka_unit_test(nothing_is_due_below_the_threshold),
		cmocka_unit_test(bytes_behind_the_shim_pin_the_connector),
		cmocka_unit_test(bytes_behind_the_shim_pin_the_acceptor),
		cmocka_unit_test(a_number_that_was_reused_is_noticed),
		cmocka_unit_test(a_step_after_the_close_is_none),
		cmocka_unit_test(a_connection_with_two_holders_waits),
		cmocka_unit_test(with_two_holders_there_is_nothing_to_wake_up_for),
		cmocka_unit_test(a_forked_child_leaves_the_offer_to_the_parent),
		cmocka_unit_test(a_child_that_is_left_alone_begins_anew),
		cmocka_unit_test(a_lane_in_use_is_waited_out),
		cmocka_unit_test(readiness_may_ask_for_a_later_link),
		cmocka_unit_test(a_one_shot_is_waited_for_before_the_peer_is_troubled),
		cmocka_unit_test(no_room_for_hidden_fds_pins_and_leaks_nothing),
		cmocka_unit_test(without_descriptors_nothing_is_begun),
		cmocka_unit_test(few_descriptors_are_left_to_the_attempts_under_way),
		cmocka_unit_test(an_unknown_role_stays_on_tcp),
		cmocka_unit_test(a_peer_elsewhere_is_known_at_the_first_step),
		cmocka_unit_test(a_kernel_that_does_not_find_ourselves_does_not_tell),
		cmocka_unit_test(a_caged_process_stays_on_tcp),
		cmocka_unit_test(a_half_closed_connection_links_for_the_other_half),
		cmocka_unit_test(a_connection_that_has_ended_does_not_link),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
