/* SPDX-License-Identifier: MIT */
/* A plug-in that is given a connection. */
#include <poll.h>
#include <sys/socket.h>

__attribute__((visibility("default"))) int serve(int fd, int messages);

int serve(int fd, int messages)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char bytes[8];
	int served = 0;

	while (served < messages && poll(&p, 1, -1) == 1 && recv(fd, bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes) &&
	       send(fd, bytes, sizeof(bytes), 0) == sizeof(bytes))
		served++;
	return served;
}
