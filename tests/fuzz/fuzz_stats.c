/* SPDX-License-Identifier: MIT */
/* A statistics segment made by anybody: the reader refuses it, or every value that it gives out is in range. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ringbuf/stats.h"
#include "tests/fuzz/fuzz.h"

enum { NR_SLOTS = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create(STATS_MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct stats_view view;
	struct stats_connection out;

	fuzz_check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	fuzz_check(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
	if (!stats_attach(&view, fd)) {
		fuzz_check(memchr(view.program, 0, sizeof(view.program)));
		for (const char *p = view.program; *p; p++)
			fuzz_check((unsigned char)*p >= ' ');
		fuzz_check(sizeof(struct stats_header) + (uint64_t)view.nr_slots * sizeof(struct stats_slot) <= size);
		for (uint32_t i = 0; i <= view.nr_slots; i++) {
			if (!stats_read(&view, i, &out))
				continue;
			fuzz_check(i < view.nr_slots);
			fuzz_check(out.identity.family == AF_INET || out.identity.family == AF_INET6);
			fuzz_check(out.tx_road < NR_ROADS && out.rx_road < NR_ROADS);
			fuzz_check(reason_word(out.reason) && reason_sentence(out.reason));
		}
		stats_detach(&view);
	}
	close(fd);
	return 0;
}

size_t fuzz_seed(unsigned int nr, uint8_t out[FUZZ_INPUT_MAX])
{
	struct stats_identity id = { .fd = 5, .family = AF_INET, .local_port = 1, .peer_port = 2 };
	size_t size = sizeof(struct stats_header) + NR_SLOTS * sizeof(struct stats_slot);
	struct stats_writer writer;
	int fd;

	if (nr > 1)
		return 0;
	fd = stats_create(&writer, "fuzz", NR_SLOTS);
	fuzz_check(fd >= 0);
	for (uint32_t i = 0; nr && i < NR_SLOTS; i++)
		fuzz_check(stats_slot_open(&writer, i, &id));
	fuzz_check(pread(fd, out, size, 0) == (ssize_t)size);
	stats_abandon(&writer);
	close(fd);
	return size;
}
