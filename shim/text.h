/* SPDX-License-Identifier: MIT */
/*
 * Text put together in a buffer of the caller's: no allocation, no locale, no lock, usable in a signal handler. What does
 * not fit is cut off.
 */
#ifndef RINGWAY_SHIM_TEXT_H
#define RINGWAY_SHIM_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct text {
	char *bytes;
	size_t len, size;
};

struct text_line {
	struct text text;
	char bytes[1024];
};

void text_start(struct text *text, char *bytes, size_t size);
void text_add(struct text *text, const char *string);
void text_add_bytes(struct text *text, const char *bytes, size_t len);
void text_add_number(struct text *text, uint64_t value, unsigned int base);
/* As a JSON string, with its quotes. Bytes that are no valid character of it become '?'. */
void text_add_json(struct text *text, const char *string);
/* The formats that log.h lists. */
void text_add_format(struct text *text, const char *format, va_list args);
/* Terminates it, at the cost of the last byte if it is full. */
void text_end(struct text *text);
void text_end_line(struct text *text);

/* A filter may answer system calls that the program would not make with death: text_write() makes one call only from now on. */
void text_in_cage(void);
/* Writes it to fd with one write, which is not repeated, and raises no signal. 0, also in a cage, or -errno. */
int text_write(const struct text *text, int fd);
/* Writes it to standard error, unless that is closed or a socket. */
void text_to_stderr(const struct text *text);

#pragma GCC visibility pop

#endif
