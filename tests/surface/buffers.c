/* SPDX-License-Identifier: MIT */
/* A program that has its sockets' buffers made larger: as with the kernel, more goes out while nobody reads. */
#include "probe.h"

enum { ASKED = 4 << 20, ROUNDS = 40 };

/* Both ends of a connection; with buffers of that size, 0: as the kernel sizes them. */
static void pair(int *client, int *server, int size)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	*client = socket(AF_INET, SOCK_STREAM, 0);
	if (size) {
		MUST(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)) == 0);
		MUST(setsockopt(*client, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) == 0);
	}
	MUST(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(listener, 1) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
	MUST(connect(*client, (struct sockaddr *)&at, len) == 0);
	*server = accept(listener, NULL, NULL);
	MUST(*server >= 0 && close(listener) == 0);
	ping_pong(*client, *server, ROUNDS);
}

static size_t fill(int from)
{
	static const char piece[4096];
	size_t sum = 0;
	ssize_t n;

	while ((n = send(from, piece, sizeof(piece), MSG_DONTWAIT)) > 0)
		sum += (size_t)n;
	MUST(n == -1 && errno == EAGAIN);
	return sum;
}

static void drain(int fd, size_t len)
{
	static char bytes[65536];
	ssize_t n;

	for (; len; len -= (size_t)n) {
		n = recv(fd, bytes, sizeof(bytes), 0);
		MUST(n > 0);
	}
}

int main(void)
{
	size_t usual, large;
	int client, server;

	pair(&client, &server, 0);
	usual = fill(client);
	drain(server, usual);
	MUST(close(client) == 0 && close(server) == 0);
	pair(&client, &server, ASKED);
	large = fill(client);
	drain(server, large);
	MUST(close(client) == 0 && close(server) == 0);
	fprintf(stderr, "%zu bytes, and %zu with larger buffers\n", usual, large);
	SAY("%s\n", large > usual + usual / 2 ? "more went out" : "no more went out");
	return 0;
}
