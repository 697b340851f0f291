/* SPDX-License-Identifier: MIT */
/*
 * deny NAME COMMAND...: runs a command for which one system call of the set-up fails, in the kernel and so below anything that a
 * library can replace. Each row names a call by what only Ringway passes to it, so the program's own calls are left alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/memfd.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINK_TYPE (SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK)
#define ANY { -1, 0 }

static const struct rule {
	const char *name;
	int nr;
	struct { int arg; uint32_t value; } when[2];
	int error;
} rules[] = {
	{ "memfd-refused", SYS_memfd_create, { ANY, ANY }, EPERM },
	{ "memfd-missing", SYS_memfd_create, { ANY, ANY }, ENOSYS },
	{ "memfd-memory", SYS_memfd_create, { ANY, ANY }, ENOMEM },
	{ "memfd-fds", SYS_memfd_create, { ANY, ANY }, EMFILE },
	{ "truncate", SYS_ftruncate, { ANY, ANY }, ENOMEM },
	{ "seal", SYS_fcntl, { { 1, F_ADD_SEALS }, ANY }, EPERM },
	{ "seals", SYS_fcntl, { { 1, F_GET_SEALS }, ANY }, EINVAL },
	{ "map", SYS_mmap, { { 3, MAP_SHARED }, ANY }, ENOMEM },
	{ "diag", SYS_socket, { { 0, AF_NETLINK }, { 2, NETLINK_SOCK_DIAG } }, EPERM },
	{ "diag-fds", SYS_socket, { { 0, AF_NETLINK }, { 2, NETLINK_SOCK_DIAG } }, EMFILE },
	{ "bell", SYS_socket, { { 0, AF_NETLINK }, { 2, NETLINK_USERSOCK } }, EPROTONOSUPPORT },
	{ "bell-fds", SYS_socket, { { 0, AF_NETLINK }, { 2, NETLINK_USERSOCK } }, ENFILE },
	{ "bell-filter", SYS_setsockopt, { { 1, SOL_SOCKET }, { 2, SO_ATTACH_FILTER } }, EPERM },
	{ "link", SYS_socket, { { 0, AF_UNIX }, { 1, LINK_TYPE } }, EPERM },
	{ "link-fds", SYS_socket, { { 0, AF_UNIX }, { 1, LINK_TYPE } }, EMFILE },
	{ "listen", SYS_listen, { { 1, 4 }, ANY }, EOPNOTSUPP },
	{ "accept", SYS_accept4, { { 3, SOCK_CLOEXEC | SOCK_NONBLOCK }, ANY }, EMFILE },
	{ "hello", SYS_sendmsg, { { 2, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_EOR }, ANY }, ENOBUFS },
	{ "heard", SYS_recvmsg, { { 2, MSG_DONTWAIT | MSG_CMSG_CLOEXEC }, ANY }, ENOMEM },
	{ "peer-cred", SYS_getsockopt, { { 1, SOL_SOCKET }, { 2, SO_PEERCRED } }, EPERM },
	{ "cookie", SYS_getsockopt, { { 1, SOL_SOCKET }, { 2, SO_COOKIE } }, ENOPROTOOPT },
	{ "tcp-info", SYS_getsockopt, { { 1, IPPROTO_TCP }, { 2, TCP_INFO } }, ENOPROTOOPT },
	{ "outq", SYS_ioctl, { { 1, SIOCOUTQ }, ANY }, EPERM },
	{ "random", SYS_getrandom, { ANY, ANY }, ENOSYS },
	{ "membarrier", SYS_membarrier, { ANY, ANY }, EPERM },
	{ "limits", SYS_prlimit64, { ANY, ANY }, EPERM },
};

static int install(const struct rule *r)
{
	struct sock_filter f[12];
	struct sock_fprog prog = { .filter = f };
	unsigned short n = 0, tests = 0;

	for (int i = 0; i < 2; i++)
		tests += r->when[i].arg >= 0;
	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->nr, 0, (uint8_t)(2 * tests + 1));
	for (int i = 0; i < 2; i++) {
		if (r->when[i].arg < 0)
			continue;
		tests--;
		f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						      (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)r->when[i].arg));
		f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, r->when[i].value, 0, (uint8_t)(2 * tests + 1));
	}
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)r->error);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	prog.len = n;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: deny NAME COMMAND...\n");
		return 2;
	}
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		if (strcmp(rules[i].name, argv[1]))
			continue;
		if (install(&rules[i])) {
			perror("deny: seccomp");
			return 2;
		}
		execv(argv[2], argv + 2);
		perror(argv[2]);
		return 2;
	}
	fprintf(stderr, "deny: no rule %s\n", argv[1]);
	return 2;
}
