/* SPDX-License-Identifier: MIT */
/*
 * Exact socket look-up and byte counts. A netlink socket is opened for each look-up and closed again: a connection makes at
 * most a few, and a cached one would be one more descriptor to hide, to lose in a fork and to find closed by the program.
 */
#include "shim/diag.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>

#include "ringbuf/sys.h"

enum { DIAG_OVERFLOW_UID = 65534 };

/* TCP states by what has ended: netinet/tcp.h has the numbers too, but not beside linux/tcp.h. */
enum { ESTABLISHED = 1, FIN_WAIT1 = 4, FIN_WAIT2 = 5, CLOSE_WAIT = 8, LAST_ACK = 9, CLOSING = 11 };

static bool is_open(unsigned int state)
{
	return state == ESTABLISHED || state == FIN_WAIT1 || state == FIN_WAIT2 || state == CLOSE_WAIT;
}

static bool fin_sent(unsigned int state)
{
	return state == FIN_WAIT1 || state == FIN_WAIT2 || state == LAST_ACK || state == CLOSING;
}

static bool fin_received(unsigned int state)
{
	return state == CLOSE_WAIT || state == LAST_ACK || state == CLOSING;
}

struct request {
	struct nlmsghdr head;
	struct inet_diag_req_v2 body;
};

/* Room for the answer and the attributes that the kernel adds unasked. */
union answer {
	struct nlmsghdr head;
	uint8_t bytes[512];
};

static void request_make(struct request *rq, const struct nego_tuple *t, enum diag_side side, uint32_t scope)
{
	bool near = side == DIAG_CONNECTOR;
	size_t nr = t->family == 4 ? 4 : 16;
	struct inet_diag_sockid *id = &rq->body.id;

	memset(rq, 0, sizeof(*rq));
	rq->head.nlmsg_len = sizeof(*rq);
	rq->head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
	rq->head.nlmsg_flags = NLM_F_REQUEST;
	rq->body.sdiag_family = t->family == 4 ? AF_INET : AF_INET6;
	rq->body.sdiag_protocol = IPPROTO_TCP;
	rq->body.idiag_states = ~0u;
	id->idiag_sport = htons(near ? t->connector_port : t->acceptor_port);
	id->idiag_dport = htons(near ? t->acceptor_port : t->connector_port);
	memcpy(id->idiag_src, near ? t->connector_addr : t->acceptor_addr, nr);
	memcpy(id->idiag_dst, near ? t->acceptor_addr : t->connector_addr, nr);
	id->idiag_if = scope;
	id->idiag_cookie[0] = INET_DIAG_NOCOOKIE;
	id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
}

/* An IPv6 socket that speaks IPv4 is reported with mapped addresses: compared as the last four bytes. */
static bool same_addr(const __be32 got[4], uint8_t got_family, const __be32 asked[4], uint8_t asked_family)
{
	static const __be32 none[2];

	if (got_family == asked_family)
		return !memcmp(got, asked, asked_family == AF_INET ? 4 : 16);
	return got_family == AF_INET6 && asked_family == AF_INET && !memcmp(got, none, 8) && got[2] == htonl(0xffff) &&
	       got[3] == asked[0];
}

/* The kernel's look-up falls back to listeners, which match by port alone: only the very 4-tuple counts. */
static bool is_the_one(const struct inet_diag_msg *m, const struct request *rq)
{
	const struct inet_diag_sockid *want = &rq->body.id, *got = &m->id;

	return got->idiag_sport == want->idiag_sport && got->idiag_dport == want->idiag_dport &&
	       same_addr(got->idiag_src, m->idiag_family, want->idiag_src, rq->body.sdiag_family) &&
	       same_addr(got->idiag_dst, m->idiag_family, want->idiag_dst, rq->body.sdiag_family);
}

static int answer_parse(struct diag_socket *out, const union answer *a, size_t len, const struct request *rq)
{
	if (len < sizeof(a->head) || a->head.nlmsg_len > len || a->head.nlmsg_len < sizeof(a->head))
		return -EBADMSG;
	if (a->head.nlmsg_type == NLMSG_ERROR) {
		struct nlmsgerr err;

		if (a->head.nlmsg_len < NLMSG_LENGTH(sizeof(err)))
			return -EBADMSG;
		memcpy(&err, NLMSG_DATA(&a->head), sizeof(err));
		return err.error < 0 ? err.error : -EBADMSG;
	}
	if (a->head.nlmsg_type != SOCK_DIAG_BY_FAMILY || a->head.nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
		return -EBADMSG;

	struct inet_diag_msg m;

	memcpy(&m, NLMSG_DATA(&a->head), sizeof(m));
	if (!is_the_one(&m, rq))
		return -ENOENT;
	out->uid = m.idiag_uid;
	out->inode = m.idiag_inode;
	out->cookie = (uint64_t)m.id.idiag_cookie[1] << 32 | m.id.idiag_cookie[0];
	out->open = is_open(m.idiag_state);
	return 0;
}

int diag_lookup(struct diag_socket *out, const struct nego_tuple *t, enum diag_side side, uint32_t scope)
{
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct request rq;
	union answer a;
	ssize_t n;
	int fd;

	memset(out, 0, sizeof(*out));
	request_make(&rq, t, side, scope);
	fd = sys_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
	if (fd < 0)
		return fd;
	n = sys_sendto(fd, &rq, sizeof(rq), MSG_DONTWAIT, &kernel, sizeof(kernel));
	if (n == sizeof(rq))
		n = sys_recvfrom(fd, &a, sizeof(a), MSG_DONTWAIT, NULL, NULL);
	else if (n >= 0)
		n = -EBADMSG;
	sys_close(fd);
	return n < 0 ? (int)n : answer_parse(out, &a, (size_t)n, &rq);
}

/* Old kernels know a shorter TCP_INFO: without the counters nothing can be compared, and so nothing is switched. */
static int info_get(int fd, struct tcp_info *ti)
{
	socklen_t len = sizeof(*ti);
	int rc = sys_getsockopt(fd, IPPROTO_TCP, TCP_INFO, ti, &len);

	if (rc < 0)
		return rc;
	return len < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(ti->tcpi_bytes_received) ? -EOPNOTSUPP : 0;
}

/* A FIN of ours is part of the send queue until it is acknowledged; one of the peer's is among the received, never the unread. */
static void counts_take(struct diag_bytes *out, const struct tcp_info *ti, uint64_t unacked, uint64_t unread, bool connector)
{
	bool ours = fin_sent(ti->tcpi_state), theirs = fin_received(ti->tcpi_state);

	out->written = ti->tcpi_bytes_acked + unacked - (connector ? 1 : 0) - (ours ? 1 : 0);
	out->read = ti->tcpi_bytes_received - unread - (theirs ? 1 : 0);
	out->writable = is_open(ti->tcpi_state) && !ours;
	out->readable = is_open(ti->tcpi_state) && !theirs;
}

bool diag_peer_ended(int fd)
{
	struct tcp_info ti;

	return info_get(fd, &ti) < 0 || !is_open(ti.tcpi_state) || fin_received(ti.tcpi_state);
}

int diag_counts(int fd, bool connector, struct diag_bytes *out)
{
	struct tcp_info before, after;
	int rc = info_get(fd, &before);

	/* Acknowledgements arrive at any time, and several calls cannot be one snapshot: looked at until two looks agree. */
	for (int look = 0; !rc && look < 4; look++) {
		int unacked = 0, unread = 0;

		rc = (int)sys_call3(SYS_ioctl, fd, SIOCOUTQ, &unacked);
		if (!rc)
			rc = (int)sys_call3(SYS_ioctl, fd, SIOCINQ, &unread);
		if (!rc)
			rc = info_get(fd, &after);
		if (rc)
			return rc;
		if (before.tcpi_bytes_acked == after.tcpi_bytes_acked && before.tcpi_bytes_received == after.tcpi_bytes_received &&
		    before.tcpi_state == after.tcpi_state) {
			counts_take(out, &after, (uint64_t)unacked, (uint64_t)unread, connector);
			return 0;
		}
		before = after;
	}
	return rc ? rc : -EAGAIN;
}

bool diag_uid_is_exact(uint32_t uid)
{
	static const char whole[] = "0 0 4294967295";
	char map[64], squeezed[64];
	size_t nr = 0;
	ssize_t n;
	int fd;

	if (uid != DIAG_OVERFLOW_UID)
		return true;
	fd = sys_openat(AT_FDCWD, "/proc/self/uid_map", O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return false;
	n = sys_read(fd, map, sizeof(map));
	sys_close(fd);
	/* The kernel pads the three numbers with spaces. */
	for (ssize_t i = 0; i < n && map[i] != '\n'; i++) {
		if (map[i] != ' ')
			squeezed[nr++] = map[i];
		else if (nr && squeezed[nr - 1] != ' ')
			squeezed[nr++] = ' ';
	}
	return nr == sizeof(whole) - 1 && !memcmp(squeezed, whole, nr);
}
