/* SPDX-License-Identifier: MIT */
/* Modes that measure what Ringway costs where it should cost nothing: plain peers, idle connections, CPU, system calls. */
#include "sockbench.h"

#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/*
 * ---- Calls on a connection that stays on TCP: a receive that finds nothing, and a send, each through the call that the program is
 * linked with and through libc's own. Both in one process and in turns, because two processes differ by more than what is measured. ----
 */

static ssize_t (*libc_recv)(int fd, void *buf, size_t len, int flags);
static ssize_t (*libc_send)(int fd, const void *buf, size_t len, int flags);

static void receive_nothing(int fd, uint64_t count)
{
	uint8_t message[MESSAGE];

	for (uint64_t i = 0; i < count; i++)
		if (recv(fd, message, MESSAGE, MSG_DONTWAIT) != -1)
			die("something came");
}

static void receive_nothing_libc(int fd, uint64_t count)
{
	uint8_t message[MESSAGE];

	for (uint64_t i = 0; i < count; i++)
		if (libc_recv(fd, message, MESSAGE, MSG_DONTWAIT) != -1)
			die("something came");
}

static const uint8_t zeros[MESSAGE];

static void send_many(int fd, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		if (send(fd, zeros, MESSAGE, MSG_NOSIGNAL) != MESSAGE)
			die("send");
}

static void send_many_libc(int fd, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		if (libc_send(fd, zeros, MESSAGE, MSG_NOSIGNAL) != MESSAGE)
			die("send");
}

static void print_in_turns(void (*ours)(int, uint64_t), void (*libc)(int, uint64_t), int fd, uint64_t count)
{
	double ratio[BATCHES], more_ns[BATCHES];

	for (int i = 0; i < BATCHES; i++) {
		double of_libc = batch_ns(libc, fd, count), of_ours = batch_ns(ours, fd, count);

		ratio[i] = of_ours / of_libc;
		more_ns[i] = of_ours - of_libc;
	}
	printf("%.4f %.2f ", median(ratio), median(more_ns));
}

void plain_client(uint16_t port, uint64_t count)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW);
	int fd = connect_to(port);

	if (!libc)
		die("libc");
	*(void **)&libc_recv = dlsym(libc, "recv");
	*(void **)&libc_send = dlsym(libc, "send");
	/* The rendezvous has given up when the connection has been busy for a while. */
	for (int i = 0; i < 20; i++) {
		struct timespec pause = { .tv_nsec = 20000000 };

		receive_nothing(fd, 1000);
		send_many(fd, 1);
		nanosleep(&pause, NULL);
	}
	print_in_turns(receive_nothing, receive_nothing_libc, fd, count);
	print_in_turns(send_many, send_many_libc, fd, count / 4 + 1);
	printf("\n");
}

void plain_server(int listener, uint64_t count)
{
	static uint8_t discarded[1 << 16];
	int fd = accept_from(listener);

	while (recv(fd, discarded, sizeof(discarded), 0) > 0)
		;
}

/*
 * ---- One busy connection beside COUNT idle ones, all in one epoll set at both ends ----
 */
#define EPOLL_ROUNDS 1000

static void raise_nofile(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static void watch(int set, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
		die("epoll_ctl");
}

static int ready(int set)
{
	struct epoll_event event;
	int nr;

	do
		nr = epoll_wait(set, &event, 1, -1);
	while (nr < 0 && errno == EINTR);
	if (nr != 1)
		die("epoll_wait");
	return event.data.fd;
}

static int busy_fd;

static void epoll_rounds(int set, uint64_t count)
{
	uint64_t message;
	int fd = busy_fd;

	for (uint64_t i = 0; i < count; i++) {
		send_all(fd, &i, MESSAGE);
		if (ready(set) != fd || recv(fd, &message, MESSAGE, 0) != MESSAGE || message != i)
			die("wrong answer");
	}
}

void idle_client(uint16_t port, uint64_t count)
{
	int set = epoll_create1(EPOLL_CLOEXEC);

	raise_nofile();
	for (uint64_t i = 0; i < count; i++)
		watch(set, connect_to(port));
	busy_fd = connect_to(port);
	watch(set, busy_fd);
	epoll_rounds(set, WARM_UP);
	printf("%.1f\n", median_batch(epoll_rounds, set, EPOLL_ROUNDS));
}

void idle_server(int listener, uint64_t count)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	uint8_t message[MESSAGE];

	raise_nofile();
	for (uint64_t i = 0; i <= count; i++)
		watch(set, accept_from(listener));
	for (;;) {
		int fd = ready(set);
		ssize_t got = recv(fd, message, MESSAGE, 0);

		if (got <= 0)
			exit(0);
		send_all(fd, message, (size_t)got);
	}
}

/*
 * ---- CPU of a server that waits on a warm connection, over COUNT milliseconds: in recv, then in epoll_wait ----
 */

static uint64_t cpu_ns(int pid)
{
	char path[64];
	unsigned long long ns = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", pid);
	file = fopen(path, "re");
	if (!file || fscanf(file, "%llu", &ns) != 1)
		die(path);
	fclose(file);
	return ns;
}

void cpu_client(uint16_t port, uint64_t count)
{
	struct timespec settle = { .tv_nsec = 50000000 };
	struct timespec wait = { .tv_sec = (time_t)(count / 1000), .tv_nsec = (long)(count % 1000) * 1000000 };
	int fd = connect_to(port);
	uint64_t before;

	for (int phase = 0; phase < 2; phase++) {
		round_trips(fd, WARM_UP);
		nanosleep(&settle, NULL);
		before = cpu_ns(server_pid);
		nanosleep(&wait, NULL);
		printf("%.4f%c", (double)(cpu_ns(server_pid) - before) / ((double)count * 1000000), phase ? '\n' : ' ');
	}
}

void cpu_server(int listener, uint64_t count)
{
	int set = epoll_create1(EPOLL_CLOEXEC), fd = accept_from(listener);
	uint64_t message, i;

	/* The last of these is the one that the first phase times: it waits in recv. */
	for (i = 0; i <= WARM_UP; i++) {
		if (!recv_all(fd, &message, MESSAGE))
			exit(0);
		send_all(fd, &message, MESSAGE);
	}
	watch(set, fd);
	for (;;) {
		ready(set);
		if (!recv_all(fd, &message, MESSAGE))
			exit(0);
		send_all(fd, &message, MESSAGE);
	}
}

/*
 * ---- System calls for each round trip: the client is traced between two getppid() ----
 */

static void traced_client(uint16_t port, uint64_t count)
{
	int fd;

	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		die("ptrace");
	fd = connect_to(port);
	round_trips(fd, WARM_UP);
	raise(SIGSTOP);
	syscall(SYS_getppid);
	round_trips(fd, count);
	syscall(SYS_getppid);
	_exit(0);
}

static uint64_t call_number(pid_t pid)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) <= 0)
		die("ptrace");
	return info.op == PTRACE_SYSCALL_INFO_ENTRY ? info.entry.nr : UINT64_MAX;
}

void syscalls_client(uint16_t port, uint64_t count)
{
	pid_t pid = fork();
	uint64_t calls = 0;
	int status, marks = 0;

	if (!pid)
		traced_client(port, count);
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
		die("the traced client did not stop");
	ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
	while (marks < 2) {
		uint64_t nr;

		ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
		if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
			die("the traced client is gone");
		if (WSTOPSIG(status) != (SIGTRAP | 0x80))
			continue;
		nr = call_number(pid);
		if (nr == SYS_getppid)
			marks++;
		else if (nr != UINT64_MAX && marks == 1)
			calls++;
	}
	ptrace(PTRACE_CONT, pid, NULL, NULL);
	waitpid(pid, &status, 0);
	printf("%.4f\n", (double)calls / (double)count);
}

void syscalls_server(int listener, uint64_t count)
{
	echo(accept_from(listener));
}
