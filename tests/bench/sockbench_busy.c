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
	uint64_t start;

	round_trips(fd, WARM_UP);
	start = now_ns();
	round_trips(fd, count);
	printf("%.1f\n", (double)(now_ns() - start) / (double)count);
}

void pingpong_server(int listener, uint64_t count)
{
	echo(accept_from(listener));
}

/*
 * ---- One way. The server says when it has everything. ----
 */

static uint64_t warm_up(size_t len)
{
	return len == LARGE ? WARM_UP / 10 : WARM_UP;
}

static void one_way_client(uint16_t port, uint64_t count, size_t len)
{
	int fd = connect_to(port);
	uint64_t start;
	uint8_t done;

	for (int round = 0; round < 2; round++) {
		uint64_t todo = round ? count : warm_up(len);

		start = now_ns();
		for (uint64_t i = 0; i < todo; i++) {
			memcpy(large, &i, sizeof(i));
			send_all(fd, large, len);
		}
		if (!recv_all(fd, &done, 1))
			die("no end");
	}
	printf("%.2f\n", (double)(now_ns() - start) / (double)count);
}

static void one_way_server(int listener, uint64_t count, size_t len)
{
	int fd = accept_from(listener);

	for (int round = 0; round < 2; round++) {
		uint64_t todo = round ? count : warm_up(len), i, got;

		for (i = 0; i < todo; i++) {
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

void short_client(uint16_t port, uint64_t count)
{
	uint64_t start = 0;

	for (uint64_t i = 0; i < count + 100; i++) {
		int fd;

		if (i == 100)
			start = now_ns();
		fd = connect_to(port);
		round_trips(fd, 1);
		close(fd);
	}
	printf("%.1f\n", (double)(now_ns() - start) / (double)count);
}

void short_server(int listener, uint64_t count)
{
	for (;;) {
		int fd = accept_from(listener);

		echo(fd);
		close(fd);
	}
}
