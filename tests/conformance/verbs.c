/* SPDX-License-Identifier: MIT */
/* Finds a verb's function; the table is verbs.def. */
#include <string.h>

#include "verbs.h"

static const struct {
	const char *name;
	verb_fn *run;
} verbs[] = {
#define VERB(name, usage) {#name, verb_##name},
#include "verbs.def"
#undef VERB
};

verb_fn *verb_find(const char *name)
{
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(verbs[i].name, name))
			return verbs[i].run;
	return NULL;
}
