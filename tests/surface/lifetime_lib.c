/* SPDX-License-Identifier: MIT */
/* Talks before main and after it: constructors here run before those of a preloaded object, destructors after. */
#include "lifetime.h"
#include "probe.h"

static int a, b;

__attribute__((constructor)) static void early(void)
{
	a = tcp_pair(&b);
	ping_pong(a, b, 20);
	write(1, "early\n", 6);
}

__attribute__((destructor)) static void late(void)
{
	int connected, accepted = tcp_pair(&connected);

	ping_pong(a, b, 20);
	ping_pong(accepted, connected, 20);
	write(1, "late\n", 5);
}

int lifetime_fd(void)
{
	return a;
}
