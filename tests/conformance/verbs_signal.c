/* SPDX-License-Identifier: MIT */
/* Steps about signals. A handler counts, and may carry out a step itself: what a program may do in there, it does. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

static struct {
	_Atomic int count;
	struct actor *actor; /* of the step in the handler; NULL: none */
	char step[200];
} handled[NSIG];

static void on_signal(int sig)
{
	int error = errno;

	handled[sig].count++;
	if (handled[sig].actor) {
		char line[sizeof(handled[0].step)], *argv[MAX_ARGS + 1], *rest = NULL;
		int argc = 0;

		strcpy(line, handled[sig].step);
		for (char *w = strtok_r(line, " ", &rest); w && argc < MAX_ARGS; w = strtok_r(NULL, " ", &rest))
			argv[argc++] = w;
		argv[argc] = NULL;
		actor_run(handled[sig].actor, argc, argv);
		say(handled[sig].actor, ";");
	}
	errno = error;
}

void verb_sigaction(struct actor *a, int argc, char **argv)
{
	int sig = parse_signal(argv[1]);
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = strcmp(argv[2], "restart") ? 0 : SA_RESTART};

	/* The handler's steps have an actor of their own: its buffer and answer are not those of what they interrupt. */
	handled[sig].actor = argc > 3 ? actor_new(a->name, a->channel, a->names) : NULL;
	handled[sig].step[0] = 0;
	for (int i = 3; i < argc; i++) {
		if (strlen(handled[sig].step) + strlen(argv[i]) + 2 > sizeof(handled[0].step))
			bad_step("step too long", argv[1]);
		strcat(strcat(handled[sig].step, argv[i]), " ");
	}
	handled[sig].count = 0;
	say_result(a, CALL(sigaction(sig, &action, NULL)));
}

void verb_signal_call(struct actor *a, int argc, char **argv)
{
	int sig = parse_signal(argv[1]);
	sighandler_t to = !strcmp(argv[2], "count") ? on_signal : !strcmp(argv[2], "ignore") ? SIG_IGN : SIG_DFL;

	handled[sig].count = 0;
	say(a, signal(sig, to) == SIG_ERR ? "= failed" : "= ok");
}

void verb_sigcount(struct actor *a, int argc, char **argv)
{
	int sig = parse_signal(argv[1]);

	say(a, "= %d", handled[sig].count);
	if (handled[sig].actor)
		say(a, " %s", handled[sig].actor->reply);
}

void verb_sigmask(struct actor *a, int argc, char **argv)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, parse_signal(argv[2]));
	say(a, "= %d", pthread_sigmask(strcmp(argv[1], "block") ? SIG_UNBLOCK : SIG_BLOCK, &set, NULL));
}

void verb_raise(struct actor *a, int argc, char **argv)
{
	say(a, "= %d", raise(parse_signal(argv[1])));
}
