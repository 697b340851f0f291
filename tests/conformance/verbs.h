/* SPDX-License-Identifier: MIT */
/* The steps an actor knows: verbs.def is the table, one file per family of calls carries them out. */
#ifndef CONFORM_VERBS_H
#define CONFORM_VERBS_H

#include "actor.h"

#define VERB(name, usage) verb_fn verb_##name;
#include "verbs.def"
#undef VERB

verb_fn *verb_find(const char *name);


#endif
