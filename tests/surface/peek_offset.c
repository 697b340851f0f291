/* SPDX-License-Identifier: MIT */
/* SO_PEEK_OFF, where the kernel has it for TCP: peeks go on where the one before has ended. */
#include "probe.h"

static void set(int fd, int offset)
{
	SAY("set %d: %s\n", offset, outcome(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof(offset))));
}

static void get(int fd)
{
	int offset = -7;
	socklen_t len = sizeof(offset);
	int result = getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, &len);

	SAY("get: %s %d\n", outcome(result), offset);
}

static void take(int fd, size_t len, int flags)
{
	char bytes[64] = "";
	ssize_t n = recv(fd, bytes, len, flags);

	SAY("%s %zu: %s \"%s\"\n", flags & MSG_PEEK ? "peek" : "take", len, outcome(n), bytes);
}

static void peeks(int a, int b)
{
	get(b);
	MUST(send(a, "0123456789", 10, 0) == 10);
	take(b, 10, MSG_PEEK | MSG_WAITALL);
	set(b, 0);
	for (int i = 0; i < 3; i++)
		take(b, 4, MSG_PEEK | MSG_DONTWAIT);
	take(b, 3, 0);
	MUST(send(a, "abc", 3, 0) == 3);
	take(b, 3, MSG_PEEK | MSG_WAITALL);
	get(b);
	set(b, 5);
	take(b, 20, MSG_PEEK | MSG_DONTWAIT);
	set(b, -1);
	take(b, 20, MSG_PEEK | MSG_DONTWAIT);
	take(b, 20, MSG_DONTWAIT);
	take(b, 20, MSG_DONTWAIT);
}

/* It may be too late then; the stream must stay what it is. */
static void late(int a, int b)
{
	int zero = 0, off = -1;

	MUST(setsockopt(b, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof(zero)) == 0 || errno == EOPNOTSUPP);
	MUST(setsockopt(b, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof(off)) == 0 || errno == EOPNOTSUPP);
	MUST(send(a, "word", 4, 0) == 4);
	take(b, 4, MSG_PEEK | MSG_WAITALL);
	take(b, 4, MSG_PEEK);
	take(b, 2, 0);
	take(b, 2, 0);
	ping_pong(a, b, 20);
}

int main(void)
{
	int a, b;

	alarm(20);
	a = tcp_pair(&b);
	/* Not yet busy enough for anything else than TCP. */
	set(b, 0);
	set(b, -1);
	peeks(a, b);
	ping_pong(a, b, 40);
	set(b, 0);
	peeks(a, b);
	close(a);
	close(b);
	a = tcp_pair(&b);
	ping_pong(a, b, 40);
	late(a, b);
	return 0;
}
