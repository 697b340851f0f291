/* SPDX-License-Identifier: MIT */
/* The shared-memory transport: two rings in one sealed memfd. See transport.h for what each operation does. */
#ifndef RINGWAY_RINGBUF_SHM_H
#define RINGWAY_RINGBUF_SHM_H

#include <string.h>

#include "ringbuf/transport.h"

extern const struct transport_ops shm_transport;

/* The same for callers that need no table. */
int shm_create(struct ring_link *link, uint32_t ring_bytes, struct link_bells *own);
int shm_attach(struct ring_link *link, int fd, uint32_t ring_bytes, struct link_bells *own);
void shm_meet(struct ring_link *link, const struct link_bells *peer);
void shm_close(struct ring_link *link);

/* The bells' fds have been moved to other numbers. */
static inline void shm_move_bells(struct ring_link *link, int rx_fd, int tx_fd)
{
	link->rx.bells.bell_fd = rx_fd;
	link->tx.bells.bell_fd = tx_fd;
}

/* As one that was never made. */
static inline void shm_blank(struct ring_link *link)
{
	memset(link, 0, sizeof(*link));
	shm_move_bells(link, -1, -1);
}

#endif
