/* SPDX-License-Identifier: MIT */
/*
 * Segments. A memfd and not a file in /dev/shm: no name to clean up, no mode to get wrong, and it can be sealed, so
 * that a peer cannot shrink it under our mapping and have us killed by SIGBUS.
 */
#include <errno.h>
#include <sys/mman.h>

#include "ringbuf/cgroup.h"
#include "ringbuf/mapped.h"
#include "ringbuf/memfd.h"
#include "ringbuf/segment.h"
#include "ringbuf/sys.h"

uint32_t segment_ring_bytes(uint64_t wanted)
{
	uint32_t bytes = RING_BYTES_MIN;

	while (bytes < wanted && bytes < RING_BYTES_MAX)
		bytes <<= 1;
	return bytes;
}

static bool ring_bytes_valid(uint32_t ring_bytes)
{
	return ring_bytes >= RING_BYTES_MIN && ring_bytes <= RING_BYTES_MAX && !(ring_bytes & (ring_bytes - 1));
}

static int map(struct segment *seg, int fd, uint32_t ring_bytes)
{
	uint64_t bytes = SEGMENT_BYTES(ring_bytes);
	long base;

	if (!mapped_may(bytes) || !cgroup_take(NR_LANES * (uint64_t)ring_bytes))
		return -ENOMEM;
	base = sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (sys_failed(base)) {
		cgroup_give(NR_LANES * (uint64_t)ring_bytes);
		return (int)base;
	}
	seg->base = (uint8_t *)base;
	mapped_add(bytes);
	seg->bytes = bytes;
	seg->ring_bytes = ring_bytes;
	return 0;
}

int segment_create(struct segment *seg, uint32_t ring_bytes)
{
	struct segment_header *header;
	int fd, ret;

	if (!ring_bytes_valid(ring_bytes))
		return -EINVAL;
	fd = memfd_create_sealed("ringway", SEGMENT_BYTES(ring_bytes));
	if (fd < 0)
		return fd;
	ret = map(seg, fd, ring_bytes);
	if (ret < 0) {
		sys_close(fd);
		return ret;
	}
	header = (struct segment_header *)seg->base;
	peer_publish_u32(&header->version, SEGMENT_VERSION);
	peer_publish_u32(&header->header_bytes, SEGMENT_CTL_BYTES);
	peer_publish_u32(&header->ring_bytes, ring_bytes);
	peer_publish_u64(&header->segment_bytes, SEGMENT_BYTES(ring_bytes));
	peer_publish_u64(&header->magic, SEGMENT_MAGIC);
	return fd;
}

static bool header_valid(const struct segment_header *header, uint32_t ring_bytes)
{
	return peer_read_u64(&header->magic) == SEGMENT_MAGIC && peer_read_u32(&header->version) == SEGMENT_VERSION &&
	       peer_read_u32(&header->header_bytes) == SEGMENT_CTL_BYTES &&
	       peer_read_u32(&header->ring_bytes) == ring_bytes &&
	       peer_read_u64(&header->segment_bytes) == SEGMENT_BYTES(ring_bytes);
}

int segment_attach(struct segment *seg, int fd, uint32_t ring_bytes)
{
	uint64_t bytes;
	int ret;

	if (!ring_bytes_valid(ring_bytes))
		return -EPROTO;
	ret = memfd_check_sealed(fd, &bytes);
	if (ret < 0)
		return ret;
	if (bytes != SEGMENT_BYTES(ring_bytes))
		return -EPROTO;
	ret = map(seg, fd, ring_bytes);
	if (ret < 0)
		return ret == -ENOMEM || ret == -EAGAIN ? ret : -EPROTO; /* sealed against writing, opened read-only */
	if (!header_valid((const struct segment_header *)seg->base, ring_bytes)) {
		segment_close(seg);
		return -EPROTO;
	}
	return 0;
}

void segment_close(struct segment *seg)
{
	if (!seg->base)
		return;
	sys_munmap(seg->base, seg->bytes);
	mapped_sub(seg->bytes);
	cgroup_give(NR_LANES * (uint64_t)seg->ring_bytes);
	seg->base = NULL;
	seg->bytes = 0;
}
