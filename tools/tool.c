/* SPDX-License-Identifier: MIT */
#include "tools/tool.h"

#include <stdarg.h>

void complain(const char *format, ...)
{
	va_list args;

	fputs("ringway: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

void json_string(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c < 0x20 || c >= 0x7f)
			/* A program's name is bytes; each one above ASCII stands as the code point of its value. */
			fprintf(out, "\\u%04x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}
