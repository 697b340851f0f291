/* SPDX-License-Identifier: MIT
 * The `ringway` command: finds the part that does what is asked.
 */
#include "tools/tool.h"

#include <errno.h>
#include <string.h>

static const struct command {
	const char *name, *arguments, *sentence;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "run", "[-o NAME=VALUE]... [--] CMD [ARG]...", "run a program with its busy TCP connections off the kernel's data path",
	  command_run },
	{ "ps", "[--json]", "show the busy connections of the programs that run under Ringway now, and their roads", command_ps },
	{ "off", "[--wait SECONDS] PID [FD]", "take a live process's connections back to TCP, and keep them there", command_off },
	{ "on", "PID [FD]", "let them move to rings again", command_off },
};

enum { NR_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void help(FILE *out)
{
	fputs("usage: ringway COMMAND ...\n\n", out);
	for (int i = 0; i < NR_COMMANDS; i++)
		fprintf(out, "  ringway %s %s\n      %s\n", commands[i].name, commands[i].arguments, commands[i].sentence);
	fputs("\nEach has a --help of its own; ringway --version tells the version. See also ringway(1) and libringway(7).\n", out);
}

static int dispatch(int argc, char **argv)
{
	if (argc < 2) {
		/* What is going on now, if anything is. */
		if (ps_show_table(stdout) <= 0)
			help(stdout);
		return EXIT_GOOD;
	}
	for (int i = 0; i < NR_COMMANDS; i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		help(stdout);
		return EXIT_GOOD;
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
		puts("ringway " RINGWAY_VERSION);
		return EXIT_GOOD;
	}
	complain("unknown command \"%s\"; see ringway --help", argv[1]);
	return EXIT_USAGE;
}

int main(int argc, char **argv)
{
	int status = dispatch(argc, argv);

	if ((fflush(stdout) || ferror(stdout)) && status == EXIT_GOOD) {
		complain("cannot write: %s", strerror(errno));
		return EXIT_BAD;
	}
	return status;
}
