/* SPDX-License-Identifier: MIT */
/* A process that cages itself (another root without /proc, a system call filter), or moves bytes unseen. */
#include "probe.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* A filter that refuses what a shim would need and an ordinary socket program does not. */
static void filter(int by_syscall)
{
	static const int refused[] = { SYS_memfd_create, SYS_socket, SYS_membarrier, SYS_prlimit64 };
	struct sock_filter code[2 * 4 + 2] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
	struct sock_fprog program = { .len = 2 * 4 + 2, .filter = code };

	for (int i = 0; i < 4; i++) {
		code[1 + 2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)refused[i], 0, 1);
		code[2 + 2 * i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	}
	code[9] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	if (by_syscall)
		MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
	else
		MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

int main(int argc, char **argv)
{
	int a, b;

	if (strcmp(argv[1], "chroot") == 0) {
		MUST(mkdtemp(argv[2]) && chroot(argv[2]) == 0 && chdir("/") == 0);
		a = tcp_pair(&b);
		ping_pong(a, b, 100);
	} else if (strcmp(argv[1], "io_uring") == 0) {
		/* Whether or not the kernel has it, the process means to move bytes by it. */
		a = tcp_pair(&b);
		syscall(SYS_io_uring_setup, 1, NULL);
		ping_pong(a, b, 50);
	} else {
		a = tcp_pair(&b);
		if (argc > 2)
			ping_pong(a, b, 5);
		filter(strcmp(argv[1], "seccomp") == 0);
		ping_pong(a, b, 100);
	}
	SAY("talked\n");
	return 0;
}
