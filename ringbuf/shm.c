/* SPDX-License-Identifier: MIT */
/*
 * Shared memory as a transport. The records that hold a link may be shared with forked children, so closing never
 * writes to them: each relative unmaps and closes its own, and the last one's caller forgets the record.
 */
#include "ringbuf/shm.h"
#include "ringbuf/sys.h"

/* The end whose bytes go through `tx_lane`. On failure nothing is left open or mapped. */
static int set_up(struct ring_link *link, enum lane_index tx_lane, struct link_bells *own)
{
	enum lane_index rx_lane = tx_lane == LANE_OF_CREATOR ? LANE_OF_ATTACHER : LANE_OF_CREATOR;
	const struct segment *seg = &link->segment;
	int ret;

	ring_tx_init(&link->tx, segment_front(seg, tx_lane), segment_ctl(seg, tx_lane), segment_ring(seg, tx_lane),
		     segment_overflow(seg, tx_lane), seg->ring_bytes);
	ring_rx_init(&link->rx, segment_front(seg, rx_lane), segment_ctl(seg, rx_lane), segment_ring(seg, rx_lane),
		     segment_overflow(seg, rx_lane), seg->ring_bytes);
	ring_tie(&link->tx, &link->rx);
	ret = ring_make_bells(&link->tx, &link->rx);
	if (ret < 0) {
		segment_close(&link->segment);
		return ret;
	}
	own->data = link->rx.bells.own;
	own->room = link->tx.bells.own;
	link->ops = &shm_transport;
	return 0;
}

int shm_create(struct ring_link *link, uint32_t ring_bytes, struct link_bells *own)
{
	int fd = segment_create(&link->segment, ring_bytes);
	int ret;

	if (fd < 0)
		return fd;
	ret = set_up(link, LANE_OF_CREATOR, own);
	if (ret < 0) {
		sys_close(fd);
		return ret;
	}
	return fd;
}

int shm_attach(struct ring_link *link, int fd, uint32_t ring_bytes, struct link_bells *own)
{
	int ret = segment_attach(&link->segment, fd, ring_bytes);

	if (ret < 0)
		return ret;
	return set_up(link, LANE_OF_ATTACHER, own);
}

void shm_meet(struct ring_link *link, const struct link_bells *peer)
{
	link->tx.bells.peer = peer->data;
	link->rx.bells.peer = peer->room;
}

void shm_close(struct ring_link *link)
{
	struct segment mapping = link->segment;

	if (!link->ops)
		return;
	sys_close(link->rx.bells.bell_fd);
	sys_close(link->tx.bells.bell_fd);
	segment_close(&mapping);
}

static ssize_t shm_send(struct ring_link *link, const void *buf, size_t len)
{
	ssize_t sent = ring_write(&link->tx, buf, len);

	if (likely(sent > 0))
		ring_tx_notify(&link->tx);
	return sent;
}

static ssize_t shm_recv(struct ring_link *link, void *buf, size_t len)
{
	return ring_read(&link->rx, buf, len);
}

static ssize_t shm_peek(struct ring_link *link, size_t offset, void *buf, size_t len)
{
	ssize_t avail = ring_rx_avail_min(&link->rx, offset + len);

	if (avail < 0)
		return avail;
	if (offset >= (size_t)avail)
		return 0;
	if (len > (size_t)avail - offset)
		len = (size_t)avail - offset;
	ring_get(&link->rx, link->rx.head_pos + offset, buf, len);
	return (ssize_t)len;
}

static ssize_t shm_room(struct ring_link *link, size_t want)
{
	return ring_tx_room(&link->tx, want);
}

static ssize_t shm_avail(struct ring_link *link, size_t want)
{
	return ring_rx_avail_min(&link->rx, want);
}

static ssize_t shm_queued(struct ring_link *link)
{
	return ring_tx_queued(&link->tx);
}

static bool shm_rx_sleep_begin(struct ring_link *link)
{
	return ring_rx_sleep_begin(&link->rx);
}

static bool shm_tx_sleep_begin(struct ring_link *link, size_t want)
{
	return ring_tx_sleep_begin(&link->tx, want);
}

const struct transport_ops shm_transport = {
	.name = "shm",
	.create = shm_create,
	.attach = shm_attach,
	.meet = shm_meet,
	.close = shm_close,
	.send = shm_send,
	.recv = shm_recv,
	.peek = shm_peek,
	.room = shm_room,
	.avail = shm_avail,
	.queued = shm_queued,
	.rx_sleep_begin = shm_rx_sleep_begin,
	.tx_sleep_begin = shm_tx_sleep_begin,
};
