/* SPDX-License-Identifier: MIT
 * What the parts of the `ringway` command share: how it ends and how it complains.
 */
#ifndef TOOLS_TOOL_H
#define TOOLS_TOOL_H

#include <stdio.h>

enum {
	EXIT_GOOD = 0,
	EXIT_BAD = 1, /* understood, but it did not work */
	EXIT_USAGE = 2, /* not understood */
	EXIT_NO_EXEC = 126, /* run: CMD is there but cannot be run under Ringway */
	EXIT_NO_CMD = 127, /* run: no such CMD */
};

/* One line on stderr, "ringway: ..."; the caller returns the status. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* TEXT as a JSON string, quotes included; bytes that are not valid in one are escaped. */
void json_string(FILE *out, const char *text);

/* The commands: argv[0] is the command's own name. Each returns the exit status. */
int command_run(int argc, char **argv);
int command_ps(int argc, char **argv);
int command_off(int argc, char **argv); /* on, too */

/* `ps` for a person; returns the number of processes shown, or -1 when /proc cannot be read. Prints nothing at all
 * when there are none. */
int ps_show_table(FILE *out);

#endif
