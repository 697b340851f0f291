/* SPDX-License-Identifier: MIT */
/* Descriptors by the names that the script gave them. A name outlives its descriptor: closed ones can be tried too. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "actor.h"

static struct name *look_up(struct actor *a, const char *text)
{
	for (int i = 0; i < a->names->nr; i++)
		if (!strcmp(a->names->of[i].text, text))
			return &a->names->of[i];
	return NULL;
}

struct name *name_find(struct actor *a, const char *text)
{
	struct name *n = look_up(a, text);

	if (!n)
		bad_step("no descriptor of that name", text);
	return n;
}

struct name *name_set(struct actor *a, const char *text, int fd)
{
	struct name *n = look_up(a, text);

	if (!n) {
		if (a->names->nr == MAX_NAMES || strlen(text) >= sizeof(n->text))
			bad_step("too many names, or too long", text);
		n = &a->names->of[a->names->nr++];
		snprintf(n->text, sizeof(n->text), "%s", text);
	}
	n->fd = fd;
	n->sent_pos = 0;
	return n;
}

int fd_of(struct actor *a, const char *text)
{
	if (isdigit((unsigned char)*text) || *text == '-')
		return (int)parse_number(text);
	return name_find(a, text)->fd;
}
