/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TESTS_NEGO_BENCH_H
#define RINGWAY_TESTS_NEGO_BENCH_H

/*
 * Both ends of a loopback connection in one process, with real sockets, segments and bells, and the rest of the shim reduced to
 * what the rendezvous sees of it.
 */

#include <stdarg.h>
#include <stdbool.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "ringbuf/shm.h"
#include "shim/conn.h"
#include "shim/nego.h"
#include "shim/nego_msg.h"
#include "shim/options.h"

/* What the rendezvous asked of the rest of the shim, and what that answers. */
struct seen {
	int seeks, pins, links, adopts, disowns;
	enum reason why;
	int watched, busy, adopt_rc, hide_rc, hide_after;
	bool locked, off, waits_to_be_armed;
	int part;	/* enum renew_part */
	int lacks;	/* enum reason: what room was asked for, last */
	int room_asked, helped;
	bool room_comes;
	bool few_fds;	/* there is room for `room` hidden ones */
	int room;
	void *engine;	/* the verbs engine's table; NULL: there is none */
	void (*before_lock)(void);	/* what another thread does, once, before the next step has its locks */
};
extern struct seen seen;

enum kind { V4, V6, MAPPED, NR_KINDS };

struct bench {
	int connector_fd, acceptor_fd;
	struct conn connector, acceptor;
	struct nego_tuple tuple;
	int nr_fds;
};
extern struct bench bench;

void bench_open(enum kind kind);
/* Whatever the outcome: no descriptor more than before. */
void bench_close(void);
void conn_blank(struct conn *c, enum conn_role role, uint32_t index);
/* With the number in the table of descriptors. */
void poke_by(struct conn *c, int fd);
void poke_connector(void);
void poke_acceptor(void);
/* Bytes that the shim counted. */
void move_counted(const char *text);
void assert_linked(void);

/* Strangers: whoever else can reach the offer's name. */
int stranger_dial(void);
int stranger_listen(void);
void stranger_send(int link, const void *buf, size_t len, const int *fds, size_t nr);
struct nego_hello honest_hello(uint32_t ring_bytes);

#endif
