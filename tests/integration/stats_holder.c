/* SPDX-License-Identifier: MIT
 * stats_holder KIND: holds a statistics segment, or something that only looks like one, says "ready" and ends with its
 * stdin. What `ringway ps` makes of it is for tool_ps.py to judge.
 *
 *   good      two connections, one that was never busy, and a slot that was closed again
 *   empty     a segment without connections
 *   unsealed  a memfd of that name without seals      short     sealed, but too small for a header
 *   noise     sealed, full size, filled with 0xa5     slots     a good header that promises more slots than there are
 *   stranger  a good segment that names another pid   garbage   a good header, slots full of nonsense
 *   orphan    the parent's segment in a forked child: the child holds it, but it is not the child's
 */
#include "ringbuf/stats.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

enum { NR_SLOTS = 8 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void add(struct stats_writer *writer, uint32_t index, int fd, int family, const char *local, const char *peer)
{
	struct stats_identity identity = { .fd = fd, .family = family, .local_port = 6379, .peer_port = (uint16_t)(40000 + index) };
	struct stats_slot *slot;

	inet_pton(family, local, identity.local_addr);
	inet_pton(family, peer, identity.peer_addr);
	slot = stats_slot_open(writer, index, &identity);
	if (!slot)
		fail("stats_slot_open");
	stats_set(slot, tcp_tx_bytes, 1000 + index);
	stats_set(slot, tcp_rx_bytes, 2000);
	stats_set(slot, ring_tx_bytes, UINT64_C(5000000000));
	stats_set(slot, ring_rx_bytes, 7);
	stats_set(slot, wr, 3);
	stats_set(slot, doorbells, 2);
	stats_set(slot, cqes, 4);
	stats_set(slot, tx_road, ROAD_SHM);
	stats_set(slot, rx_road, index ? ROAD_TCP : ROAD_SHM);
	stats_set(slot, reason, index ? REASON_PEER_SILENT : REASON_NONE);
	stats_set(slot, nr_switches, 2);
}

static void add_quiet(struct stats_writer *writer, uint32_t index, int fd)
{
	struct stats_identity identity = { .fd = fd, .family = AF_INET, .local_port = 6379, .peer_port = (uint16_t)(40000 + index) };

	if (!stats_slot_open(writer, index, &identity))
		fail("stats_slot_open");
}

static struct stats_writer create(void)
{
	struct stats_writer writer;

	if (stats_create(&writer, "red\"is\\-ser\xff", NR_SLOTS) < 0)
		fail("stats_create");
	return writer;
}

static void make_file(size_t bytes, int fill, int seals)
{
	int fd = memfd_create(STATS_MEMFD_NAME, MFD_ALLOW_SEALING);
	char *content = malloc(bytes);

	if (fd < 0 || !content)
		fail("memfd_create");
	memset(content, fill, bytes);
	if (write(fd, content, bytes) != (ssize_t)bytes || (seals && fcntl(fd, F_ADD_SEALS, seals)))
		fail("memfd");
	free(content);
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	struct stats_writer writer;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!strcmp(kind, "good")) {
		writer = create();
		add(&writer, 0, 9, AF_INET, "127.0.0.1", "127.0.0.1");
		add(&writer, 1, 10, AF_INET, "127.0.0.1", "127.0.0.1");
		add(&writer, 3, 11, AF_INET6, "::1", "::ffff:127.0.0.1");
		add_quiet(&writer, 4, 12);
		stats_slot_close(stats_slot_at(&writer, 1));
	} else if (!strcmp(kind, "empty")) {
		writer = create();
	} else if (!strcmp(kind, "unsealed")) {
		make_file(1 << 16, 0, 0);
	} else if (!strcmp(kind, "short")) {
		make_file(100, 0, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	} else if (!strcmp(kind, "noise")) {
		make_file(1 << 16, 0xa5, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	} else if (!strcmp(kind, "slots")) {
		writer = create();
		store_relaxed(&writer.header->nr_slots.peer_word, 1u << 30);
	} else if (!strcmp(kind, "stranger")) {
		writer = create();
		store_relaxed(&writer.header->pid.peer_word, 1);
	} else if (!strcmp(kind, "garbage")) {
		writer = create();
		memset((void *)stats_slot_at(&writer, 0), 0xa5, NR_SLOTS * sizeof(struct stats_slot));
		/* One is a connection on TCP, so that its reason is asked for. */
		memset((void *)stats_slot_at(&writer, 0), 0, sizeof(struct stats_slot));
		add_quiet(&writer, 0, 12);
		store_relaxed(&stats_slot_at(&writer, 0)->reason.peer_word, UINT32_C(0xa5a5a5a5));
	} else if (!strcmp(kind, "orphan")) {
		writer = create();
		if (fork()) {
			/* The one that the test started goes on as the child's parent, without its segment. */
			for (int fd = 3; fd < 64; fd++)
				close(fd);
		} else {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
		}
	} else {
		fprintf(stderr, "which kind?\n");
		return 2;
	}
	if (puts("ready") < 0 || fflush(stdout))
		fail("stdout");
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}
