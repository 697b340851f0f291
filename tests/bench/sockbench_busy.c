/* SPDX-License-Identifier: MIT */
/* Modes in which both ends are busy: round trips, short connections. */
#include "sockbench.h"

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
