/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_CLOCK_H
#define RINGWAY_CLOCK_H

/*
 * The time as the kernel tells it. Other preloaded objects tell a program another time than it is; a program under one of those
 * still sleeps as long as it asks to, so nothing here may call what is in front of libc's clock.
 */

#include <stdint.h>
#include <stdbool.h>
#include <time.h>

#define NS_PER_S INT64_C(1000000000)

/* Before main: libc's own clock_gettime(). Without one the kernel is asked. */
void clock_use(int (*libc_clock)(clockid_t id, struct timespec *t));

/* CLOCK_MONOTONIC, and a cheaper one that is some milliseconds old. */
int64_t now_ns(void);
uint64_t coarse_ns(void);

/*
 * The processor's counter, for what comes with each message: where the kernel has no good clock, telling the time is a system call and more. Of an unknown
 * rate, and not the same on each processor; 0 where it may not be read. CLOCK_COUNTER_BRIEF is some ten microseconds of those that there are.
 */
uint64_t clock_counter(void);
#if defined(__x86_64__)
#define CLOCK_COUNTER_BRIEF (1 << 16)
#else
#define CLOCK_COUNTER_BRIEF (1 << 10)
#endif

/* From now on reading the processor's counter is punished, and libc reads it in the process to tell the time: the kernel is asked. */
void clock_lose_counter(void);
bool clock_counter_lost(void);

#endif
