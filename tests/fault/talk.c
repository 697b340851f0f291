/* SPDX-License-Identifier: MIT */
/*
 * The program that notices nothing: talk accept HOST | talk connect HOST PORT. Says "ok" or what went wrong, then waits for the end
 * of its standard input with every socket closed, so that somebody can look at what it still holds.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fault/talk.h"

int main(int argc, char **argv)
{
	struct talk t = { 0 };
	bool waits = false;
	char byte;
	int rc;

	alarm(40);
	/*
	 * The last argument, one-way-c or one-way-a: that end only hears; or die-BYTES: no further than that; or waits: says when it is
	 * connected, and begins when it is given a byte.
	 */
	if (argc > 3 && !strncmp(argv[argc - 1], "one-way-", 8))
		t.one_way = argv[--argc][8];
	else if (argc > 3 && !strcmp(argv[argc - 1], "waits") && argc--)
		waits = true;
	else if (argc > 3 && !strncmp(argv[argc - 1], "die-", 4))
		t.die_at = strtoull(argv[--argc] + 4, NULL, 10);
	if (argc == 3 && !strcmp(argv[1], "accept")) {
		t.role = TALK_ACCEPTOR;
		t.fd = talk_accept(argv[2][0]);
	} else if (argc == 4 && !strcmp(argv[1], "connect")) {
		t.role = TALK_CONNECTOR;
		t.fd = talk_connect((uint16_t)atoi(argv[3]), argv[2][0]);
	} else {
		fprintf(stderr, "usage: talk accept 4|6|m [OPTION], talk connect 4|6|m PORT [OPTION]; OPTION one-way-c, one-way-a, die-BYTES, waits\n");
		return 2;
	}
	if (waits) {
		printf("ready\n");
		fflush(stdout);
		if (read(0, &byte, 1) != 1)
			return 2;
	}
	rc = talk_run(&t);
	close(t.fd);
	printf("%s\n", rc ? t.error : "ok");
	fflush(stdout);
	while (read(0, &byte, 1) < 0 && errno == EINTR)
		;
	return rc ? 1 : 0;
}
