/* SPDX-License-Identifier: MIT */
/* Waits that end by time, on a connection that is quiet. Where the program's clock stands still they end all the same. */
#include "probe.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>

int main(void)
{
	int connected, accepted = tcp_pair(&connected), set = epoll_create1(0);
	struct pollfd look = { .fd = connected, .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN };
	struct timeval moment = { .tv_usec = 20000 };
	fd_set readable;
	char byte;

	ping_pong(accepted, connected, 20);
	MUST(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, connected, &event) == 0);
	SAY("poll %s\n", outcome(poll(&look, 1, 20)));
	SAY("epoll %s\n", outcome(epoll_wait(set, &event, 1, 20)));
	MUST(setsockopt(connected, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof(moment)) == 0);
	FD_ZERO(&readable);
	FD_SET(connected, &readable);
	SAY("select %s\n", outcome(select(connected + 1, &readable, NULL, NULL, &moment)));
	SAY("recv %s\n", outcome(recv(connected, &byte, 1, 0)));
	ping_pong(accepted, connected, 20);
	return 0;
}
