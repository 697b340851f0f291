/* SPDX-License-Identifier: MIT */
/* A process that cages itself (another root without /proc, a system call filter), or moves bytes unseen. */
#include "probe.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* A filter that refuses what a shim would need and an ordinary socket program does not. */
static void filter(int by_syscall)
{
	static const int refused[] = { SYS_memfd_create, SYS_socket, SYS_membarrier, SYS_prlimit64, SYS_openat, SYS_readlinkat };
	enum { NR = sizeof(refused) / sizeof(refused[0]) };
	struct sock_filter code[2 * NR + 2] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
	struct sock_fprog program = { .len = 2 * NR + 2, .filter = code };

	for (int i = 0; i < NR; i++) {
		code[1 + 2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)refused[i], 0, 1);
		code[2 + 2 * i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	}
	code[2 * NR + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	if (by_syscall)
		MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
	else
		MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* The sockets are made before the filter, and connected behind it. */
static int connect_in_cage(int *b)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int listener = socket(AF_INET, SOCK_STREAM, 0), a = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(at);

	MUST(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(listener, 1) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
	filter(0);
	MUST(connect(a, (struct sockaddr *)&at, sizeof(at)) == 0);
	*b = accept(listener, NULL, NULL);
	MUST(*b >= 0);
	close(listener);
	return a;
}

/* A filter that allows what talking on open sockets takes in libc, and nothing else. */
static void allow_talk_only(void)
{
	static const int allowed[] = { SYS_read, SYS_write, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_poll, SYS_ppoll,
				       SYS_close, SYS_shutdown, SYS_newfstatat, SYS_mmap, SYS_munmap, SYS_brk, SYS_getrandom,
				       SYS_exit_group };
	enum { NR = sizeof(allowed) / sizeof(allowed[0]) };
	struct sock_filter code[NR + 3] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
	struct sock_fprog program = { .len = NR + 3, .filter = code };

	for (int i = 0; i < NR; i++)
		code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)allowed[i], (unsigned char)(NR - i), 0);
	code[NR + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	code[NR + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Each read has to wait a while. */
static void talk_to_child(int a, int b)
{
	char byte = 0;
	pid_t pid = fork();

	MUST(pid >= 0);
	if (pid == 0) {
		close(a);
		while (read(b, &byte, 1) == 1) {
			usleep(100);
			write(b, &byte, 1);
		}
		_exit(5);
	}
	close(b);
	for (int i = 0; i < 20; i++) {
		MUST(write(a, "x", 1) == 1);
		MUST(read(a, &byte, 1) == 1);
	}
	close(a);
	SAY("child %d\n", wait_for(pid));
}

/* Each read has to wait a while for the process at the other end, which is not caged. */
static void talk_caged(int a, int b)
{
	char byte = 0;
	pid_t pid = fork();

	MUST(pid >= 0);
	if (pid == 0) {
		close(a);
		for (int i = 0; i < 20 && read(b, &byte, 1) == 1; i++) {
			usleep(100);
			MUST(write(b, &byte, 1) == 1);
		}
		_exit(0);
	}
	close(b);
	allow_talk_only();
	for (int i = 0; i < 20; i++) {
		MUST(write(a, "x", 1) == 1);
		MUST(read(a, &byte, 1) == 1);
	}
	close(a);
}

/* Strict mode on a ring: the end that is written down, and no other. */
static void strict_ends(void)
{
	for (int round = 0; round < 20; round++) {
		int a, b;
		char byte;
		pid_t pid;

		a = tcp_pair(&b);
		ping_pong(a, b, 30);
		pid = fork();
		MUST(pid >= 0);
		if (pid == 0) {
			MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
			read(a, &byte, 1);
			write(1, "woken\n", 6);
			syscall(SYS_exit, 0);
		}
		SAY("%d\n", wait_for(pid));
		close(a);
		close(b);
	}
}

/* Whoever may not read the processor's counter has not asked for the time. */
static void without_counter(void)
{
	int a, b;

	a = tcp_pair(&b);
	ping_pong(a, b, 30);
	MUST(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
	talk_to_child(a, b);
}

static long mapped_mib(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	MUST(f && fscanf(f, "%ld", &pages) == 1);
	fclose(f);
	return pages * sysconf(_SC_PAGESIZE) >> 20;
}

/* What a server that limits itself maps afterwards, and what it is told of its limit. */
static void limit_itself(void)
{
	struct rlimit64 limit = { 200 << 20, 200 << 20 }, told;
	struct rlimit old;
	void *at;

	/* Two ends of a connection, and what they need. */
	SAY("little is mapped: %d\n", mapped_mib() < 64);
	MUST(setrlimit64(RLIMIT_AS, &limit) == 0);
	MUST(getrlimit64(RLIMIT_AS, &told) == 0 && told.rlim_cur == limit.rlim_cur && told.rlim_max == limit.rlim_max);
	at = mmap(NULL, 100 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	SAY("100 MiB %s\n", outcome(at == MAP_FAILED ? -1 : 0));
	MUST(at != MAP_FAILED && munmap(at, 100 << 20) == 0);
	SAY("250 MiB %s\n", outcome(mmap(NULL, 250 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0));
	SAY("1 GiB %s\n", outcome(mmap(NULL, 1 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0));
	MUST(prlimit(0, RLIMIT_AS, &(struct rlimit){ 150 << 20, 160 << 20 }, &old) == 0 && old.rlim_cur == 200 << 20 && old.rlim_max == 200 << 20);
	MUST(prlimit(getpid(), RLIMIT_AS, NULL, &old) == 0);
	SAY("limit %lu %lu\n", old.rlim_cur, old.rlim_max);
	SAY("above the hard one %s\n", outcome(setrlimit(RLIMIT_AS, &(struct rlimit){ 2, 1 })));
}

/* Whoever asks whether a kernel has filters gives it none, and is told EFAULT. */
static void ask_for_filters(void)
{
	MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) < 0 && errno == EFAULT);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) < 0 && errno == EFAULT);
}

int main(int argc, char **argv)
{
	int a, b;

	if (strcmp(argv[1], "strict") == 0)
		return strict_ends(), 0;
	if (strcmp(argv[1], "limit") == 0) {
		a = tcp_pair(&b);
		ping_pong(a, b, 30);
		limit_itself();
		ping_pong(a, b, 50);
		return 0;
	}
	if (strcmp(argv[1], "no-counter") == 0)
		return without_counter(), 0;
	if (strcmp(argv[1], "chroot") == 0) {
		MUST(mkdtemp(argv[2]) && chroot(argv[2]) == 0 && chdir("/") == 0);
		a = tcp_pair(&b);
		ping_pong(a, b, 100);
	} else if (strcmp(argv[1], "talk-only") == 0) {
		a = tcp_pair(&b);
		talk_caged(a, b);
	} else if (strcmp(argv[1], "filter-first") == 0) {
		a = connect_in_cage(&b);
		ping_pong(a, b, 50);
	} else if (strcmp(argv[1], "ask") == 0) {
		ask_for_filters();
		a = tcp_pair(&b);
		ping_pong(a, b, 50);
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
