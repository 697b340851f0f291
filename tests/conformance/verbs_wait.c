/* SPDX-License-Identifier: MIT */
/* Steps that wait for several descriptors: poll and select with their relatives, and the clock for time-outs. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/select.h>
#include <time.h>

#include "verbs.h"
#include "verbs_wait.h"

/*
 * Two clocks, because the kernel has two kinds of time-outs: that of a socket is counted in ticks, and where a virtual processor
 * was held up, ticks come late and then all at once, so that on the precise clock it can end early. The coarse clock goes by the
 * ticks. Those of poll and its like go by the precise one.
 */
static const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE};
enum { NR_CLOCKS = sizeof(clocks) / sizeof(clocks[0]) };
static struct timespec marked[NR_CLOCKS];

void verb_mark(struct actor *a, int argc, char **argv)
{
	for (int i = 0; i < NR_CLOCKS; i++)
		clock_gettime(clocks[i], &marked[i]);
	say(a, "= ok");
}

/* A lower bound only: how long a machine takes on top of it is not a property of the program. */
void verb_waited(struct actor *a, int argc, char **argv)
{
	long want_ns = parse_number(argv[1]) * 1000000, most_ns = 0;

	for (int i = 0; i < NR_CLOCKS; i++) {
		struct timespec now;
		long ns;

		clock_gettime(clocks[i], &now);
		ns = (now.tv_sec - marked[i].tv_sec) * 1000000000 + now.tv_nsec - marked[i].tv_nsec;
		most_ns = ns > most_ns ? ns : most_ns;
	}
	say(a, most_ns >= want_ns ? "= yes" : "= no, early");
}

static const struct word poll_words[] = {
	{"in", POLLIN}, {"out", POLLOUT}, {"pri", POLLPRI}, {"rdhup", POLLRDHUP}, {"rdnorm", POLLRDNORM},
	{"wrnorm", POLLWRNORM}, {"rdband", POLLRDBAND}, {"wrband", POLLWRBAND}, {"err", POLLERR}, {"hup", POLLHUP},
	{"nval", POLLNVAL}, {"none", 0}, {NULL, 0},
};

enum { MAX_WAITED = 16 };

/* "FD:WORDS" into its halves. */
static char *split(char *text)
{
	char *colon = strchr(text, ':');

	if (!colon)
		bad_step("no colon", text);
	*colon = 0;
	return colon + 1;
}

struct timespec *parse_timeout(const char *text, struct timespec *room)
{
	long ms = parse_number(text);

	if (ms < 0)
		return NULL;
	*room = (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
	return room;
}

sigset_t *parse_mask(const char *text, sigset_t *room)
{
	if (!strcmp(text, "-"))
		return NULL;
	sigemptyset(room);
	if (strcmp(text, "empty"))
		sigaddset(room, parse_signal(text));
	return room;
}

static int parse_pollfds(struct actor *a, int argc, char **argv, int from, struct pollfd *p)
{
	int nr = 0;

	for (int i = from; i < argc; i++, nr++) {
		char *words = split(argv[i]);

		if (nr == MAX_WAITED)
			bad_step("too many", "descriptors");
		p[nr] = (struct pollfd){.fd = fd_of(a, argv[i]), .revents = 0x5555};
		p[nr].events = (short)parse_words(poll_words, words);
	}
	return nr;
}

static void say_pollfds(struct actor *a, int result, char **argv, int from, const struct pollfd *p, int nr)
{
	say_result(a, result);
	for (int i = 0; i < nr && result >= 0; i++) {
		if (!p[i].revents)
			continue;
		say(a, " %s:", argv[from + i]);
		say_words(a, poll_words, (unsigned short)p[i].revents);
	}
}

void verb_poll(struct actor *a, int argc, char **argv)
{
	struct pollfd p[MAX_WAITED];
	int nr = parse_pollfds(a, argc, argv, 2, p);
	int result = CALL(poll(p, (nfds_t)nr, (int)parse_number(argv[1])));

	say_pollfds(a, result, argv, 2, p, nr);
}

void verb_ppoll(struct actor *a, int argc, char **argv)
{
	struct pollfd p[MAX_WAITED];
	struct timespec timeout;
	sigset_t mask;
	int nr = parse_pollfds(a, argc, argv, 3, p);
	int result = CALL(ppoll(p, (nfds_t)nr, parse_timeout(argv[1], &timeout), parse_mask(argv[2], &mask)));

	say_pollfds(a, result, argv, 3, p, nr);
}

struct sets {
	fd_set r, w, e;
	int nfds;
};

static void parse_sets(struct actor *a, int argc, char **argv, int from, struct sets *s)
{
	memset(s, 0, sizeof(*s));
	for (int i = from; i < argc; i++) {
		char *words = split(argv[i]);
		int fd = fd_of(a, argv[i]);

		if (fd < 0 || fd >= FD_SETSIZE)
			bad_step("not for select", argv[i]);
		if (strchr(words, 'r'))
			FD_SET(fd, &s->r);
		if (strchr(words, 'w'))
			FD_SET(fd, &s->w);
		if (strchr(words, 'e'))
			FD_SET(fd, &s->e);
		s->nfds = fd >= s->nfds ? fd + 1 : s->nfds;
	}
}

static void say_sets(struct actor *a, int result, int argc, char **argv, int from, const struct sets *s)
{
	say_result(a, result);
	for (int i = from; i < argc && result >= 0; i++) {
		int fd = fd_of(a, argv[i]);

		if (FD_ISSET(fd, &s->r) || FD_ISSET(fd, &s->w) || FD_ISSET(fd, &s->e))
			say(a, " %s:%s%s%s", argv[i], FD_ISSET(fd, &s->r) ? "r" : "", FD_ISSET(fd, &s->w) ? "w" : "",
			    FD_ISSET(fd, &s->e) ? "e" : "");
	}
}

void verb_select(struct actor *a, int argc, char **argv)
{
	long ms = parse_number(argv[1]);
	struct timeval timeout = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
	struct sets s;
	int result;

	parse_sets(a, argc, argv, 2, &s);
	result = CALL(select(s.nfds, &s.r, &s.w, &s.e, ms < 0 ? NULL : &timeout));
	say_sets(a, result, argc, argv, 2, &s);
	/* Linux writes the time left back: all gone after a time-out. */
	if (ms >= 0 && result == 0)
		say(a, timeout.tv_sec || timeout.tv_usec ? " time-left" : "");
}

void verb_pselect(struct actor *a, int argc, char **argv)
{
	struct timespec timeout;
	sigset_t mask;
	struct sets s;
	int result;

	parse_sets(a, argc, argv, 3, &s);
	result = CALL(pselect(s.nfds, &s.r, &s.w, &s.e, parse_timeout(argv[1], &timeout), parse_mask(argv[2], &mask)));
	say_sets(a, result, argc, argv, 3, &s);
}
