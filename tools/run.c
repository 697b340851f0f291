/* SPDX-License-Identifier: MIT
 * `ringway run`: starts a program with the shim preloaded. It becomes that program, so that signals, job control and
 * the exit status are the program's own.
 */
#include "shim/options.h"
#include "tools/target.h"
#include "tools/tool.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHIM "libringway.so"

static const struct option {
	const char *variable, *values, *preset, *sentence;
} table[] = {
#define OPTION(id, variable, values, preset, sentence, ...) { variable, values, preset, sentence },
#include "shim/options.def"
#undef OPTION
};

enum { NR_OPTIONS = sizeof(table) / sizeof(table[0]) };

/* RINGWAY_LOG_FILE is "log-file" here; capitals and "_" are understood as well. */
static const char *name_part(const struct option *option)
{
	return option->variable + strlen("RINGWAY_");
}

static bool option_is(const struct option *option, const char *text, size_t length)
{
	const char *name = name_part(option);

	if (strlen(name) != length)
		return false;
	for (size_t i = 0; i < length; i++)
		if (name[i] != (text[i] == '-' ? '_' : toupper((unsigned char)text[i])))
			return false;
	return true;
}

enum { HELP_INDENT = 18, HELP_WIDTH = 110 };

/* From column HELP_INDENT on; ends the line. */
static void print_wrapped(FILE *out, const char *text)
{
	size_t room = HELP_WIDTH - HELP_INDENT, length = strlen(text);

	while (length > room) {
		size_t cut = room;

		while (cut && text[cut] != ' ')
			cut--;
		if (!cut)
			break;
		fprintf(out, "%.*s\n%*s", (int)cut, text, HELP_INDENT, "");
		text += cut + 1;
		length -= cut + 1;
	}
	fprintf(out, "%s\n", text);
}

static void print_options(FILE *out)
{
	for (int i = 0; i < NR_OPTIONS; i++) {
		char name[32];
		size_t length = 0;

		for (const char *c = name_part(&table[i]); *c && length < sizeof(name) - 1; c++)
			name[length++] = (char)(*c == '_' ? '-' : tolower((unsigned char)*c));
		name[length] = 0;
		fprintf(out, "  -o %-11s  ", name);
		print_wrapped(out, table[i].sentence);
		fprintf(out, "%*s%s", HELP_INDENT, "", table[i].values);
		fprintf(out, *table[i].preset ? " (default: %s)\n" : "\n", table[i].preset);
	}
}

static void usage(FILE *out)
{
	fputs("usage: ringway run [-o NAME=VALUE]... [--] CMD [ARG]...\n\n"
	      "Runs CMD under Ringway: its busy TCP connections to programs that run under Ringway too leave the kernel's\n"
	      "data path; all others stay as they are. Each -o sets one RINGWAY_ variable for CMD:\n\n", out);
	print_options(out);
}

/*
 * A value is tried with the shim's own parser before CMD is started: in the environment a bad one is only told and
 * ignored, but here somebody waits for an answer. An empty one takes away what the environment says.
 */
static int set_option(const char *text)
{
	const char *value = strchr(text, '=');

	if (!value) {
		complain("-o \"%s\": a NAME=VALUE is needed, such as -o after=0", text);
		return EXIT_USAGE;
	}
	for (int i = 0; i < NR_OPTIONS; i++) {
		if (!option_is(&table[i], text, (size_t)(value - text)))
			continue;
		if (value[1] && !option_set((unsigned int)i, value + 1)) {
			complain("-o \"%s\": the value of \"%.*s\" must be: %s", text, (int)(value - text), text, table[i].values);
			return EXIT_USAGE;
		}
		return setenv(table[i].variable, value + 1, 1) ? EXIT_BAD : EXIT_GOOD;
	}
	complain("-o \"%s\": there is no option \"%.*s\"; the options are", text, (int)(value - text), text);
	print_options(stderr);
	return EXIT_USAGE;
}

/* The shim that belongs to this very binary: in the build tree or in the place where it was installed. */
static int find_shim(char path[PATH_MAX])
{
	static const char *const places[] = { "../shim/" SHIM, RINGWAY_LIBDIR "/" SHIM, "../lib/" SHIM };
	char self[PATH_MAX], candidate[2 * PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (length <= 0) {
		complain("cannot read /proc/self/exe: %s", strerror(errno));
		return -1;
	}
	self[length] = 0;
	*strrchr(self, '/') = 0;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		if (places[i][0] == '/')
			snprintf(candidate, sizeof(candidate), "%s", places[i]);
		else
			snprintf(candidate, sizeof(candidate), "%s/%s", self, places[i]);
		if (!realpath(candidate, path))
			continue;
		if (!access(path, R_OK))
			return 0;
		complain("cannot read %s: %s", path, strerror(errno));
		return -1;
	}
	complain("cannot find %s: from %s it was looked for in ../shim, in %s and in ../lib", SHIM, self, RINGWAY_LIBDIR);
	return -1;
}

/* Is SHIM already one of the preloads in LIST? */
static bool is_item(const char *item, size_t size, const char *path)
{
	return size == strlen(path) && !memcmp(item, path, size);
}

static bool is_a_shim(const char *item, size_t size)
{
	static const char name[] = "/libringway.so";

	return size >= sizeof(name) - 1 && !memcmp(item + size - (sizeof(name) - 1), name, sizeof(name) - 1);
}

/*
 * `kept`, with room for the list: what was there before without a shim of another build, since two in one program would know nothing of each other. True: this one is
 * among them.
 */
static bool keep_preloads(const char *before, const char *shim, char *kept)
{
	bool there = false;
	char *end = kept;
	size_t size;

	for (const char *item = before + strspn(before, ": "); *item; item += size + strspn(item + size, ": ")) {
		size = strcspn(item, ": ");
		if (is_item(item, size, shim))
			there = true;
		else if (is_a_shim(item, size))
			continue;
		if (end != kept)
			*end++ = ':';
		end = mempcpy(end, item, size);
	}
	*end = 0;
	return there;
}

static int set_preload(void)
{
	const char *before = getenv("LD_PRELOAD");
	char shim[PATH_MAX], *kept, *list;
	int status = EXIT_BAD;
	bool there;

	if (find_shim(shim))
		return EXIT_BAD;
	if (strpbrk(shim, ": $")) {
		complain("\"%s\": LD_PRELOAD cannot name a path with a space, a colon or a dollar sign; move it", shim);
		return EXIT_BAD;
	}
	kept = strdup(before ? before : "");
	if (!kept)
		return EXIT_BAD;
	there = keep_preloads(before ? before : "", shim, kept);
	if (asprintf(&list, "%s%s%s", there ? "" : shim, !there && *kept ? ":" : "", kept) >= 0) {
		status = setenv("LD_PRELOAD", list, 1) ? EXIT_BAD : EXIT_GOOD;
		free(list);
	}
	free(kept);
	return status;
}

static int refuse_or_warn(const char *path)
{
	char interpreter[PATH_MAX];
	const char *what;
	enum target_kind kind = target_inspect(path, interpreter, &what);
	const char *of = *interpreter ? ": its interpreter " : "";

	switch (kind) {
	case TARGET_PRIVILEGED:
		complain("%s%s%s %s: the dynamic linker preloads nothing into such a program, so Ringway cannot serve it", path, of,
			 interpreter, what);
		return EXIT_NO_EXEC;
	case TARGET_STATIC:
	case TARGET_OTHER_CLASS:
	case TARGET_OTHER_LIBC:
		complain("warning: %s%s%s %s: it runs without Ringway, on plain TCP", path, of, interpreter, what);
		return EXIT_GOOD;
	case TARGET_FINE:
		break;
	}
	return EXIT_GOOD;
}

int command_run(int argc, char **argv)
{
	char path[PATH_MAX];
	int opt, status;

	/* With "+" the first word that is no option is CMD, and what follows is CMD's own. */
	optind = 1;
	opterr = 0;
	while ((opt = getopt(argc, argv, "+:o:h-:")) != -1) {
		switch (opt) {
		case 'o':
			status = set_option(optarg);
			if (status)
				return status;
			break;
		case 'h':
			usage(stdout);
			return EXIT_GOOD;
		case '-':
			if (!strcmp(optarg, "help")) {
				usage(stdout);
				return EXIT_GOOD;
			}
			complain("run: unknown option \"--%s\"; see ringway run --help", optarg);
			return EXIT_USAGE;
		case ':':
			complain("run: -%c needs a NAME=VALUE after it", optopt);
			return EXIT_USAGE;
		default:
			complain("run: unknown option \"-%c\"; see ringway run --help", optopt);
			return EXIT_USAGE;
		}
	}
	if (optind == argc) {
		complain("run: which command? see ringway run --help");
		return EXIT_USAGE;
	}
	argv += optind;

	switch (-target_find(argv[0], path)) {
	case 0:
		break;
	case ENOENT:
		complain("%s: no such command", *argv[0] ? argv[0] : "\"\"");
		return EXIT_NO_CMD;
	default:
		complain("%s: cannot be executed: %s", argv[0], strerror(EACCES));
		return EXIT_NO_EXEC;
	}
	status = refuse_or_warn(path);
	if (!status)
		status = set_preload();
	if (status)
		return status;
	setenv("RINGWAY", "1", 1);
	/* execvp() for what it does with a file that is neither ELF nor "#!": it gives it to a shell. */
	execvp(strchr(argv[0], '/') ? argv[0] : path, argv);
	/* The file is there: it has been looked at. */
	complain("%s: cannot be executed: %s", argv[0], errno == ENOENT ? "the interpreter that it names is missing" : strerror(errno));
	return EXIT_NO_EXEC;
}
