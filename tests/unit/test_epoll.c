/* SPDX-License-Identifier: MIT */
/* What epoll says of a TCP connection, whatever road its bytes take. See pair.h. */
#include "epoll_fixture.h"

static void level_reports_until_read(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new();

	add(ep, p.b, EPOLLIN, 7);
	expect_none(ep);
	put(p.a, "one");
	expect_one(ep, EPOLLIN, 7);
	expect_one(ep, EPOLLIN, 7);
	assert_int_equal(drain(p.b), 3);
	expect_none(ep);
	put(p.a, "two");
	expect_one(ep, EPOLLIN, 7);
	pair_close(&p);
	expect_none(ep);
	close(ep);
}

static void edge_reports_each_arrival_once(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new();
	char byte;

	add(ep, p.b, EPOLLIN | EPOLLET, 1);
	expect_none(ep);
	put(p.a, "one");
	expect_one(ep, EPOLLIN, 1);
	expect_none(ep);
	assert_int_equal(recv(p.b, &byte, 1, 0), 1);
	expect_none(ep);
	put(p.a, "two");
	expect_one(ep, EPOLLIN, 1);
	expect_none(ep);
	assert_int_equal(drain(p.b), 5);
	expect_none(ep);
	put(p.a, "three");
	assert_int_equal(drain(p.b), 5);
	expect_none(ep);
	pair_close(&p);
	close(ep);
}

static void edge_reports_room_with_the_arrival(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new();

	add(ep, p.b, EPOLLIN | EPOLLOUT | EPOLLET, 1);
	expect_one(ep, EPOLLOUT, 1);
	expect_none(ep);
	put(p.a, "x");
	expect_one(ep, EPOLLIN | EPOLLOUT, 1);
	expect_none(ep);
	pair_close(&p);
	close(ep);
}

static void add_and_mod_report_what_is_ready(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new();

	put(p.a, "x");
	add(ep, p.b, EPOLLIN | EPOLLET, 1);
	expect_one(ep, EPOLLIN, 1);
	expect_none(ep);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLET, 2), 0);
	expect_one(ep, EPOLLIN, 2);
	expect_none(ep);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, EPOLLOUT, 3), 0);
	expect_one(ep, EPOLLOUT, 3);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, 0, 4), 0);
	expect_none(ep);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLOUT, 5), 0);
	expect_one(ep, EPOLLIN | EPOLLOUT, 5);
	pair_close(&p);
	close(ep);
}

static void oneshot_is_silent_until_mod(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new();

	add(ep, p.b, EPOLLIN | EPOLLONESHOT, 1);
	put(p.a, "x");
	expect_one(ep, EPOLLIN, 1);
	expect_none(ep);
	put(p.a, "y");
	expect_none(ep);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLONESHOT, 2), 0);
	expect_one(ep, EPOLLIN, 2);
	assert_int_equal(drain(p.b), 2);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLONESHOT, 3), 0);
	expect_none(ep);
	put(p.a, "z");
	expect_one(ep, EPOLLIN, 3);
	pair_close(&p);
	close(ep);
}

static void errors_are_the_kernels(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new();

	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, EPOLLIN, 1), -1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(ctl(ep, EPOLL_CTL_DEL, p.b, 0, 0), -1);
	assert_int_equal(errno, ENOENT);
	add(ep, p.b, EPOLLIN, 1);
	assert_int_equal(ctl(ep, EPOLL_CTL_ADD, p.b, EPOLLIN, 1), -1);
	assert_int_equal(errno, EEXIST);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLEXCLUSIVE, 1), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(ctl(ep, 77, p.b, EPOLLIN, 1), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(ctl(ep, EPOLL_CTL_DEL, p.b, 0, 0), 0);
	put(p.a, "x");
	expect_none(ep);
	assert_int_equal(ctl(ep, EPOLL_CTL_ADD, p.b, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1), -1);
	assert_int_equal(errno, EINVAL);
	add(ep, p.b, EPOLLIN | EPOLLEXCLUSIVE, 9);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, EPOLLIN, 1), -1);
	assert_int_equal(errno, EINVAL);
	expect_one(ep, EPOLLIN, 9);
	pair_close(&p);
	close(ep);
}

static void two_sets_each_report(void **state)
{
	struct pair p = pair_warmed();
	int one = ep_new(), two = ep_new();

	add(one, p.b, EPOLLIN | EPOLLET, 1);
	add(two, p.b, EPOLLIN | EPOLLET, 2);
	for (int i = 0; i < 100; i++) {
		put(p.a, "x");
		expect_one(one, EPOLLIN, 1);
		expect_none(one);
		expect_one(two, EPOLLIN, 2);
		expect_none(two);
		assert_int_equal(drain(p.b), 1);
	}
	pair_close(&p);
	close(one);
	close(two);
}

static void copies_are_registered_apart(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new(), copy = dup(p.b), n;
	struct epoll_event ev[4];

	add(ep, p.b, EPOLLIN, 1);
	add(ep, copy, EPOLLIN, 2);
	put(p.a, "x");
	n = epoll_wait(ep, ev, 4, SOON_MS);
	assert_int_equal(n, 2);
	assert_int_equal(ev[0].data.u64 + ev[1].data.u64, 3);
	/* The registration outlives its number as long as the file does. */
	close(copy);
	n = epoll_wait(ep, ev, 4, SOON_MS);
	assert_int_equal(n, 2);
	assert_int_equal(drain(p.b), 1);
	expect_none(ep);
	assert_int_equal(ctl(ep, EPOLL_CTL_DEL, p.b, 0, 0), 0);
	put(p.a, "y");
	expect_one(ep, EPOLLIN, 2);
	pair_close(&p);
	expect_none(ep);
	close(ep);
}

static void number_reused_is_a_new_registration(void **state)
{
	struct pair p = pair_warmed(), q = pair_warmed();
	int ep = ep_new(), number = p.b;

	add(ep, p.b, EPOLLIN, 1);
	close(p.b);
	assert_int_equal(dup2(q.b, number), number);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, number, EPOLLIN, 2), -1);
	assert_int_equal(errno, ENOENT);
	add(ep, number, EPOLLIN, 3);
	put(q.a, "x");
	expect_one(ep, EPOLLIN, 3);
	close(number);
	close(p.a);
	pair_close(&q);
	close(ep);
}

static void registered_before_the_first_byte(void **state)
{
	struct pair p = pair_open();
	int ep = ep_new();

	add(ep, p.a, EPOLLIN | EPOLLET, 1);
	add(ep, p.b, EPOLLIN, 2);
	pair_warm(&p);
	for (int i = 0; i < 100; i++) {
		struct epoll_event ev[4];

		/* What warming left behind as edges has been told. */
		if (i == 0)
			while (epoll_wait(ep, ev, 4, 0) > 0)
				;
		put(p.a, "to b");
		expect_one(ep, EPOLLIN, 2);
		assert_int_equal(drain(p.b), 4);
		put(p.b, "to a");
		expect_one(ep, EPOLLIN, 1);
		expect_none(ep);
		assert_int_equal(drain(p.a), 4);
	}
	pair_close(&p);
	close(ep);
}

/* A server and its client in one loop: nobody else makes the calls in which the two ends find each other. */
static void both_ends_in_one_loop_from_the_start(void **state)
{
	struct pair p = pair_open();
	int ep = ep_new(), answers = 0;

	set_nonblock(p.a);
	set_nonblock(p.b);
	add(ep, p.a, EPOLLIN | EPOLLET, 1);
	add(ep, p.b, EPOLLIN | EPOLLET, 2);
	put(p.a, "x");
	while (answers < 1000) {
		struct epoll_event ev[4];
		int n = epoll_wait(ep, ev, 4, SOON_MS);

		assert_true(n > 0);
		for (int i = 0; i < n; i++) {
			int fd = ev[i].data.u64 == 1 ? p.a : p.b;

			if (drain(fd) == 0)
				continue;
			answers += fd == p.a;
			put(fd, "x");
		}
	}
	pair_close(&p);
	close(ep);
}

static void no_room_then_room(uint32_t how)
{
	struct pair p = pair_warmed();
	int ep = ep_new();
	size_t sent, got = 0;

	add(ep, p.a, EPOLLOUT | how, 1);
	expect_one(ep, EPOLLOUT, 1);
	for (int i = 0; i < 3; i++) {
		sent = fill(p.a);
		assert_true(sent > 0);
		expect_none(ep);
		got = 0;
		while (got < sent)
			got += drain(p.b);
		assert_int_equal(got, sent);
		expect_one(ep, EPOLLOUT, 1);
		if (how & EPOLLET)
			expect_none(ep);
		else
			expect_one(ep, EPOLLOUT, 1);
	}
	pair_close(&p);
	close(ep);
}

static void level_room_follows_the_reader(void **state)
{
	no_room_then_room(0);
}

static void edge_room_is_told_once(void **state)
{
	no_room_then_room(EPOLLET);
}

/* From the first byte on, so that the lanes move while the sender is out of room. */
static void room_is_told_while_lanes_move(void **state)
{
	for (int how = 0; how < 2; how++) {
		struct pair p = pair_open();
		int ep = ep_new(), small = 65536;

		setsockopt(p.a, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
		setsockopt(p.b, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
		set_nonblock(p.a);
		set_nonblock(p.b);
		add(ep, p.a, EPOLLIN | EPOLLOUT | (how ? EPOLLET : 0), 1);
		for (int i = 0; i < 40; i++) {
			size_t sent, got = 0;
			struct epoll_event ev;

			for (int j = 0; j < i % 3; j++) {
				put(p.a, "x");
				assert_int_equal(drain(p.b), 1);
			}
			sent = fill(p.a);
			while (epoll_wait(ep, &ev, 1, 0) == 1)
				if (ev.events & EPOLLOUT)
					break;
			while (got < sent)
				got += drain(p.b);
			assert_int_equal(epoll_wait(ep, &ev, 1, SOON_MS), 1);
			assert_true(ev.events & EPOLLOUT);
		}
		pair_close(&p);
		close(ep);
	}
}

static void half_close_is_an_event(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new();

	add(ep, p.b, EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
	put(p.a, "last");
	expect_one(ep, EPOLLIN, 1);
	assert_int_equal(shutdown(p.a, SHUT_WR), 0);
	expect_one(ep, EPOLLIN | EPOLLRDHUP, 1);
	expect_none(ep);
	assert_int_equal(drain(p.b), 4);
	expect_none(ep);
	assert_int_equal(ctl(ep, EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLOUT, 2), 0);
	expect_one(ep, EPOLLIN | EPOLLOUT, 2);
	put(p.b, "answer");
	assert_int_equal(drain(p.a), 6);
	pair_close(&p);
	close(ep);
}

static void both_closed_is_hup(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new();

	add(ep, p.b, 0, 1);
	expect_none(ep);
	assert_int_equal(shutdown(p.a, SHUT_WR), 0);
	expect_none(ep);
	assert_int_equal(shutdown(p.b, SHUT_WR), 0);
	expect_one(ep, EPOLLHUP, 1);
	expect_one(ep, EPOLLHUP, 1);
	pair_close(&p);
	close(ep);
}

static void reset_is_an_event(void **state)
{
	struct pair p = pair_warmed();
	struct linger now = { 1, 0 };
	int ep = ep_new();

	add(ep, p.b, EPOLLIN, 1);
	assert_int_equal(setsockopt(p.a, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	close(p.a);
	expect_one(ep, EPOLLIN | EPOLLERR | EPOLLHUP, 1);
	close(p.b);
	expect_none(ep);
	close(ep);
}

#define NR_MANY 150

/* More than are ever polled, so most of them sleep armed. */
static void many_take_turns(void **state)
{
	static struct pair p[NR_MANY];
	bool seen[NR_MANY] = { false };
	struct epoll_event ev;
	int ep = ep_new();

	for (int i = 0; i < NR_MANY; i++) {
		p[i] = pair_warmed();
		add(ep, p[i].b, EPOLLIN, (uint64_t)i);
	}
	expect_none(ep);
	for (int i = 0; i < NR_MANY; i++)
		put(p[i].a, "x");
	for (int i = 0; i < NR_MANY; i++) {
		assert_int_equal(epoll_wait(ep, &ev, 1, SOON_MS), 1);
		assert_in_range(ev.data.u64, 0, NR_MANY - 1);
		assert_false(seen[ev.data.u64]);
		seen[ev.data.u64] = true;
	}
	for (int i = 0; i < NR_MANY; i++)
		assert_int_equal(drain(p[i].b), 1);
	expect_none(ep);
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < NR_MANY; i++) {
			put(p[i].a, "y");
			expect_one(ep, EPOLLIN, (uint64_t)i);
			assert_int_equal(drain(p[i].b), 1);
		}
	for (int i = 0; i < NR_MANY; i++)
		pair_close(&p[i]);
	close(ep);
}

static void a_pipe_is_heard_beside_a_busy_ring(void **state)
{
	struct pair p = pair_warmed();
	int ep = ep_new(), pipe_fds[2], heard = 0;

	assert_int_equal(pipe(pipe_fds), 0);
	add(ep, p.b, EPOLLIN, 1);
	add(ep, pipe_fds[0], EPOLLIN, 2);
	put(p.a, "never read");
	assert_int_equal(write(pipe_fds[1], "x", 1), 1);
	while (!heard) {
		struct epoll_event ev;

		assert_int_equal(epoll_wait(ep, &ev, 1, SOON_MS), 1);
		heard = ev.data.u64 == 2;
	}
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	pair_close(&p);
	close(ep);
}

static void nested_set_wakes_the_outer(void **state)
{
	struct pair p = pair_warmed();
	int inner = ep_new(), outer = ep_new();

	add(inner, p.b, EPOLLIN, 1);
	add(outer, inner, EPOLLIN, 2);
	expect_none(outer);
	for (int i = 0; i < 20; i++) {
		put(p.a, "x");
		expect_one(outer, EPOLLIN, 2);
		expect_one(inner, EPOLLIN, 1);
		expect_one(outer, EPOLLIN, 2);
		assert_int_equal(drain(p.b), 1);
		expect_none(inner);
		expect_none(outer);
	}
	pair_close(&p);
	close(inner);
	close(outer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(level_reports_until_read),
		cmocka_unit_test(edge_reports_each_arrival_once),
		cmocka_unit_test(edge_reports_room_with_the_arrival),
		cmocka_unit_test(add_and_mod_report_what_is_ready),
		cmocka_unit_test(oneshot_is_silent_until_mod),
		cmocka_unit_test(errors_are_the_kernels),
		cmocka_unit_test(two_sets_each_report),
		cmocka_unit_test(copies_are_registered_apart),
		cmocka_unit_test(number_reused_is_a_new_registration),
		cmocka_unit_test(registered_before_the_first_byte),
		cmocka_unit_test(both_ends_in_one_loop_from_the_start),
		cmocka_unit_test(level_room_follows_the_reader),
		cmocka_unit_test(edge_room_is_told_once),
		cmocka_unit_test(room_is_told_while_lanes_move),
		cmocka_unit_test(half_close_is_an_event),
		cmocka_unit_test(both_closed_is_hup),
		cmocka_unit_test(reset_is_an_event),
		cmocka_unit_test(many_take_turns),
		cmocka_unit_test(a_pipe_is_heard_beside_a_busy_ring),
		cmocka_unit_test(nested_set_wakes_the_outer),
	};

	alarm(50);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
