/* SPDX-License-Identifier: MIT */
/*
 * What this process did, for the line that RINGWAY_SUMMARY asks for. Totals are private to the process and start at zero
 * in a forked child. Bytes are added by conn when a connection leaves the process that opened it, or its last holder: what
 * has not been counted by another yet, so that the lines of all processes add up to what moved, and a child that merely
 * inherited connections has nothing to tell.
 */
#ifndef RINGWAY_SHIM_SUMMARY_H
#define RINGWAY_SHIM_SUMMARY_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

int summary_init(void);

/* A connection that this process opened, or inherited and used. */
void summary_add_connection(void);
/* transport: the TRANSPORT_BIT_* of options.h. */
void summary_add_switched(unsigned int transport);
void summary_add_retreated(void);
/* One lane has left TCP; both lanes of a connection have come back: as often as it happens. */
void summary_add_switch(void);
void summary_add_retreat(void);
/* Program bytes, never frames. */
void summary_add_bytes(uint64_t tcp_tx, uint64_t tcp_rx, uint64_t ring_tx, uint64_t ring_rx);
/* Of rings between hosts, as the engine counts them (ringbuf/verbs.h): work requests, doorbells, completions. */
void summary_add_verbs(uint64_t wr, uint64_t doorbells, uint64_t cqes);
/* Why a connection ended on TCP: an enum reason of ringbuf/reasons.def. */
void summary_add_reason(unsigned int reason);

/* Starts anew in a forked child. */
void summary_in_child(void);

/*
 * Appends the line, unless there was no connection; the totals start at zero again. An exec that failed thus leaves two
 * lines of one process in the end, which add up.
 */
void summary_write(void);

#pragma GCC visibility pop

#endif
