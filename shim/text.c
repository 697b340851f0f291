/* SPDX-License-Identifier: MIT */
/* See text.h. printf of libc is out: it may allocate, and takes locks that a signal handler may be holding. */
#include "shim/text.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>
#include <string.h>

#include "ringbuf/sys.h"
#include "shim/glibc.h"

void text_start(struct text *text, char *bytes, size_t size)
{
	text->bytes = bytes;
	text->len = 0;
	text->size = size;
}

void text_add_bytes(struct text *text, const char *bytes, size_t len)
{
	if (len > text->size - text->len)
		len = text->size - text->len;
	memcpy(text->bytes + text->len, bytes, len);
	text->len += len;
}

void text_add(struct text *text, const char *string)
{
	text_add_bytes(text, string, strlen(string));
}

void text_add_number(struct text *text, uint64_t value, unsigned int base)
{
	char digits[20];
	size_t at = sizeof(digits);

	do {
		digits[--at] = "0123456789abcdef"[value % base];
		value /= base;
	} while (value);
	text_add_bytes(text, digits + at, sizeof(digits) - at);
}

void text_add_json(struct text *text, const char *string)
{
	text_add(text, "\"");
	for (; *string; string++) {
		unsigned char c = (unsigned char)*string;
		char kept = (char)(c < ' ' || c > '~' ? '?' : c);

		if (c == '"' || c == '\\')
			text_add(text, "\\");
		text_add_bytes(text, &kept, 1);
	}
	text_add(text, "\"");
}

static void add_signed(struct text *text, int64_t value)
{
	if (value < 0)
		text_add(text, "-");
	text_add_number(text, value < 0 ? -(uint64_t)value : (uint64_t)value, 10);
}

void text_add_format(struct text *text, const char *format, va_list args)
{
	for (; *format; format++) {
		bool wide = false;

		if (*format != '%') {
			text_add_bytes(text, format, 1);
			continue;
		}
		format++;
		for (; *format == 'l' || *format == 'z'; format++)
			wide = true; /* long, long long and size_t are one size on the machines we know */
		switch (*format) {
		case 's': {
			const char *string = va_arg(args, const char *);

			text_add(text, string ? string : "(null)");
			break;
		}
		case 'd':
			add_signed(text, wide ? va_arg(args, long) : va_arg(args, int));
			break;
		case 'u':
		case 'x':
			text_add_number(text, wide ? va_arg(args, unsigned long) : va_arg(args, unsigned int),
					*format == 'x' ? 16 : 10);
			break;
		case 'p':
			text_add(text, "0x");
			text_add_number(text, (uintptr_t)va_arg(args, void *), 16);
			break;
		case 'c': {
			char c = (char)va_arg(args, int);

			text_add_bytes(text, &c, 1);
			break;
		}
		case 'm': {
			int error = va_arg(args, int);
			const char *name = strerrorname_np(error);

			text_add(text, name ? name : "error ");
			if (!name)
				add_signed(text, error);
			break;
		}
		case '\0':
			return;
		default:
			text_add_bytes(text, format, 1);
		}
	}
}

void text_end(struct text *text)
{
	if (text->len == text->size)
		text->len--;
	text->bytes[text->len] = '\0';
}

void text_end_line(struct text *text)
{
	if (text->len == text->size)
		text->len--;
	text->bytes[text->len++] = '\n';
}

static bool caged;

void text_in_cage(void)
{
	caged = true;
}

#define SIGNAL_BIT(sig) (UINT64_C(1) << ((sig) - 1))

/* A file that may not grow and a pipe that nobody reads have signals for the writer, who is not the program: it gets none. */
int text_write(const struct text *text, int fd)
{
	uint64_t both = SIGNAL_BIT(SIGXFSZ) | SIGNAL_BIT(SIGPIPE), before, pending = both, ours;
	struct timespec now = { 0 };
	long n;

	if (caged) {
		(void)sys_call3(SYS_write, fd, text->bytes, text->len);
		return 0;
	}
	(void)sys_call4(SYS_rt_sigprocmask, SIG_BLOCK, &both, &before, sizeof(before));
	(void)sys_call2(SYS_rt_sigpending, &pending, sizeof(pending));
	n = sys_call3(SYS_write, fd, text->bytes, text->len);
	ours = both & ~pending;
	if (n < 0 && ours)
		(void)sys_call4(SYS_rt_sigtimedwait, &ours, NULL, &now, sizeof(ours));
	(void)sys_call4(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(before));
	return n < 0 ? (int)n : (size_t)n < text->len ? -ENOSPC : 0;
}

void text_to_stderr(const struct text *text)
{
	struct stat st;

	/* A socket there belongs to the program: nobody at its other end asked for our words. */
	if (sys_call2(SYS_fstat, 2, &st) == 0 && !S_ISSOCK(st.st_mode))
		(void)text_write(text, 2);
}
