/* SPDX-License-Identifier: MIT */
/*
 * A segment whose header is anything: attached only if it is exactly what was agreed on, and then every byte of it can be
 * touched. Input: ring size asked for, seals, size of the memfd, then the header.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ringbuf/segment.h"
#include "tests/fuzz/fuzz.h"

enum { HEAD = 4 + 1 + 8, ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static void touch(const struct segment *seg)
{
	for (uint64_t at = 0; at < seg->bytes; at += 4096)
		seg->base[at] ^= 1;
	seg->base[seg->bytes - 1] ^= 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes in = { data, size };
	uint32_t asked = (uint32_t)fuzz_take(&in, 4);
	unsigned int seals = (unsigned int)fuzz_take(&in, 1) & ALL_SEALS;
	uint64_t bytes = fuzz_take(&in, 8) % (1 << 20);
	struct segment seg = { 0 };
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t header = in.left < bytes ? in.left : (size_t)bytes;

	fuzz_check(fd >= 0 && !ftruncate(fd, (off_t)bytes));
	fuzz_check(pwrite(fd, in.at, header, 0) == (ssize_t)header);
	if (seals)
		fuzz_check(!fcntl(fd, F_ADD_SEALS, seals));
	if (!segment_attach(&seg, fd, asked)) {
		fuzz_check((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW));
		fuzz_check(seg.ring_bytes == asked && seg.bytes == bytes && bytes == SEGMENT_BYTES(asked));
		touch(&seg);
		segment_close(&seg);
	}
	close(fd);
	return 0;
}

size_t fuzz_seed(unsigned int nr, uint8_t out[FUZZ_INPUT_MAX])
{
	static const uint32_t sizes[] = { 4096, 8192, 65536 };
	struct segment seg;
	uint64_t bytes;
	int fd;

	if (nr >= sizeof(sizes) / sizeof(sizes[0]))
		return 0;
	fd = segment_create(&seg, sizes[nr]);
	fuzz_check(fd >= 0);
	bytes = seg.bytes;
	memcpy(out, &sizes[nr], 4);
	out[4] = ALL_SEALS;
	memcpy(out + 5, &bytes, 8);
	memcpy(out + HEAD, seg.base, sizeof(struct segment_header));
	segment_close(&seg);
	close(fd);
	return HEAD + sizeof(struct segment_header);
}
