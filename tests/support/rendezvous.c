/* SPDX-License-Identifier: MIT */
#include "tests/support/rendezvous.h"

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int name_socket(const struct nego_tuple *tuple, int flags, struct sockaddr_un *un, socklen_t *len)
{
	*un = (struct sockaddr_un){ .sun_family = AF_UNIX };
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + nego_name(un->sun_path, tuple));
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
}

int rendezvous_dial(const struct nego_tuple *tuple)
{
	struct sockaddr_un un;
	socklen_t len;
	int fd = name_socket(tuple, 0, &un, &len);

	if (fd < 0 || !connect(fd, (struct sockaddr *)&un, len))
		return fd;
	close(fd);
	return -1;
}

int rendezvous_listen(const struct nego_tuple *tuple)
{
	struct sockaddr_un un;
	socklen_t len;
	int fd = name_socket(tuple, SOCK_NONBLOCK, &un, &len);

	if (fd < 0 || (!bind(fd, (struct sockaddr *)&un, len) && !listen(fd, 4)))
		return fd;
	close(fd);
	return -1;
}

ssize_t rendezvous_send(int link, const void *buf, size_t len, const int *fds, size_t nr)
{
	char control[CMSG_SPACE(RENDEZVOUS_FDS * sizeof(int))] __attribute__((aligned(8))) = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)buf, .iov_len = len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (nr) {
		m.msg_control = control;
		m.msg_controllen = CMSG_SPACE(nr * sizeof(int));
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(nr * sizeof(int));
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, nr * sizeof(int));
	}
	return sendmsg(link, &m, MSG_NOSIGNAL);
}
