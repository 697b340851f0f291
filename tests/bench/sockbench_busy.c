/* SPDX-License-Identifier: MIT */
/* Modes in which both ends are busy: round trips, short connections. */
#include "sockbench.h"

#include <poll.h>
#include <sys/epoll.h>

/*
 * ---- Round trips ----
 */

void echo(int fd)
{
	uint8_t message[MESSAGE];

	while (recv_all(fd, message, MESSAGE))
		send_all(fd, message, MESSAGE);
}

void round_trips(int fd, uint64_t count)
{
	uint64_t message;

	for (uint64_t i = 0; i < count; i++) {
		send_all(fd, &i, MESSAGE);
		if (!recv_all(fd, &message, MESSAGE) || message != i)
			die("wrong answer");
	}
}

void pingpong_client(uint16_t port, uint64_t count)
{
	int fd = connect_to(port);

	round_trips(fd, WARM_UP);
	printf("%.1f\n", median_batch(round_trips, fd, count));
}

void pingpong_server(int listener, uint64_t count)
{
	echo(accept_from(listener));
}

/*
 * ---- The same between a client that polls and a server that has its connection in a set, both non-blocking, as a database and its client ----
 */

static void receive_when_ready(int fd, uint64_t *message, void (*wait)(int fd))
{
	ssize_t got;

	while ((got = recv(fd, message, MESSAGE, MSG_DONTWAIT)) < 0) {
		if (errno != EAGAIN)
			die("recv");
		wait(fd);
	}
	if (got != MESSAGE)
		exit(0);
}

static void wait_by_poll(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	if (poll(&p, 1, -1) < 0)
		die("poll");
}

static int the_set;

static void wait_by_epoll(int fd)
{
	struct epoll_event event;

	if (epoll_wait(the_set, &event, 1, -1) < 0)
		die("epoll_wait");
}

static void polled_round_trips(int fd, uint64_t count)
{
	uint64_t message;

	for (uint64_t i = 0; i < count; i++) {
		send_all(fd, &i, MESSAGE);
		receive_when_ready(fd, &message, wait_by_poll);
		if (message != i)
			die("wrong answer");
	}
}

void readiness_client(uint16_t port, uint64_t count)
{
	int fd = connect_to(port);

	polled_round_trips(fd, WARM_UP);
	printf("%.1f\n", median_batch(polled_round_trips, fd, count));
}

void readiness_server(int listener, uint64_t count)
{
	int fd = accept_from(listener);
	struct epoll_event event = { .events = EPOLLIN };
	uint64_t message;

	the_set = epoll_create1(EPOLL_CLOEXEC);
	if (the_set < 0 || epoll_ctl(the_set, EPOLL_CTL_ADD, fd, &event) < 0)
		die("epoll");
	for (;;) {
		receive_when_ready(fd, &message, wait_by_epoll);
		send_all(fd, &message, MESSAGE);
	}
}

/*
 * ---- Short connections: one question, one answer ----
 */

static void short_connections(int port, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		int fd = connect_to((uint16_t)port);

		round_trips(fd, 1);
		close(fd);
	}
}

void short_client(uint16_t port, uint64_t count)
{
	short_connections(port, count);
	printf("%.1f\n", median_batch(short_connections, port, count));
}

void short_server(int listener, uint64_t count)
{
	for (;;) {
		int fd = accept_from(listener);

		echo(fd);
		close(fd);
	}
}
