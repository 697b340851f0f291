/* SPDX-License-Identifier: MIT */
/*
 * The log: one write(2) per message, to RINGWAY_LOG_FILE or, as long as it is what the process was started with and no
 * socket, standard error. Keeps errno. Takes no lock and allocates nothing, so it may be used anywhere but the hot path.
 *
 * Formats: %s %d %u %ld %lu %zd %zu %lld %llu %x %lx %llx %c %p %% only, without widths, and %m for a positive error
 * number given as an int argument (not errno).
 */
#ifndef RINGWAY_SHIM_LOG_H
#define RINGWAY_SHIM_LOG_H

#include "options.h"

#include <stdarg.h>

#pragma GCC visibility push(hidden)

/* From then on standard error can be written to; from log_init() on, the log. */
int log_begin(void);
int log_init(void);
void log_write(enum log_level level, const char *format, ...);

#pragma GCC visibility pop

#define log_at(level, ...)                                                                                             \
	do {                                                                                                           \
		if (__builtin_expect(options.log_level >= (level), 0))                                                 \
			log_write(level, __VA_ARGS__);                                                                 \
	} while (0)
#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
