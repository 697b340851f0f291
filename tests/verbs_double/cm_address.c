/* SPDX-License-Identifier: MIT */
/* Which addresses have a device, and the sockets that stand for listeners. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "cm.h"
#include "ringbuf/sys.h"

enum { FIRST_PORT = 32768, PORTS = 28000 };

size_t address_bytes(const struct sockaddr *addr)
{
	return addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static in_port_t *port_of(const struct sockaddr *addr)
{
	return addr->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)addr)->sin6_port : &((struct sockaddr_in *)addr)->sin_port;
}

static void text_of(const struct sockaddr *addr, char text[INET6_ADDRSTRLEN])
{
	if (addr->sa_family == AF_INET6)
		inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)addr)->sin6_addr, text, INET6_ADDRSTRLEN);
	else
		inet_ntop(AF_INET, &((const struct sockaddr_in *)addr)->sin_addr, text, INET6_ADDRSTRLEN);
}

/* The kernel binds a socket to local addresses only. */
bool address_is_local(const struct sockaddr *addr)
{
	struct sockaddr_in6 copy = { 0 };
	int fd = sys_socket(addr->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool bound;

	memcpy(&copy, addr, address_bytes(addr));
	*port_of((struct sockaddr *)&copy) = 0;
	bound = fd >= 0 && sys_bind(fd, &copy, (unsigned)address_bytes(addr)) == 0;
	if (fd >= 0)
		sys_close(fd);
	return bound;
}

static bool is_any(const struct sockaddr *addr)
{
	return addr->sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)addr)->sin6_addr) :
					     ((const struct sockaddr_in *)addr)->sin_addr.s_addr == INADDR_ANY;
}

bool address_has_device(const struct sockaddr *addr)
{
	char text[INET6_ADDRSTRLEN], list[sizeof(settings.only)];
	char *rest = list, *word;

	if (device_is_removed() || is_any(addr) || !address_is_local(addr))
		return false;
	if (!settings.only[0])
		return true;
	text_of(addr, text);
	memcpy(list, settings.only, sizeof(list));
	while ((word = strsep(&rest, "+")))
		if (!strcmp(word, text))
			return true;
	return false;
}

bool address_is_reachable(const struct sockaddr *addr)
{
	return settings.room[0] || address_is_local(addr);
}

static unsigned name_of(const struct sockaddr *addr, struct sockaddr_un *name)
{
	char text[INET6_ADDRSTRLEN];

	text_of(addr, text);
	*name = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (settings.room[0]) {
		snprintf(name->sun_path, sizeof(name->sun_path), "%s/%s-%u", settings.room, text, ntohs(*port_of(addr)));
		return sizeof(*name);
	}
	return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 +
			  (size_t)snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "verbs-double/%s/%u", text, ntohs(*port_of(addr))));
}

uint16_t address_any_port(void)
{
	uint16_t random = 0;

	(void)sys_getrandom(&random, sizeof(random), 0);
	return htons((uint16_t)(FIRST_PORT + random % PORTS));
}

int address_bind(struct sockaddr *addr)
{
	int fd = hide_fd(sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	bool any_port = *port_of(addr) == 0;
	struct sockaddr_un name;
	int r;

	if (fd < 0)
		return fd;
	for (int tries = 0; tries < 100; tries++) {
		if (any_port)
			*port_of(addr) = address_any_port();
		r = sys_bind(fd, &name, name_of(addr, &name));
		if (r != -EADDRINUSE || !any_port)
			break;
	}
	if (r < 0) {
		close_hidden(fd);
		return r;
	}
	return fd;
}

void address_unbind(const struct sockaddr *addr)
{
	struct sockaddr_un name;

	if (!settings.room[0])
		return;
	name_of(addr, &name);
	(void)sys_call3(SYS_unlinkat, AT_FDCWD, name.sun_path, 0);
}

int address_connect(const struct sockaddr *addr)
{
	struct sockaddr_in6 any = { .sin6_family = addr->sa_family };
	int fd = hide_fd(sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	struct sockaddr_un name;
	unsigned len = name_of(addr, &name);
	int r;

	if (fd < 0)
		return fd;
	r = (int)sys_call3(SYS_connect, fd, &name, len);
	if (r == -ECONNREFUSED || r == -ENOENT) {
		*port_of((struct sockaddr *)&any) = *port_of(addr);
		len = name_of((struct sockaddr *)&any, &name);
		r = (int)sys_call3(SYS_connect, fd, &name, len);
	}
	if (r < 0) {
		close_hidden(fd);
		return r;
	}
	return fd;
}
