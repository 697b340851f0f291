/* SPDX-License-Identifier: MIT */
/*
 * Netlink bells. A small receive buffer holds a handful of rings; a full one
 * means that the sleeper has something to read, which is all that a ring says.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>

#include "ringbuf/doorbell.h"
#include "ringbuf/sys.h"

#define DRAIN_BATCH 8
#define DRAIN_BATCHES_MAX 8
#define RING_ATTEMPTS 3
#define PORT_ATTEMPTS 16

struct bell_counts bell_counts;

int bell_key(uint64_t *key)
{
	ssize_t got;

	do
		got = sys_getrandom(key, sizeof(*key), 0);
	while (got == -EINTR);
	if (got < 0)
		return (int)got;
	return got == sizeof(*key) ? 0 : -EIO;
}

/* Loads are big endian, so the two words are compared as the key lies in memory. Longer datagrams are cut to the key. */
static int attach_filter(int fd, uint64_t key)
{
	uint8_t raw[8];
	uint32_t high, low;

	memcpy(raw, &key, sizeof(raw));
	high = (uint32_t)raw[0] << 24 | (uint32_t)raw[1] << 16 | (uint32_t)raw[2] << 8 | raw[3];
	low = (uint32_t)raw[4] << 24 | (uint32_t)raw[5] << 16 | (uint32_t)raw[6] << 8 | raw[7];
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, low, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, sizeof(key)),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	return sys_setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

/* Above every process's number, which the kernel would choose: programs bind to their own by convention. */
static int bind_to_random_port(int fd, uint32_t *port)
{
	int ret, attempt = 0;

	do {
		struct sockaddr_nl addr = { .nl_family = AF_NETLINK };
		uint64_t number;

		ret = bell_key(&number);
		if (ret < 0)
			return ret;
		addr.nl_pid = *port = (uint32_t)number | UINT32_C(1) << 31;
		ret = sys_bind(fd, &addr, sizeof(addr));
	} while (ret == -EADDRINUSE && ++attempt < PORT_ATTEMPTS);
	return ret;
}

int bell_create(uint64_t key, uint32_t *port)
{
	int buffer_bytes = 4096; /* some rings that nobody has taken yet: one that finds it full makes no edge */
	int fd, ret;

	fd = sys_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_USERSOCK);
	if (fd < 0)
		return fd;
	/* The filter stands before the port exists, so nothing else ever gets in. */
	ret = attach_filter(fd, key);
	if (ret < 0)
		goto close_fd;
	ret = sys_setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(buffer_bytes));
	if (ret < 0)
		goto close_fd;
	ret = bind_to_random_port(fd, port);
	if (ret < 0)
		goto close_fd;
	return fd;

close_fd:
	sys_close(fd);
	return ret;
}

int bell_ring(int fd, const struct bell_address *to)
{
	struct sockaddr_nl addr = { .nl_family = AF_NETLINK, .nl_pid = to->port };
	uint64_t key = to->key;
	ssize_t sent;
	int attempt = 0;

	if (fd < 0 || !to->port)
		return 0;
	fetch_add(&bell_counts.rings, 1);
	do
		sent = sys_sendto(fd, &key, sizeof(key), MSG_DONTWAIT | MSG_NOSIGNAL, &addr, sizeof(addr));
	while ((sent == -EINTR || sent == -ENOBUFS || sent == -ENOMEM) && ++attempt < RING_ATTEMPTS);
	if (sent == -EAGAIN) {
		fetch_add(&bell_counts.full, 1);
		return 0;
	}
	return sent < 0 ? (int)sent : 0;
}

unsigned bell_drain(int fd)
{
	unsigned taken = 0;
	int batch, got;

	for (batch = 0; batch < DRAIN_BATCHES_MAX; batch++) {
		/* No buffers: a datagram that does not fit is taken and its bytes are dropped. */
		struct mmsghdr msgs[DRAIN_BATCH] = { 0 };

		fetch_add(&bell_counts.drains, 1);
		got = sys_recvmmsg(fd, msgs, DRAIN_BATCH, MSG_DONTWAIT);
		if (got == -ENOBUFS || got == -EINTR)
			continue;
		if (got > 0)
			taken += (unsigned)got;
		if (got < DRAIN_BATCH)
			break;
	}
	return taken;
}
