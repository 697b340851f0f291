/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_TALK_H
#define RINGWAY_TESTS_TALK_H

/*
 * A conversation over one TCP connection in which every byte is known by its position: requests and answers, a stream each way, a half
 * close. Spoken by an unmodified program (talk.c) and by the misbehaving peers, which replace send and recv.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum talk_role { TALK_CONNECTOR, TALK_ACCEPTOR };

enum { TALK_ROUNDS = 64, TALK_STREAM = 1 << 20 };

struct talk {
	int fd;
	enum talk_role role;
	/* As send() and recv(); NULL: those. */
	ssize_t (*send)(struct talk *t, const void *buf, size_t len);
	ssize_t (*recv)(struct talk *t, void *buf, size_t len);
	/* Before each request is sent or awaited. */
	void (*before_round)(struct talk *t, int round);
	char one_way;	/* 0, or which end ends its direction at once and only hears: c or a */
	uint64_t die_at;	/* kills itself once it has heard so many bytes; 0: lives */
	uint64_t sent, got;
	char error[128];	/* what went wrong, as one line */
};

/* Both ends do this; 0, or -1 with t->error. Leaves the socket open. */
int talk_run(struct talk *t);

/*
 * A connected socket on the loopback; `host` is 4, 6, or m for IPv4 by way of an IPv6 socket. Prints "port N" before it accepts. Exits
 * with 2 on failure.
 */
int talk_connect(uint16_t port, char host);
int talk_accept(char host);

#endif
