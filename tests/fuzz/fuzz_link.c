/* SPDX-License-Identifier: MIT */
/*
 * Packets of a stranger, of any size and with any number of descriptors: what is received fits, and no descriptor stays open that
 * was not handed out. Input: descriptors to attach, room, descriptors expected, then the packet.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shim/nego_link.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/rendezvous.h"

enum { MAX_FDS = RENDEZVOUS_FDS };

static bool send_packet(int link, int what, const uint8_t *data, size_t size, size_t nr)
{
	int fds[MAX_FDS];

	for (size_t i = 0; i < nr; i++)
		fds[i] = what;
	return rendezvous_send(link, data, size, fds, nr) >= 0;
}

/* The lowest free number tells whether anything was left open. */
static int lowest_free(void)
{
	int fd = dup(0);

	fuzz_check(fd >= 0);
	close(fd);
	return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes in = { data, size };
	size_t nr = fuzz_take(&in, 1) % MAX_FDS, room = fuzz_take(&in, 1);
	int want = fuzz_take(&in, 1) & 1, link[2], fd = -2, before, n;
	uint8_t *buf = malloc(room + 1);

	fuzz_check(buf && !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, link));
	before = lowest_free();
	buf[room] = 0x5a;
	if (send_packet(link[0], link[1], in.at, in.left, nr)) {
		n = nego_link_recv(link[1], buf, room, want ? &fd : NULL);
		fuzz_check(buf[room] == 0x5a);
		fuzz_check(n <= (int)room);
		if (n >= 0)
			fuzz_check((size_t)n == in.left && nr == (want && fd >= 0 ? 1 : 0));
		if (want)
			fuzz_check(fd == -1 || (n >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC));
		if (want && fd >= 0)
			close(fd);
	}
	fuzz_check(lowest_free() == before);
	close(link[0]);
	close(link[1]);
	free(buf);
	return 0;
}

size_t fuzz_seed(unsigned int nr, uint8_t out[FUZZ_INPUT_MAX])
{
	static const uint8_t heads[][3] = { { 0, 80, 0 }, { 1, 144, 1 }, { 2, 144, 1 }, { 5, 144, 1 }, { 1, 80, 0 }, { 0, 0, 0 } };

	if (nr >= sizeof(heads) / sizeof(heads[0]))
		return 0;
	memcpy(out, heads[nr], 3);
	memset(out + 3, (int)nr, heads[nr][1]);
	return 3u + heads[nr][1];
}
