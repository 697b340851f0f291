/* SPDX-License-Identifier: MIT */
/*
 * One way, as fast as it goes: through the socket and, in turns and between the same two processes, through a bare ring. A batch
 * ends when the receiver has said that it has it, on the road that the batch went.
 */
#include "sockbench.h"

#include "tests/bench/bare_ring.h"

#define LARGE (1 << 16)

static uint8_t large[LARGE];

static struct {
	struct bare_ring to_server, to_client;
} *bare;
static struct bare_side bare_tx, bare_rx;

/*
 * ---- The client ----
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

static void bare_small(int fd, uint64_t count)
{
	uint8_t done;

	for (uint64_t i = 0; i < count; i++)
		bare_send(&bare->to_server, &bare_tx, &i, MESSAGE);
	bare_recv(&bare->to_client, &bare_rx, &done, 1);
}

static void bare_large(int fd, uint64_t count)
{
	uint8_t done;

	for (uint64_t i = 0; i < count; i++) {
		memcpy(large, &i, sizeof(i));
		bare_send(&bare->to_server, &bare_tx, large, LARGE);
	}
	bare_recv(&bare->to_client, &bare_rx, &done, 1);
}

static void one_way_client(uint16_t port, uint64_t count, size_t len, void (*bare_way)(int fd, uint64_t count))
{
	int fd = connect_to(port);
	double of_bare[BATCHES], of_socket[BATCHES], ratio[BATCHES];

	bare = shared_memory(sizeof(*bare));
	one_way_len = len;
	one_way(fd, count);
	bare_way(fd, count);
	for (int i = 0; i < BATCHES; i++) {
		of_socket[i] = batch_ns(one_way, fd, count);
		of_bare[i] = batch_ns(bare_way, fd, count);
		ratio[i] = of_bare[i] / of_socket[i];
	}
	printf("%.2f %.2f %.4f\n", median(of_socket), median(of_bare), median(ratio));
}

void small_client(uint16_t port, uint64_t count)
{
	one_way_client(port, count, MESSAGE, bare_small);
}

void large_client(uint16_t port, uint64_t count)
{
	one_way_client(port, count, LARGE, bare_large);
}

/*
 * ---- The server ----
 */

static void check(uint64_t i)
{
	uint64_t got;

	memcpy(&got, large, sizeof(got));
	if (got != i)
		die("wrong message");
}

static void one_way_server(int listener, uint64_t count, size_t len, void (*bare_way)(uint64_t count))
{
	int fd = accept_from(listener);

	bare = shared_memory(sizeof(*bare));
	for (int batch = 0; batch < 1 + BATCHES; batch++) {
		for (uint64_t i = 0; i < count; i++) {
			if (!recv_all(fd, large, len))
				die("end in the middle");
			check(i);
		}
		send_all(fd, "", 1);
		bare_way(count);
		bare_send(&bare->to_client, &bare_tx, "", 1);
	}
	/* The end of the last batch is still on its way. */
	recv_all(fd, large, 1);
}

static void bare_small_server(uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t got;

		bare_recv(&bare->to_server, &bare_rx, &got, MESSAGE);
		if (got != i)
			die("wrong message");
	}
}

static void bare_large_server(uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		bare_recv(&bare->to_server, &bare_rx, large, LARGE);
		check(i);
	}
}

void small_server(int listener, uint64_t count)
{
	one_way_server(listener, count, MESSAGE, bare_small_server);
}

void large_server(int listener, uint64_t count)
{
	one_way_server(listener, count, LARGE, bare_large_server);
}
