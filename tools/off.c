/* SPDX-License-Identifier: MIT
 * `ringway off` and `ringway on`: a live process takes its connections back to TCP, and may move them out again. What is asked is written into the process's
 * statistics segment; whoever of it sleeps is rung. What has become of it is read from there.
 */
#include "tools/scan.h"
#include "tools/tool.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_S 5
#define LOOK_NS 5000000

struct asked {
	const char *command;
	bool off;
	int pid, fd;		/* fd -1: all */
	double wait_s;
};

static void usage(FILE *out, const char *command)
{
	if (!strcmp(command, "off"))
		fputs("usage: ringway off [--wait SECONDS] PID [FD]\n\n"
		      "Takes all connections of a live process that runs under Ringway, or that of its descriptor FD, back to TCP, and keeps them\n"
		      "there until `ringway on`; without FD, those that it will open as well, but not those of processes that it forks later.\n"
		      "Nothing of their streams is lost. A process that sleeps is woken for it; one that makes no call, or whose peer makes none,\n"
		      "goes back with the next. Says how many are back within the time (5 seconds): exit status 0 if all are, 1 if not, or if\n"
		      "there is no such process, 2 for a wrong argument.\n", out);
	else
		fputs("usage: ringway on PID [FD]\n\n"
		      "Takes `ringway off` back: connections that become busy move to rings again, if the peer lets them, too. What was said\n"
		      "without FD is taken back only without it. Exit status 0, 1 if there is no such process, or if the connection of FD stays\n"
		      "off because all are, 2 for a wrong argument.\n", out);
}

static bool parse_number(const char *text, long max, int *out)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (errno || end == text || *end || value < 0 || value > max)
		return false;
	*out = (int)value;
	return true;
}

static bool parse_seconds(const char *text, double *out)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= 0 && value <= 3600))
		return false;
	*out = value;
	return true;
}

/* 0, or the exit status, with the complaint made. -1: help was asked for. */
static int parse(int argc, char **argv, struct asked *a)
{
	int at = 1;

	*a = (struct asked){ .command = argv[0], .off = !strcmp(argv[0], "off"), .fd = -1, .wait_s = WAIT_S };
	if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
		return -1;
	if (a->off && argc > 1 && !strcmp(argv[1], "--wait")) {
		if (argc < 3 || !parse_seconds(argv[2], &a->wait_s)) {
			complain("off: --wait \"%s\": seconds are expected, 0 to 3600", argc < 3 ? "" : argv[2]);
			return EXIT_USAGE;
		}
		at = 3;
	}
	if (argc - at < 1 || argc - at > 2) {
		complain("%s: a process id is expected, and perhaps a descriptor; see ringway %s --help", a->command, a->command);
		return EXIT_USAGE;
	}
	if (argv[at][0] == '-') {
		complain("%s: no option \"%s\"; see ringway %s --help", a->command, argv[at], a->command);
		return EXIT_USAGE;
	}
	if (!parse_number(argv[at], INT_MAX, &a->pid) || !a->pid) {
		complain("%s: \"%s\" is no process id", a->command, argv[at]);
		return EXIT_USAGE;
	}
	if (argc - at == 2 && !parse_number(argv[at + 1], INT_MAX, &a->fd)) {
		complain("%s: \"%s\" is no descriptor", a->command, argv[at + 1]);
		return EXIT_USAGE;
	}
	return 0;
}

static bool is_meant(const struct asked *a, const struct stats_view *view, uint32_t index, struct stats_connection *c)
{
	return stats_read(view, index, c) && (a->fd < 0 || c->identity.fd == a->fd);
}

/* How many are meant, and how many of these are on a ring. */
static unsigned count(const struct asked *a, const struct stats_view *view, unsigned *nr_on_rings, bool ring)
{
	struct stats_connection c;
	unsigned nr = 0;

	*nr_on_rings = 0;
	for (uint32_t i = 0; i < view->nr_slots; i++) {
		if (!is_meant(a, view, i, &c))
			continue;
		nr++;
		if (c.tx_road == ROAD_TCP && c.rx_road == ROAD_TCP)
			continue;
		++*nr_on_rings;
		if (ring)
			stats_ring(view, i);
	}
	return nr;
}

static void ask(const struct asked *a, struct stats_view *view)
{
	struct stats_connection c;

	if (a->fd < 0)
		stats_ask_all(view, a->off);
	for (uint32_t i = 0; a->fd >= 0 && i < view->nr_slots; i++)
		if (is_meant(a, view, i, &c))
			stats_ask_one(view, i, a->off);
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* With how it is taken back: by what was said, unless more has been. */
static void say_back(const struct asked *a, struct stats_view *view, unsigned nr_back, unsigned nr)
{
	if (a->fd >= 0 && stats_all_off(view))
		printf("descriptor %d %s; it stays there, as all connections do, until: ringway on %d\n", a->fd,
		       nr_back ? "came back to TCP" : "was on TCP", a->pid);
	else if (a->fd >= 0)
		printf("descriptor %d %s, and stays there until: ringway on %d %d\n", a->fd, nr_back ? "came back to TCP" : "was on TCP", a->pid, a->fd);
	else if (nr_back)
		printf("%u of %u connections came back to TCP; all stay there, and those to come, until: ringway on %d\n", nr_back, nr, a->pid);
	else
		printf("no connection was on a ring; all stay on TCP, and those to come, until: ringway on %d\n", a->pid);
}

/* Rung at the beginning only: who does not come then is in no call, or waits for its peer. */
static int await(const struct asked *a, struct stats_view *view, unsigned nr_to_go)
{
	const struct timespec pause = { .tv_nsec = LOOK_NS };
	double end = now_s() + a->wait_s;
	unsigned nr_on_rings, nr = count(a, view, &nr_on_rings, true);

	while (nr_on_rings && now_s() < end) {
		nanosleep(&pause, NULL);
		nr = count(a, view, &nr_on_rings, false);
	}
	if (!nr_on_rings) {
		say_back(a, view, nr_to_go, nr);
		return EXIT_GOOD;
	}
	complain("off: %u of %u connections are still on rings: process %d, or the peer, has made no call within %g seconds; they go back with the next one",
		 nr_on_rings, nr_to_go, a->pid, a->wait_s);
	return EXIT_BAD;
}

int command_off(int argc, char **argv)
{
	struct stats_view view;
	struct asked a;
	unsigned nr, nr_on_rings;
	int err, status = parse(argc, argv, &a);

	if (status < 0) {
		usage(stdout, argv[0]);
		return EXIT_GOOD;
	}
	if (status)
		return status;
	err = scan_to_ask(a.pid, &view);
	if (err == -ENOENT && kill(a.pid, 0) && errno == ESRCH)
		err = -ESRCH;
	if (err == -ENOENT) {
		complain("%s: process %d does not run under Ringway, or has not listened, nor had a busy connection, yet; see ringway ps", a.command, a.pid);
		return EXIT_BAD;
	}
	if (err) {
		complain("%s: process %d cannot be asked: %s", a.command, a.pid, strerror(-err));
		return EXIT_BAD;
	}
	nr = count(&a, &view, &nr_on_rings, false);
	if (a.fd >= 0 && !nr) {
		complain("%s: process %d has no busy connection under descriptor %d; see ringway ps", a.command, a.pid, a.fd);
		status = EXIT_BAD;
	} else {
		ask(&a, &view);
		status = a.off ? await(&a, &view, nr_on_rings) : EXIT_GOOD;
		if (a.fd >= 0 && !a.off && stats_all_off(&view)) {
			complain("on: descriptor %d stays on TCP, as all connections of process %d do until: ringway on %d", a.fd, a.pid, a.pid);
			status = EXIT_BAD;
		}
	}
	stats_detach(&view);
	return status;
}
