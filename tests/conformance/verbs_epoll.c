/* SPDX-License-Identifier: MIT */
/* Steps of epoll. An event carries the number of the name that it was registered under, and is told by that name. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "verbs.h"
#include "verbs_wait.h"

enum { MAX_EVENTS = 16 };

static const struct word epoll_words[] = {
	{"in", EPOLLIN}, {"out", EPOLLOUT}, {"pri", EPOLLPRI}, {"rdhup", EPOLLRDHUP}, {"rdnorm", EPOLLRDNORM},
	{"wrnorm", EPOLLWRNORM}, {"rdband", EPOLLRDBAND}, {"wrband", EPOLLWRBAND}, {"msg", EPOLLMSG}, {"err", EPOLLERR},
	{"hup", EPOLLHUP}, {"et", (long)EPOLLET}, {"oneshot", EPOLLONESHOT}, {"exclusive", EPOLLEXCLUSIVE},
	{"none", 0}, {NULL, 0},
};

void verb_epoll_create(struct actor *a, int argc, char **argv)
{
	int fd = CALL(epoll_create1(EPOLL_CLOEXEC));

	say_result(a, fd < 0 ? -1 : 0);
	name_set(a, argv[1], fd);
}

static void control(struct actor *a, int op, int argc, char **argv)
{
	struct epoll_event event = {0};
	const char *tag = argc > 4 ? argv[4] : argv[2];
	int fd = fd_of(a, argv[2]);

	if (argc > 3)
		event.events = (uint32_t)parse_words(epoll_words, argv[3]);
	/* A tag is a name that needs no descriptor of its own. */
	if (argc > 4)
		name_set(a, tag, fd);
	if (*tag >= 'a')
		event.data.u64 = 0xabcd000000000000ull | (uint64_t)(name_find(a, tag) - a->names->of);
	say_result(a, CALL(epoll_ctl(fd_of(a, argv[1]), op, fd, op == EPOLL_CTL_DEL ? NULL : &event)));
}

void verb_epoll_add(struct actor *a, int argc, char **argv)
{
	control(a, EPOLL_CTL_ADD, argc, argv);
}

void verb_epoll_mod(struct actor *a, int argc, char **argv)
{
	control(a, EPOLL_CTL_MOD, argc, argv);
}

void verb_epoll_del(struct actor *a, int argc, char **argv)
{
	control(a, EPOLL_CTL_DEL, argc, argv);
}

static int by_tag(const void *left, const void *right)
{
	uint64_t l = ((const struct epoll_event *)left)->data.u64, r = ((const struct epoll_event *)right)->data.u64;

	return l < r ? -1 : l > r;
}

/* Sorted by tag: the order of one call's events is not promised. */
static void say_events(struct actor *a, int result, struct epoll_event *events)
{
	say_result(a, result);
	if (result > 1)
		qsort(events, (size_t)result, sizeof(*events), by_tag);
	for (int i = 0; i < result; i++) {
		uint64_t tag = events[i].data.u64 & 0xffffffffffffull;

		if (events[i].data.u64 >> 48 != 0xabcd || tag >= (uint64_t)a->names->nr) {
			say(a, " unknown-tag:");
		} else {
			say(a, " %s:", a->names->of[tag].text);
		}
		say_words(a, epoll_words, events[i].events);
	}
}

static int parse_max(int argc, char **argv, int at)
{
	long max = argc > at ? parse_number(argv[at]) : MAX_EVENTS;

	if (max > MAX_EVENTS)
		bad_step("too many events", argv[at]);
	return (int)max;
}

void verb_epoll_wait(struct actor *a, int argc, char **argv)
{
	struct epoll_event events[MAX_EVENTS] = {0};
	int max = parse_max(argc, argv, 3);

	say_events(a, CALL(epoll_wait(fd_of(a, argv[1]), events, max, (int)parse_number(argv[2]))), events);
}

void verb_epoll_pwait(struct actor *a, int argc, char **argv)
{
	struct epoll_event events[MAX_EVENTS] = {0};
	int max = parse_max(argc, argv, 4);
	sigset_t mask, *m = parse_mask(argv[3], &mask);

	say_events(a, CALL(epoll_pwait(fd_of(a, argv[1]), events, max, (int)parse_number(argv[2]), m)), events);
}

void verb_epoll_pwait2(struct actor *a, int argc, char **argv)
{
	struct epoll_event events[MAX_EVENTS] = {0};
	int max = parse_max(argc, argv, 3);
	struct timespec timeout;

	say_events(a, CALL(epoll_pwait2(fd_of(a, argv[1]), events, max, parse_timeout(argv[2], &timeout), NULL)), events);
}
