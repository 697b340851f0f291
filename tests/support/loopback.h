/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_LOOPBACK_H
#define RINGWAY_TESTS_LOOPBACK_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

static inline struct sockaddr_in loopback_address(void)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

/* Both ends of a TCP connection over `at`, an address of this host, whose port is filled in. False, with errno. */
static inline bool loopback_connect(void *at, socklen_t len, int *connected, int *accepted)
{
	int listener = socket(((struct sockaddr *)at)->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool listens = listener >= 0 && !bind(listener, at, len) && !listen(listener, 1) && !getsockname(listener, at, &len);

	*connected = listens ? socket(((struct sockaddr *)at)->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
	*accepted = *connected >= 0 && !connect(*connected, at, len) ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
	if (listener >= 0)
		close(listener);
	return *accepted >= 0;
}

#endif
