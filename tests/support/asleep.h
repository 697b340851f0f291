/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_ASLEEP_H
#define RINGWAY_TESTS_ASLEEP_H

#include <stdio.h>
#include <string.h>

/* The thread, of whichever process, is asleep in the kernel. */
static inline int asleep(int tid)
{
	char path[64], line[512] = "";
	FILE *file;
	char *at;

	snprintf(path, sizeof(path), "/proc/%d/stat", tid);
	file = fopen(path, "r");
	if (!file)
		return 0;
	at = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
	fclose(file);
	return at && at[2] == 'S';
}

#endif
