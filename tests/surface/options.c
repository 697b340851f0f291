/* SPDX-License-Identifier: MIT */
/* What a ring cannot carry, asked for when the connection is on one: the kernel's answer, and the connection goes on. */
#include "probe.h"

#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <netinet/tcp.h>
#include <stdbool.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif

static int a, b;

static long on(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value));
}

static long filter_on(int fd)
{
	struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, 0xffff) };
	struct sock_fprog program = { .len = 1, .filter = all };

	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

static long filter(void)
{
	return filter_on(b);
}

/* Whatever the port. */
static long key_for_all(int fd)
{
	struct sockaddr_in peer = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct tcp_md5sig key = { .tcpm_keylen = 3, .tcpm_key = "key" };

	memcpy(&key.tcpm_addr, &peer, sizeof(peer));
	return setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof(key));
}

static long md5(void)
{
	struct tcp_md5sig key = { .tcpm_keylen = 3, .tcpm_key = "key" };
	socklen_t len = sizeof(key.tcpm_addr);
	long result;

	MUST(getpeername(a, (struct sockaddr *)&key.tcpm_addr, &len) == 0);
	result = setsockopt(a, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof(key));
	if (result == 0) {
		len = sizeof(key.tcpm_addr);
		MUST(getpeername(b, (struct sockaddr *)&key.tcpm_addr, &len) == 0);
		MUST(setsockopt(b, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof(key)) == 0);
	}
	return result;
}

static long no_layer(void)
{
	return setsockopt(b, IPPROTO_TCP, TCP_ULP, "no-such", 7);
}

/* Where the kernel has it, it encrypts nothing before it has keys. */
static long layer(void)
{
	return setsockopt(b, IPPROTO_TCP, TCP_ULP, "tls", 3);
}

/* As who looks at a connection and leaves it as it is. */
static long repair(void)
{
	long result = on(b, IPPROTO_TCP, TCP_REPAIR, 1);

	return result ? result : on(b, IPPROTO_TCP, TCP_REPAIR, -1);
}

static long stamping(void)
{
	return on(b, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE);
}

static long peek_offset(void)
{
	return on(b, SOL_SOCKET, SO_PEEK_OFF, 0);
}

static long inline_urgent(void)
{
	return on(b, SOL_SOCKET, SO_OOBINLINE, 1);
}

static long zero_copy(void)
{
	return on(b, SOL_SOCKET, SO_ZEROCOPY, 1);
}

static const struct {
	const char *name;
	long (*set)(void);
} options[] = {
	{ "SO_ATTACH_FILTER", filter }, { "TCP_MD5SIG", md5 }, { "TCP_ULP", no_layer }, { "TCP_ULP tls", layer }, { "TCP_REPAIR", repair },
	{ "SO_TIMESTAMPING", stamping }, { "SO_PEEK_OFF", peek_offset }, { "SO_OOBINLINE", inline_urgent }, { "SO_ZEROCOPY", zero_copy },
};

/* Set before there is a connection: the accepted end has what its listener has. */
static void early(long (*set)(int fd), bool by_listener)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	bool has;

	b = socket(AF_INET, SOCK_STREAM, 0);
	MUST(bind(listener, (struct sockaddr *)&addr, len) == 0 && listen(listener, 1) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
	has = set(by_listener ? listener : b) == 0;
	SAY("early %s\n", has ? "set" : outcome(-1));
	if (has && set == key_for_all)
		MUST(key_for_all(by_listener ? b : listener) == 0);
	if (has) {
		MUST(connect(b, (struct sockaddr *)&addr, len) == 0 && (a = accept(listener, NULL, NULL)) >= 0);
		ping_pong(a, b, 30);
		close(a);
	}
	close(b);
	close(listener);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		for (int i = 0; i < 4; i++)
			early(i < 2 ? filter_on : key_for_all, i % 2);
		return 0;
	}
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		a = tcp_pair(&b);
		ping_pong(a, b, 30);
		SAY("%s %s\n", options[i].name, outcome(options[i].set()));
		ping_pong(a, b, 30);
		close(a);
		SAY("end %s\n", outcome(read(b, &(char){ 0 }, 1)));
		close(b);
	}
	return 0;
}
