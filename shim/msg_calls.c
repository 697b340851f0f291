/* SPDX-License-Identifier: MIT */
/* send, recv and their kin on a connection. */
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <string.h>
#include <time.h>

#include "ringbuf/sys.h"
#include "shim/calls_common.h"
#include "shim/conn_end.h"
#include "shim/conn_iov.h"
#include "shim/conn_zerocopy.h"
#include "shim/control.h"
#include "shim/fd_conn.h"
#include "shim/wait.h"

#define VLEN_MAX 1024

ssize_t __recv_chk(int fd, void *buf, size_t len, size_t size, int flags);
ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t size, int flags, struct sockaddr *addr, socklen_t *addr_len);

/* What a ring cannot carry: known at the first sign, before the call. */
static inline void note_urgent(int fd, int flags)
{
	if (unlikely(flags & MSG_OOB))
		(void)fd_pin(fd, REASON_OOB);
}

/* The same of a send: 0, or what it ends with. */
static inline int note_flags(struct conn *c, int fd, const void *buf, size_t len, int flags)
{
	struct iovec iov = { (void *)buf, len };

	note_urgent(fd, flags);
	return unlikely(flags & MSG_ZEROCOPY) ? conn_before_zerocopy(c, fd, &iov, 1, flags) : 0;
}

static inline int note_message_flags(struct conn *c, int fd, const struct msghdr *msg, int flags)
{
	note_urgent(fd, flags);
	if (likely(!(flags & MSG_ZEROCOPY)) || user_range_bad(msg, sizeof(*msg)))
		return 0;
	return conn_before_zerocopy(c, fd, msg->msg_iov, msg->msg_iovlen, flags);
}

#define RETURN_IF_OVER(r) \
	do { \
		int over_ = (r); \
		if (unlikely(over_ < 0)) \
			return as_errno(over_); \
	} while (0)

static NOINLINE ssize_t send_pinned(int fd, const void *buf, size_t len, int flags)
{
	return pinned_sent(fd, real_send(fd, buf, len, flags));
}

static NOINLINE ssize_t send_slow(int fd, const void *buf, size_t len, int flags)
{
	struct conn *c = conn_of(fd);

	if (unlikely(!c))
		return real_send(fd, buf, len, flags);
	RETURN_IF_OVER(note_flags(c, fd, buf, len, flags));
	RETURN_IF_PLAIN_TX(c, fd, real_send(fd, buf, len, flags));
	return as_errno(conn_send(c, fd, buf, len, flags));
}

static NOINLINE ssize_t send_busy(int fd, const void *buf, size_t len, int flags, struct conn *c)
{
	return as_errno(conn_send(c, fd, buf, len, flags));
}

EXPORT ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, real_send(fd, buf, len, flags), send_pinned(fd, buf, len, flags), send_slow(fd, buf, len, flags));
	if (LANE_IS_BUSY((struct conn *)word, tx, flags))
		return send_busy(fd, buf, len, flags, (struct conn *)word);
	return send_slow(fd, buf, len, flags);
}

static NOINLINE ssize_t sendto_pinned(int fd, const void *buf, size_t len, int flags, const struct sockaddr *addr, socklen_t addr_len)
{
	return pinned_sent(fd, real_sendto(fd, buf, len, flags, addr, addr_len));
}

static NOINLINE ssize_t sendto_slow(int fd, const void *buf, size_t len, int flags, const struct sockaddr *addr, socklen_t addr_len)
{
	struct conn *c = conn_of(fd);

	if (unlikely(!c))
		return real_sendto(fd, buf, len, flags, addr, addr_len);
	RETURN_IF_OVER(note_flags(c, fd, buf, len, flags));
	RETURN_IF_PLAIN_TX(c, fd, real_sendto(fd, buf, len, flags, addr, addr_len));
	/* A connected TCP socket ignores the address, but for one that cannot be read. */
	if (addr && addr_len > sizeof(struct sockaddr_storage))
		return as_errno(-EINVAL);
	if (addr && user_range_bad(addr, addr_len))
		return as_errno(-EFAULT);
	/* To begin with bytes what has begun is refused, in one way or another. */
	if (unlikely(flags & MSG_FASTOPEN))
		return as_errno(conn_send_iov(c, fd, &(struct iovec){ (void *)buf, len }, 1, flags,
					      &(struct msghdr){ .msg_name = (void *)addr, .msg_namelen = addr_len }));
	return as_errno(conn_send(c, fd, buf, len, flags));
}

EXPORT ssize_t sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *addr, socklen_t addr_len)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, real_sendto(fd, buf, len, flags, addr, addr_len), sendto_pinned(fd, buf, len, flags, addr, addr_len),
			  sendto_slow(fd, buf, len, flags, addr, addr_len));
	return sendto_slow(fd, buf, len, flags, addr, addr_len);
}

/* 0, or what the kernel says of a header before it looks at any byte. */
static int header_fault(const struct msghdr *m)
{
	if (user_range_bad(m, sizeof(*m)))
		return -EFAULT;
	if (m->msg_iovlen > IOV_MAX)
		return -EMSGSIZE;
	return (int)m->msg_namelen < 0 ? -EINVAL : 0;
}

/* Whoever gets a connection has its socket only. False: one of them cannot be given away. */
static NOINLINE bool hand_on_passed(const struct msghdr *m)
{
	const char *at = m->msg_control;
	size_t left = m->msg_controllen;
	struct cmsghdr head;

	while (left >= sizeof(head)) {
		memcpy(&head, at, sizeof(head));
		if (head.cmsg_len < sizeof(head) || head.cmsg_len > left)
			break;
		for (size_t i = CMSG_LEN(0); head.cmsg_level == SOL_SOCKET && head.cmsg_type == SCM_RIGHTS && i + sizeof(int) <= head.cmsg_len;
		     i += sizeof(int)) {
			int fd;

			memcpy(&fd, at + i, sizeof(fd));
			if (!fd_hand_on(fd, REASON_PASSED))
				return false;
		}
		if (CMSG_ALIGN(head.cmsg_len) >= left)
			break;
		at += CMSG_ALIGN(head.cmsg_len);
		left -= CMSG_ALIGN(head.cmsg_len);
	}
	return true;
}

static inline bool may_have_to_pass(const struct msghdr *m)
{
	return fdtab_was_used() && !user_range_bad(m, sizeof(*m)) && unlikely(m->msg_controllen);
}

static inline bool may_pass(const struct msghdr *m)
{
	return likely(!may_have_to_pass(m)) || !guard_ready() || user_range_bad(m->msg_control, m->msg_controllen) || hand_on_passed(m);
}

static ssize_t send_message(struct conn *c, int fd, const struct msghdr *m, int flags)
{
	int fault = header_fault(m);

	/* A connected TCP socket ignores the address, but for one that cannot be read. */
	if (!fault && m->msg_name && user_range_bad(m->msg_name, m->msg_namelen))
		fault = -EFAULT;
	return fault ? fault : conn_send_iov(c, fd, m->msg_iov, m->msg_iovlen, flags, m);
}

static NOINLINE ssize_t sendmsg_pinned(int fd, const struct msghdr *msg, int flags)
{
	return pinned_sent(fd, real_sendmsg(fd, msg, flags));
}

static NOINLINE ssize_t sendmsg_slow(int fd, const struct msghdr *msg, int flags)
{
	struct conn *c = conn_of(fd);

	if (unlikely(!c))
		return likely(may_pass(msg)) ? real_sendmsg(fd, msg, flags) : as_errno(-EBADF);
	RETURN_IF_OVER(note_message_flags(c, fd, msg, flags));
	RETURN_IF_PLAIN_TX(c, fd, real_sendmsg(fd, msg, flags));
	return as_errno(send_message(c, fd, msg, flags));
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, unlikely(may_have_to_pass(msg)) ? sendmsg_slow(fd, msg, flags) : real_sendmsg(fd, msg, flags),
			  sendmsg_pinned(fd, msg, flags), sendmsg_slow(fd, msg, flags));
	return sendmsg_slow(fd, msg, flags);
}

static ssize_t plain_sendmmsg(struct conn *c, int fd, enum plain_pass pass, struct mmsghdr *msgs, unsigned int nr, int flags)
{
	int sent = real_sendmmsg(fd, msgs, nr, flags);
	ssize_t bytes = 0;

	for (int i = 0; i < sent; i++)
		bytes += msgs[i].msg_len;
	plain_tx_leave(c, fd, pass, sent < 0 ? sent : bytes);
	return sent;
}

static size_t message_bytes(const struct msghdr *m)
{
	size_t bytes = 0;

	for (size_t i = 0; i < m->msg_iovlen; i++)
		bytes += m->msg_iov[i].iov_len;
	return bytes;
}

EXPORT int sendmmsg(int fd, struct mmsghdr *msgs, unsigned int nr_msgs, int flags)
{
	struct conn *c = conn_of(fd);
	enum plain_pass pass;
	ssize_t n = 0;
	unsigned int i;

	if (likely(!c)) {
		for (i = 0; fdtab_was_used() && i < nr_msgs && i < VLEN_MAX && !user_range_bad(&msgs[i], sizeof(msgs[i])); i++)
			if (unlikely(!may_pass(&msgs[i].msg_hdr)))
				return (int)as_errno(-EBADF);
		return real_sendmmsg(fd, msgs, nr_msgs, flags);
	}
	RETURN_IF_OVER(note_message_flags(c, fd, &msgs->msg_hdr, flags));
	pass = plain_tx_enter(c);
	if (pass != PASS_NOT)
		return (int)plain_sendmmsg(c, fd, pass, msgs, nr_msgs, flags);
	if (nr_msgs > VLEN_MAX)
		nr_msgs = VLEN_MAX;
	for (i = 0; i < nr_msgs; i++) {
		n = send_message(c, fd, &msgs[i].msg_hdr, flags);
		if (n < 0)
			break;
		msgs[i].msg_len = (unsigned int)n;
		/* Nothing goes into the hole behind a short message; it counts as sent. */
		if ((size_t)n < message_bytes(&msgs[i].msg_hdr)) {
			i++;
			break;
		}
	}
	return (int)as_errno(i ? (ssize_t)i : n);
}

static NOINLINE ssize_t recv_pinned(int fd, void *buf, size_t len, int flags)
{
	return pinned_received(fd, real_recv(fd, buf, len, flags));
}

static NOINLINE ssize_t recv_slow(int fd, void *buf, size_t len, int flags)
{
	struct conn *c = conn_of(fd);

	if (unlikely(!c))
		return real_recv(fd, buf, len, flags);
	note_urgent(fd, flags);
	RETURN_IF_PLAIN_RX(c, fd, flags, real_recv(fd, buf, len, flags));
	return as_errno(conn_recv(c, fd, buf, len, flags));
}

static NOINLINE ssize_t recv_busy(int fd, void *buf, size_t len, int flags, struct conn *c)
{
	return as_errno(conn_recv(c, fd, buf, len, flags));
}

EXPORT ssize_t recv(int fd, void *buf, size_t len, int flags)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, real_recv(fd, buf, len, flags),
			  likely(!(flags & PLAIN_NO_BYTES)) ? recv_pinned(fd, buf, len, flags) : recv_slow(fd, buf, len, flags),
			  recv_slow(fd, buf, len, flags));
	if (LANE_IS_BUSY((struct conn *)word, rx, flags))
		return recv_busy(fd, buf, len, flags, (struct conn *)word);
	return recv_slow(fd, buf, len, flags);
}

static NOINLINE ssize_t recvfrom_pinned(int fd, void *buf, size_t len, int flags, struct sockaddr *addr, socklen_t *addr_len)
{
	return pinned_received(fd, real_recvfrom(fd, buf, len, flags, addr, addr_len));
}

static NOINLINE ssize_t recvfrom_slow(int fd, void *buf, size_t len, int flags, struct sockaddr *addr, socklen_t *addr_len)
{
	struct conn *c = conn_of(fd);
	ssize_t n;

	if (unlikely(!c))
		return real_recvfrom(fd, buf, len, flags, addr, addr_len);
	note_urgent(fd, flags);
	RETURN_IF_PLAIN_RX(c, fd, flags, real_recvfrom(fd, buf, len, flags, addr, addr_len));
	n = conn_recv(c, fd, buf, len, flags);
	/* The bytes are gone whatever is wrong with the place for an address, as with the kernel. */
	if (n >= 0 && addr) {
		if (user_range_bad(addr_len, sizeof(*addr_len)))
			return as_errno(-EFAULT);
		if ((int)*addr_len < 0)
			return as_errno(-EINVAL);
		*addr_len = 0;
	}
	return as_errno(n);
}

EXPORT ssize_t recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *addr, socklen_t *addr_len)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, real_recvfrom(fd, buf, len, flags, addr, addr_len), likely(!(flags & PLAIN_NO_BYTES)) ? recvfrom_pinned(fd, buf, len, flags, addr, addr_len) : recvfrom_slow(fd, buf, len, flags, addr, addr_len),
			  recvfrom_slow(fd, buf, len, flags, addr, addr_len));
	return recvfrom_slow(fd, buf, len, flags, addr, addr_len);
}

EXPORT ssize_t __recv_chk(int fd, void *buf, size_t len, size_t size, int flags)
{
	return len > size ? real___recv_chk(fd, buf, len, size, flags) : recv(fd, buf, len, flags);
}

EXPORT ssize_t __recvfrom_chk(int fd, void *buf, size_t len, size_t size, int flags, struct sockaddr *addr,
			      socklen_t *addr_len)
{
	if (len > size)
		return real___recvfrom_chk(fd, buf, len, size, flags, addr, addr_len);
	return recvfrom(fd, buf, len, flags, addr, addr_len);
}

static ssize_t recv_message(struct conn *c, int fd, struct msghdr *m, int flags)
{
	ssize_t n = header_fault(m);
	size_t room;

	if (n < 0)
		return n;
	room = m->msg_controllen;
	control_wanted(c, fd, room);
	n = conn_recv_iov(c, fd, m->msg_iov, m->msg_iovlen, flags, m);
	if (n >= 0)
		control_tell(c, fd, m, room, n);
	return n;
}

static NOINLINE ssize_t recvmsg_pinned(int fd, struct msghdr *msg, int flags)
{
	return pinned_received(fd, real_recvmsg(fd, msg, flags));
}

static ssize_t plain_recvmsg(int fd, struct msghdr *m, int flags)
{
	ssize_t n = real_recvmsg(fd, m, flags);

	control_of_plain(fd, m, n);
	return n;
}

static NOINLINE ssize_t recvmsg_slow(int fd, struct msghdr *msg, int flags)
{
	struct conn *c = conn_of(fd);

	if (unlikely(!c))
		return real_recvmsg(fd, msg, flags);
	note_urgent(fd, flags);
	RETURN_IF_PLAIN_RX(c, fd, flags, plain_recvmsg(fd, msg, flags));
	return as_errno(recv_message(c, fd, msg, flags));
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	uintptr_t word;

	RETURN_IF_KERNELS(word, fd, real_recvmsg(fd, msg, flags), likely(!(flags & PLAIN_NO_BYTES)) ? recvmsg_pinned(fd, msg, flags) : recvmsg_slow(fd, msg, flags),
			  recvmsg_slow(fd, msg, flags));
	return recvmsg_slow(fd, msg, flags);
}

static ssize_t plain_recvmmsg(struct conn *c, int fd, enum plain_pass pass, struct mmsghdr *msgs, unsigned int nr, int flags,
			      struct timespec *timeout)
{
	int got = real_recvmmsg(fd, msgs, nr, flags, timeout);
	ssize_t bytes = 0;

	for (int i = 0; i < got; i++)
		bytes += msgs[i].msg_len;
	if (got > 0)
		control_of_plain(fd, &msgs[0].msg_hdr, got);
	bytes = plain_rx_leave(c, fd, pass, got < 0 ? got : bytes, flags);
	return bytes < 0 ? -1 : got;
}

/* The kernel asks for the socket's error before it takes the first message, and forgets it by that. */
static int take_error(struct conn *c, int fd)
{
	int err = exchange(&c->rx.pending_errno, 0);
	unsigned int len = sizeof(err);

	if (err)
		return -err;
	if (sys_getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		return 0;
	if (err)
		conn_error_taken(c);
	return -err;
}

EXPORT int recvmmsg(int fd, struct mmsghdr *msgs, unsigned int nr_msgs, int flags, struct timespec *timeout)
{
	struct conn *c = conn_of(fd);
	enum plain_pass pass;
	int64_t end = 0, left = WAIT_FOREVER;
	ssize_t n = 0;
	unsigned int i;

	if (likely(!c))
		return real_recvmmsg(fd, msgs, nr_msgs, flags, timeout);
	note_urgent(fd, flags);
	pass = plain_rx_enter(c);
	if (pass != PASS_NOT)
		return (int)plain_recvmmsg(c, fd, pass, msgs, nr_msgs, flags, timeout);
	if (nr_msgs > VLEN_MAX)
		nr_msgs = VLEN_MAX;
	if (timeout && user_range_bad(timeout, sizeof(*timeout)))
		return (int)as_errno(-EFAULT);
	if (timeout && !timespec_valid(timeout))
		return (int)as_errno(-EINVAL);
	if (timeout)
		end = now_ns() + ns_of_timespec(timeout);
	if (!(flags & MSG_ERRQUEUE))
		n = take_error(c, fd);
	for (i = 0; i < nr_msgs && n >= 0; i++) {
		n = recv_message(c, fd, &msgs[i].msg_hdr, flags & ~MSG_WAITFORONE);
		if (n < 0)
			break;
		msgs[i].msg_len = (unsigned int)n;
		/* As the kernel has it: the time-out is looked at between messages, never while one is waited for. */
		if (timeout) {
			left = end - now_ns() > 0 ? end - now_ns() : 0;
			*timeout = timespec_of(left);
		}
		if (left == 0 || msgs[i].msg_hdr.msg_flags & MSG_OOB) {
			i++;
			break;
		}
		if (flags & MSG_WAITFORONE)
			flags |= MSG_DONTWAIT;
	}
	/* What has come is told by this call, the error by the next. */
	if (i && n < 0 && n != -EAGAIN && n != -EINTR && n != -EBADF)
		conn_set_pending(c, (int)-n);
	return (int)as_errno(i ? (ssize_t)i : n);
}
