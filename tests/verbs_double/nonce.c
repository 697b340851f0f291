/* SPDX-License-Identifier: MIT */
/* The one thing in which the double knows what it carries: a nonce that is not the peer's own, under a check that is right. */
#include <netinet/in.h>

#include "cm.h"
#include "shim/le.h"
#include "shim/nego_remote_msg.h"

enum { OFF_ACCEPTOR_PORT = 48 };

void say_another_nonce(struct wire *w)
{
	bool asks = w->kind == WIRE_REQUEST;
	struct sockaddr_in6 connector = asks ? w->to : w->from, acceptor = asks ? w->from : w->to;
	struct nego_remote_self self;
	struct nego_tuple t;

	/* The dialler's port is none of the connection's; those of both families are in one place. */
	acceptor.sin6_port = htons((uint16_t)get_le(w->data + OFF_ACCEPTOR_PORT, 2));
	if (nego_tuple_make(&t, (struct sockaddr *)&connector, (struct sockaddr *)&acceptor) ||
	    nego_remote_decode(&self, &t, w->data, w->length)) {
		misuse("no message of Ringway's");
		return;
	}
	self.nonce[1] ^= 1;
	nego_remote_encode(w->data, &t, &self);
}
