/* SPDX-License-Identifier: MIT */
/* Modes in which both ends are busy: round trips, one way, short connections. */
#include "sockbench.h"

#define LARGE (1 << 16)

static uint8_t large[LARGE];

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
 * ---- One way. The server says when it has a batch. ----
 */

static size_t one_way_len;

static void one_way(int fd, uint64_t count)
{
	uint8_t done;

	for (uint64_t i = 0; i < count; i++) {
		memcpy(large, &i, sizeof(i));
		send_all(fd, large, one_way_len);
	}
	if (!recv_all(fd, &done, 1))
		die("no end");
}

static void one_way_client(uint16_t port, uint64_t count, size_t len)
{
	int fd = connect_to(port);

	one_way_len = len;
	one_way(fd, count);
	printf("%.2f\n", median_batch(one_way, fd, count));
}

static void one_way_server(int listener, uint64_t count, size_t len)
{
	int fd = accept_from(listener);

	for (int batch = 0; batch < 1 + BATCHES; batch++) {
		for (uint64_t i = 0, got; i < count; i++) {
			if (!recv_all(fd, large, len))
				die("end in the middle");
			memcpy(&got, large, sizeof(got));
			if (got != i)
				die("wrong message");
		}
		send_all(fd, "", 1);
	}
}

void small_client(uint16_t port, uint64_t count)
{
	one_way_client(port, count, MESSAGE);
}

void small_server(int listener, uint64_t count)
{
	one_way_server(listener, count, MESSAGE);
}

void large_client(uint16_t port, uint64_t count)
{
	one_way_client(port, count, LARGE);
}

void large_server(int listener, uint64_t count)
{
	one_way_server(listener, count, LARGE);
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
