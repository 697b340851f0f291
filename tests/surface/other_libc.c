/* SPDX-License-Identifier: MIT */
/* Built for musl: a program whose libc is not ours, which a shell under Ringway starts like any other. */
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void caught(int sig)
{
	(void)sig;
}

int main(void)
{
	struct sigaction action = { .sa_handler = caught };
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM, 0), a = socket(AF_INET, SOCK_STREAM, 0), b, moved = 0, ended = 0;
	pid_t child;
	char byte;

	if (bind(listener, (struct sockaddr *)&addr, len) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&addr, &len) ||
	    connect(a, (struct sockaddr *)&addr, len) || (b = accept(listener, NULL, NULL)) < 0)
		return 1;
	for (int i = 0; i < 200; i++) {
		struct pollfd p = { .fd = b, .events = POLLIN };

		moved += send(a, "x", 1, 0) == 1 && poll(&p, 1, -1) == 1 && recv(b, &byte, 1, 0) == 1;
	}
	if (sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1))
		return 1;
	child = fork();
	if (!child) {
		close(b);
		_exit(0);
	}
	ended += waitpid(child, NULL, 0) == child;
	child = vfork();
	if (!child)
		_exit(0);
	ended += waitpid(child, NULL, 0) == child;
	printf("%d %d\n", moved, ended);
	return 0;
}
