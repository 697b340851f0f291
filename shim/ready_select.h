/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_SHIM_READY_SELECT_H
#define RINGWAY_SHIM_READY_SELECT_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/select.h>

/* Does one of the sets hold a number whose answer must be mended? The sets may be larger than an fd_set, as the kernel allows. */
/*
 * The kernel looks at no more numbers than its table of the process is long, and sets may be that short. Ours have made it longer: how many of `nr_fds` are to be looked at.
 */
int ready_select_within(int nr_fds);

bool ready_select_concerns_us(int nr_fds, const fd_set *rd, const fd_set *wr, const fd_set *ex);

/* As pselect(), -errno in the value. The sets are written only if it succeeds. */
int ready_select(int nr_fds, fd_set *rd, fd_set *wr, fd_set *ex, int64_t timeout_ns, const sigset_t *mask);

#endif
