/* SPDX-License-Identifier: MIT */
/*
 * The settings: read from the environment once, by value (a program may overwrite its environment later), and constant
 * from then on. options.def is the list.
 */
#ifndef RINGWAY_SHIM_OPTIONS_H
#define RINGWAY_SHIM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum { TRANSPORT_BIT_SHM = 1, TRANSPORT_BIT_VERBS = 2 };
enum log_level { LOG_LEVEL_OFF, LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

#define OPTION_SPIN_AUTO (-1)
#define OPTION_RING_AUTO 0

/* Whichever comes first; bytes 0 means that only calls count, and calls 0 without bytes means at once. */
struct option_after {
	uint32_t calls;
	uint64_t bytes;
};

#pragma GCC visibility push(hidden)

extern struct options {
	bool enabled; /* RINGWAY=1 */
	unsigned int transports;
	struct option_after after;
	uint32_t ring_bytes; /* a power of two, or OPTION_RING_AUTO */
	unsigned int patience_ms;
	int64_t spin_us;     /* or OPTION_SPIN_AUTO */
	int64_t idle_ns; /* 0: never */
	uint32_t max_links; /* 0: any number */
	const char *rules_path;
	enum log_level log_level;
	const char *log_path;
	const char *summary_path;
} options;

/* Sets the option of this row of options.def; false if VALUE, which is not empty, does not follow the row's syntax. */
bool option_set(unsigned int row, const char *value);

/* Fills `options` from envp. Reports nothing unless RINGWAY=1 asked for us. */
void options_read(char *const envp[]);

#pragma GCC visibility pop

#endif
