/* SPDX-License-Identifier: MIT */
/* A connection that two processes had for a while, and then one. */
#include "probe.h"

enum { ROUNDS = 400 };

int main(int argc, char **argv)
{
	int b, a = tcp_pair(&b);
	pid_t pid;

	ping_pong(a, b, ROUNDS);
	for (int i = 0; i < 2; i++) {
		pid = fork();
		if (pid == 0) {
			if (i)
				ping_pong(a, b, 3);
			_exit(0);
		}
		MUST(wait_for(pid) == 0);
		ping_pong(a, b, ROUNDS);
		SAY("talks after child %d\n", i);
	}
	/* The other way round. */
	pid = fork();
	if (pid == 0) {
		ping_pong(a, b, ROUNDS);
		SAY("talks without its parent\n");
		exit(0);
	}
	close(a);
	close(b);
	MUST(wait_for(pid) == 0);
	return 0;
}
