/* SPDX-License-Identifier: MIT */
/*
 * conform FAMILY [NAME=FD]... [--keep FDNAME=FD]... [--serve NAME,NAME...]...: the program under test of the differential harness.
 *
 * Each --serve is one thread, the first one the main thread; the names behind it are the actors that this thread plays.
 * All actors of a thread share the channel of the first. NAME=FD declares the channels, those of threads and children
 * still to come included. run.py is the director; see README.md for the steps.
 */
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "actor.h"
#include "verbs.h"

enum { LIFETIME_SECONDS = 100 };

char run_family;
static struct {
	char name[12];
	int fd;
} channels[MAX_CHANNELS];
static int nr_channels;
static struct names kept; /* descriptors that came through exec */

int channel_of(const char *name)
{
	for (int i = 0; i < nr_channels; i++)
		if (!strcmp(channels[i].name, name))
			return channels[i].fd;
	bad_step("no channel of that name", name);
}

static void say_va(struct actor *a, const char *format, va_list args)
{
	int n = vsnprintf(a->reply + a->reply_len, sizeof(a->reply) - a->reply_len, format, args);

	if (n < 0 || a->reply_len + (size_t)n >= sizeof(a->reply))
		bad_step("answer too long", a->name);
	a->reply_len += (size_t)n;
}

void say(struct actor *a, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say_va(a, format, args);
	va_end(args);
}

/* For the director only, never in the trace: "\tkey=value". */
void say_hidden(struct actor *a, const char *format, ...)
{
	va_list args;

	say(a, "\t");
	va_start(args, format);
	say_va(a, format, args);
	va_end(args);
}

void say_result(struct actor *a, long result)
{
	int error = errno;

	if (result < 0) {
		say(a, "= %ld %s", result, strerrorname_np(error) ? strerrorname_np(error) : "?");
		return;
	}
	say(a, "= %ld", result);
	if (error != ERRNO_CANARY)
		say(a, " errno-touched");
}

struct actor *actor_new(const char *name, int channel, struct names *names)
{
	struct actor *a = calloc(1, sizeof(*a));

	if (!a)
		bad_step("no memory for", name);
	snprintf(a->name, sizeof(a->name), "%s", name);
	a->channel = channel;
	a->seed = bytes_sum(BYTES_SUM_START, (const unsigned char *)name, strlen(name));
	a->names = names ? names : calloc(1, sizeof(*a->names));
	a->buf = malloc(BUF_BYTES + 64);
	if (!a->names || !a->buf)
		bad_step("no memory for", name);
	return a;
}

void actor_run(struct actor *a, int argc, char **argv)
{
	verb_fn *verb = verb_find(argv[0]);

	if (!verb)
		bad_step("unknown step", argv[0]);
	verb(a, argc, argv);
}

static void send_all(int fd, const char *text, size_t len)
{
	if (send(fd, text, len, MSG_NOSIGNAL) != (ssize_t)len)
		_Exit(98);
}

static void greet(const struct actor *a)
{
	char text[64];
	int n = snprintf(text, sizeof(text), "hello %d %d", (int)getpid(), (int)gettid());

	send_all(a->channel, text, (size_t)n);
}

/* One message: "NAME VERB ARGS". Several actors on one channel form a list by names only: the first of it reads. */
static void serve(struct actor **cast, int nr)
{
	struct actor *first = cast[0];
	static _Thread_local char line[4096];

	greet(first);
	for (;;) {
		char *argv[MAX_ARGS + 1], *rest = NULL;
		struct actor *a = NULL;
		int argc = 0;
		ssize_t n = read(first->channel, line, sizeof(line) - 1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 && gettid() != getpid())
			return; /* the main thread ends the process, and nobody else beside it */
		if (n <= 0)
			exit(0);
		line[n] = 0;
		for (char *w = strtok_r(line, " ", &rest); w && argc < MAX_ARGS; w = strtok_r(NULL, " ", &rest))
			argv[argc++] = w;
		argv[argc] = NULL;
		if (argc < 2)
			bad_step("no step", line);
		for (int i = 0; i < nr; i++)
			if (!strcmp(cast[i]->name, argv[0]))
				a = cast[i];
		if (!a)
			bad_step("no such actor here", argv[0]);
		a->reply_len = 0;
		actor_run(a, argc - 1, argv + 1);
		send_all(a->channel, a->reply, a->reply_len);
		if (!strcmp(argv[1], "end_thread"))
			return;
	}
}

void actor_serve(struct actor *a)
{
	alarm(LIFETIME_SECONDS);
	serve(&a, 1);
}

static int cast_of(char *list, struct actor **cast)
{
	char *rest = NULL;
	int nr = 0;

	for (char *name = strtok_r(list, ",", &rest); name && nr < 4; name = strtok_r(NULL, ",", &rest), nr++)
		cast[nr] = actor_new(name, nr ? cast[0]->channel : channel_of(name), nr || !kept.nr ? NULL : &kept);
	if (!nr)
		bad_step("empty", "--serve");
	return nr;
}

static void *serve_thread(void *list)
{
	struct actor *cast[4];

	serve(cast, cast_of(list, cast));
	return NULL;
}

int main(int argc, char **argv)
{
	char *first = NULL;
	struct actor *cast[4];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(LIFETIME_SECONDS);
	if (argc < 2)
		bad_step("usage", "conform FAMILY NAME=FD... --serve NAMES...");
	run_family = argv[1][0];
	for (int i = 2; i < argc; i++) {
		char *equals = strchr(argv[i], '=');
		pthread_t thread;

		if (equals && nr_channels < MAX_CHANNELS) {
			*equals = 0;
			snprintf(channels[nr_channels].name, sizeof(channels[0].name), "%s", argv[i]);
			channels[nr_channels++].fd = (int)parse_number(equals + 1);
		} else if (!strcmp(argv[i], "--keep") && i + 1 < argc && (equals = strchr(argv[i + 1], '='))) {
			*equals = 0;
			name_set(&(struct actor){.names = &kept}, argv[++i], (int)parse_number(equals + 1));
		} else if (!strcmp(argv[i], "--serve") && i + 1 < argc && !first) {
			first = argv[++i];
		} else if (!strcmp(argv[i], "--serve") && i + 1 < argc) {
			if (pthread_create(&thread, NULL, serve_thread, argv[++i]))
				bad_step("no thread for", argv[i]);
		} else {
			bad_step("bad argument", argv[i]);
		}
	}
	if (!first)
		bad_step("nobody to serve", argv[0]);
	serve(cast, cast_of(first, cast));
	return 0;
}
