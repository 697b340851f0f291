/* SPDX-License-Identifier: MIT */
/* Uses a socket from before main, exit handlers and destructors. */
#include "lifetime.h"
#include "probe.h"

#include <fcntl.h>

static int a, b;

static void handler(void)
{
	ping_pong(a, b, 20);
	SAY("exit handler\n");
}

__attribute__((destructor)) static void late(void)
{
	ping_pong(b, a, 20);
	write(1, "destructor\n", 11);
}

int main(void)
{
	atexit(handler);
	a = tcp_pair(&b);
	ping_pong(a, b, 20);
	SAY("fd from before main %d\n", fcntl(lifetime_fd(), F_GETFD));
	return 3;
}
