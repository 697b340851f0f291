/* SPDX-License-Identifier: MIT */
/*
 * A program with an allocator of its own, which makes system calls through libc when it is first used, at a moment when
 * whoever stands in front of those calls may not allocate.
 */
#include "probe.h"

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

static char arena[8 << 20] __attribute__((aligned(16)));
static size_t used;
static volatile int started, inside, nested, interrupted;

static void start(void)
{
	char byte;
	int fd;

	inside = 1;
	fd = open("/proc/self/maps", O_RDONLY);
	if (fd >= 0) {
		(void)!read(fd, &byte, 1);
		fcntl(fd, F_GETFD);
		ioctl(fd, FIONREAD, &(int){ 0 });
		close(fd);
	}
	close(-1);
	inside = 0;
	started = 1;
}

void *malloc(size_t size)
{
	size_t *block;

	if (inside) {
		nested++; /* the deadlock of others */
		abort();
	}
	if (!started)
		start();
	if (interrupted) {
		interrupted = 0;
		inside = 1;
		raise(SIGUSR1);
		inside = 0;
	}
	size = (size + 15) & ~(size_t)15;
	if (used + size + 16 > sizeof(arena))
		return NULL;
	block = (size_t *)(arena + used);
	used += size + 16;
	*block = size;
	return (char *)block + 16;
}

void free(void *block)
{
}

void *calloc(size_t nr, size_t size)
{
	return malloc(nr * size); /* never handed out twice, so zero */
}

void *realloc(void *old, size_t size)
{
	void *block = malloc(size);

	if (old && block) {
		size_t kept = ((size_t *)((char *)old - 16))[0];

		memcpy(block, old, kept < size ? kept : size);
	}
	return block;
}

static int a, b;

static void talk(int sig)
{
	ping_pong(a, b, 20);
}

/* With an argument the talk is held by a handler that has interrupted the allocator. */
int main(int argc, char **argv)
{
	free(malloc(10));
	a = tcp_pair(&b);
	if (argc > 1) {
		signal(SIGUSR1, talk);
		interrupted = 1;
		free(malloc(10));
	} else {
		ping_pong(a, b, 20);
	}
	SAY("nested %d\n", nested);
	return 0;
}
