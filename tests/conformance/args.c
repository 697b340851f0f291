/* SPDX-License-Identifier: MIT */
/* Words and numbers of a step. A script that cannot be parsed ends the run at once. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "actor.h"

const struct word msg_words[] = {
	{"peek", MSG_PEEK}, {"waitall", MSG_WAITALL}, {"trunc", MSG_TRUNC}, {"dontwait", MSG_DONTWAIT},
	{"nosignal", MSG_NOSIGNAL}, {"more", MSG_MORE}, {"oob", MSG_OOB}, {"errqueue", MSG_ERRQUEUE},
	{"ctrunc", MSG_CTRUNC}, {"eor", MSG_EOR}, {"cmsg_cloexec", MSG_CMSG_CLOEXEC}, {"waitforone", MSG_WAITFORONE},
	{"zerocopy", MSG_ZEROCOPY},
	{NULL, 0},
};

void bad_step(const char *why, const char *what)
{
	fprintf(stderr, "conform: %s: %s\n", why, what);
	_Exit(99);
}

long parse_number(const char *text)
{
	char *end;
	long value = strtol(text, &end, 0);

	if (end == text || *end)
		bad_step("not a number", text);
	return value;
}

long parse_word(const struct word *table, const char *text)
{
	for (; table->text; table++)
		if (!strcmp(table->text, text))
			return table->value;
	bad_step("unknown word", text);
}

long parse_words(const struct word *table, char *list)
{
	char *rest = NULL;
	long value = 0;

	for (char *one = strtok_r(list, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
		value |= parse_word(table, one);
	return value;
}

long parse_rest(const struct word *table, int argc, char **argv, int from)
{
	long value = 0;

	for (int i = from; i < argc; i++)
		value |= parse_word(table, argv[i]);
	return value;
}

void say_words(struct actor *a, const struct word *table, unsigned long value)
{
	const char *comma = "";

	for (; table->text; table++) {
		unsigned long bits = (unsigned long)table->value;

		if (!bits || (value & bits) != bits)
			continue;
		say(a, "%s%s", comma, table->text);
		value &= ~bits;
		comma = ",";
	}
	if (value)
		say(a, "%s%#lx", comma, value);
	else if (!*comma)
		say(a, "none");
}

int parse_signal(const char *text)
{
	for (int sig = 1; sig < NSIG; sig++) {
		const char *name = sigabbrev_np(sig);

		if (name && !strcmp(name, text))
			return sig;
	}
	bad_step("unknown signal", text);
}
