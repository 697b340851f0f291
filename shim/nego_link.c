/* SPDX-License-Identifier: MIT */
/* Packets of the rendezvous. What a stranger can attach to a packet is bounded by the kernel (253 descriptors) and closed here. */
#include "shim/nego_link.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "ringbuf/sys.h"

int nego_link_socket(struct nego_address *at, const struct nego_tuple *t)
{
	char name[NEGO_NAME_MAX];
	size_t len = nego_name(name, t);

	*at = (struct nego_address){ .un.sun_family = AF_UNIX };
	memcpy(at->un.sun_path, name, len);
	at->len = (unsigned int)(offsetof(struct sockaddr_un, sun_path) + len);
	return sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Room for a few descriptors, so that one too many is told from one that the process has no room for. */
#define LINK_FDS 4

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(LINK_FDS * sizeof(int))];
};

/* Returns how many descriptors came; the first is in *first, the others are closed. */
static unsigned int take_fds(struct msghdr *m, int *first)
{
	unsigned int nr = 0;

	*first = -1;
	for (struct cmsghdr *cm = CMSG_FIRSTHDR(m); cm; cm = CMSG_NXTHDR(m, cm)) {
		size_t len;

		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS || cm->cmsg_len < CMSG_LEN(0))
			continue;
		len = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < len; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cm) + i * sizeof(int), sizeof(fd));
			if (!nr++)
				*first = fd;
			else
				sys_close(fd);
		}
	}
	return nr;
}

int nego_link_recv(int link, void *buf, size_t room, int *fd)
{
	union control control;
	struct iovec iov = { .iov_base = buf, .iov_len = room };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	int n = (int)sys_call3(SYS_recvmsg, link, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	unsigned int nr;
	int first, rc;

	if (fd)
		*fd = -1;
	if (n < 0)
		return n;
	nr = take_fds(&m, &first);
	if (m.msg_flags & MSG_TRUNC)
		rc = -EPROTO;
	else if (m.msg_flags & MSG_CTRUNC)
		rc = nr ? -EPROTO : -EMFILE;
	else if (nr > (fd ? 1u : 0u))
		rc = -EPROTO;
	else
		rc = n;
	if (nr && rc >= 0)
		*fd = first;
	else if (nr)
		sys_close(first);
	return rc;
}

int nego_link_send(int link, const void *buf, size_t len, int fd)
{
	union control control;
	struct iovec iov = { .iov_base = (void *)(uintptr_t)buf, .iov_len = len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	long n;

	if (fd >= 0) {
		memset(&control, 0, sizeof(control));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(sizeof(fd));
	}
	n = sys_call3(SYS_sendmsg, link, &m, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_EOR);
	if (n < 0)
		return (int)n;
	return (size_t)n == len ? 0 : -EPROTO;
}
