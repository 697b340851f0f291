/* SPDX-License-Identifier: MIT */
/*
 * The memory that the process's control group may use. A socket's buffers give way before the group's limit; pages of a ring cannot, and whoever touches one
 * beyond the limit is killed. So of a limited group only a share may be rings.
 */
#ifndef RINGWAY_RINGBUF_CGROUP_H
#define RINGWAY_RINGBUF_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

/* Finds the limit that the process was started under, of either version of control groups. What cannot be read is no limit. Always 0. */
int cgroup_init(void);

/* May a segment with rings of so many bytes be mapped? If so it is counted, until it is given back. Overflow rings are not counted: few are ever touched. */
bool cgroup_take(uint64_t ring_bytes);
void cgroup_give(uint64_t ring_bytes);

/* May an overflow ring of so many bytes be filled? As long as the group has much of its memory left, by its own count and but for what files have there. `now_ns` of a monotonic clock. */
bool cgroup_may_overflow(uint64_t bytes, int64_t now_ns);

extern uint64_t cgroup_limit; /* UINT64_MAX: none */

static inline bool cgroup_is_limited(void)
{
	return cgroup_limit != UINT64_MAX;
}

#endif
