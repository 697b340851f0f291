/* SPDX-License-Identifier: MIT */
/* See control.h. */
#include "shim/control.h"

#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "shim/conn.h"
#include "shim/conn_iov.h"
#include "shim/fd_conn.h"

struct stamp {
	int64_t seconds, rest;
};

static bool counts_nanoseconds(int name)
{
	return name == SO_TIMESTAMPNS_OLD || name == SO_TIMESTAMPNS_NEW;
}

/* The room that is left for more. */
struct put {
	struct msghdr *m;
	char *at;
	size_t room;
};

/* As the kernel's put_cmsg() does it. */
static void put(struct put *p, int level, int type, const void *data, size_t len)
{
	struct cmsghdr head = { .cmsg_level = level, .cmsg_type = type, .cmsg_len = CMSG_LEN(len) };
	char message[CMSG_SPACE(sizeof(struct stamp))] = "";
	size_t space = CMSG_SPACE(len);

	if (!p->at || p->room < sizeof(head)) {
		p->m->msg_flags |= MSG_CTRUNC;
		return;
	}
	if (p->room < head.cmsg_len) {
		p->m->msg_flags |= MSG_CTRUNC;
		head.cmsg_len = p->room;
	}
	memcpy(message, &head, sizeof(head));
	memcpy(message + sizeof(head), data, len);
	if (user_range_bad(p->at, head.cmsg_len))
		return;
	memcpy(p->at, message, head.cmsg_len);
	if (space > p->room)
		space = p->room;
	p->at += space;
	p->room -= space;
	p->m->msg_controllen += space;
}

void control_wanted(struct conn *c, int fd, size_t room)
{
	if (unlikely(load_relaxed(&c->stamps)) && room && !load_relaxed(&c->pinned))
		(void)fd_come_back(fd, REASON_TIMESTAMPS);
}

void control_tell(struct conn *c, int fd, struct msghdr *m, size_t room, ssize_t n)
{
	int stamps = load_relaxed(&c->stamps);
	bool inq = load_relaxed(&c->tells_inq);
	struct put p = { m, m->msg_control, room };

	/* Urgent bytes, the error queue and what has come by TCP are the kernel's. */
	if (likely(!stamps && !inq) || m->msg_controllen)
		return;
	m->msg_flags &= ~MSG_CTRUNC;
	if (stamps && n > 0) {
		struct timespec now;
		struct stamp stamp;

		clock_gettime(CLOCK_REALTIME, &now);
		stamp = (struct stamp){ now.tv_sec, counts_nanoseconds(stamps) ? now.tv_nsec : now.tv_nsec / 1000 };
		put(&p, SOL_SOCKET, stamps, &stamp, sizeof(stamp));
	}
	if (inq) {
		int left = conn_inq_hint(c, fd);

		put(&p, IPPROTO_TCP, TCP_CM_INQ, &left, sizeof(left));
	}
}

void control_of_plain(int fd, const struct msghdr *m, ssize_t n)
{
	const struct cmsghdr *first;

	if (likely(n < 0 || !m->msg_controllen))
		return;
	first = CMSG_FIRSTHDR(m);
	if (first && first->cmsg_level == SOL_SOCKET && CONTROL_STAMPS(first->cmsg_type))
		(void)fd_pin(fd, REASON_TIMESTAMPS);
}
