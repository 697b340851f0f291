/* SPDX-License-Identifier: MIT */
/*
 * What a program sees: plain socket calls, timed. The same binary runs on kernel TCP and, preloaded, under Ringway; `run`
 * does both in turn and compares.
 *
 *	sockbench MODE COUNT
 *
 * The process is the client; it starts itself again as the server ("sockbench --serve MODE COUNT"), with its own environment or, for
 * the modes that need a peer without Ringway, without the preload. The server dies with the client. Prints numbers that `run` knows,
 * most often nanoseconds for each operation.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE 8
#define LARGE (1 << 16)
#define WARM_UP 3000
#define PORT_FD 3 /* of the server: where it says its port */

static uint8_t large[LARGE];

static void die(const char *what)
{
	fprintf(stderr, "sockbench: %s: %s\n", what, strerror(errno));
	exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void send_all(int fd, const void *buf, size_t len)
{
	while (len) {
		ssize_t sent = send(fd, buf, len, MSG_NOSIGNAL);

		if (sent < 0)
			die("send");
		buf = (const uint8_t *)buf + sent;
		len -= (size_t)sent;
	}
}

/* false at the end of the stream. */
static bool recv_all(int fd, void *buf, size_t len)
{
	while (len) {
		ssize_t got = recv(fd, buf, len, 0);

		if (got < 0 && errno != ECONNRESET)
			die("recv");
		if (got <= 0)
			return false;
		buf = (uint8_t *)buf + got;
		len -= (size_t)got;
	}
	return true;
}

static void no_delay(int fd)
{
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int connect_to(uint16_t port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		die("connect");
	no_delay(fd);
	return fd;
}

static int accept_from(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		die("accept");
	no_delay(fd);
	return fd;
}

/*
 * ---- Round trips ----
 */

static void echo(int fd)
{
	uint8_t message[MESSAGE];

	while (recv_all(fd, message, MESSAGE))
		send_all(fd, message, MESSAGE);
}

static void round_trips(int fd, uint64_t count)
{
	uint64_t message;

	for (uint64_t i = 0; i < count; i++) {
		send_all(fd, &i, MESSAGE);
		if (!recv_all(fd, &message, MESSAGE) || message != i)
			die("wrong answer");
	}
}

static void pingpong_client(uint16_t port, uint64_t count)
{
	int fd = connect_to(port);
	uint64_t start;

	round_trips(fd, WARM_UP);
	start = now_ns();
	round_trips(fd, count);
	printf("%.1f\n", (double)(now_ns() - start) / (double)count);
}

static void echo_server(int listener, uint64_t count)
{
	echo(accept_from(listener));
}

/*
 * ---- One way. The server says when it has everything. ----
 */

static uint64_t warm_up(size_t len)
{
	return len == LARGE ? WARM_UP / 10 : WARM_UP;
}

static void one_way_client(uint16_t port, uint64_t count, size_t len)
{
	int fd = connect_to(port);
	uint64_t start;
	uint8_t done;

	for (int round = 0; round < 2; round++) {
		uint64_t todo = round ? count : warm_up(len);

		start = now_ns();
		for (uint64_t i = 0; i < todo; i++) {
			memcpy(large, &i, sizeof(i));
			send_all(fd, large, len);
		}
		if (!recv_all(fd, &done, 1))
			die("no end");
	}
	printf("%.2f\n", (double)(now_ns() - start) / (double)count);
}

static void one_way_server(int listener, uint64_t count, size_t len)
{
	int fd = accept_from(listener);

	for (int round = 0; round < 2; round++) {
		uint64_t todo = round ? count : warm_up(len), i, got;

		for (i = 0; i < todo; i++) {
			if (!recv_all(fd, large, len))
				die("end in the middle");
			memcpy(&got, large, sizeof(got));
			if (got != i)
				die("wrong message");
		}
		send_all(fd, "", 1);
	}
}

static void small_client(uint16_t port, uint64_t count)
{
	one_way_client(port, count, MESSAGE);
}

static void small_server(int listener, uint64_t count)
{
	one_way_server(listener, count, MESSAGE);
}

static void large_client(uint16_t port, uint64_t count)
{
	one_way_client(port, count, LARGE);
}

static void large_server(int listener, uint64_t count)
{
	one_way_server(listener, count, LARGE);
}

/*
 * ---- Short connections: one question, one answer ----
 */

static void short_client(uint16_t port, uint64_t count)
{
	uint64_t start = 0;

	for (uint64_t i = 0; i < count + 100; i++) {
		int fd;

		if (i == 100)
			start = now_ns();
		fd = connect_to(port);
		round_trips(fd, 1);
		close(fd);
	}
	printf("%.1f\n", (double)(now_ns() - start) / (double)count);
}

static void short_server(int listener, uint64_t count)
{
	for (;;) {
		int fd = accept_from(listener);

		echo(fd);
		close(fd);
	}
}

/*
 * ---- Calls on a connection that stays on TCP: a receive that finds nothing, and a send. ----
 */

static void plain_client(uint16_t port, uint64_t count)
{
	int fd = connect_to(port);
	uint8_t message[MESSAGE] = { 0 };
	uint64_t start, nothing, sends, i;

	/* The rendezvous has given up when the connection has been busy for a while. */
	for (i = 0; i < 20; i++) {
		struct timespec pause = { .tv_nsec = 20000000 };

		for (int j = 0; j < 1000; j++)
			recv(fd, message, MESSAGE, MSG_DONTWAIT);
		send_all(fd, message, MESSAGE);
		nanosleep(&pause, NULL);
	}
	start = now_ns();
	for (i = 0; i < count; i++)
		if (recv(fd, message, MESSAGE, MSG_DONTWAIT) != -1)
			die("something came");
	nothing = now_ns() - start;
	start = now_ns();
	for (i = 0; i < count / 4; i++)
		send_all(fd, message, MESSAGE);
	sends = now_ns() - start;
	printf("%.2f %.2f\n", (double)nothing / (double)count, (double)sends / ((double)count / 4));
}

static void discard_server(int listener, uint64_t count)
{
	int fd = accept_from(listener);

	while (recv(fd, large, sizeof(large), 0) > 0)
		;
}

/*
 * ---- One busy connection beside COUNT idle ones, all in one epoll set at both ends ----
 */
#define EPOLL_ROUNDS 20000

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

static void epoll_rounds(int set, int fd, uint64_t count)
{
	uint64_t message;

	for (uint64_t i = 0; i < count; i++) {
		send_all(fd, &i, MESSAGE);
		if (ready(set) != fd || recv(fd, &message, MESSAGE, 0) != MESSAGE || message != i)
			die("wrong answer");
	}
}

static void idle_client(uint16_t port, uint64_t count)
{
	int set = epoll_create1(EPOLL_CLOEXEC), fd;
	uint64_t start, i;

	raise_nofile();
	for (i = 0; i < count; i++)
		watch(set, connect_to(port));
	fd = connect_to(port);
	watch(set, fd);
	epoll_rounds(set, fd, WARM_UP);
	start = now_ns();
	epoll_rounds(set, fd, EPOLL_ROUNDS);
	printf("%.1f\n", (double)(now_ns() - start) / EPOLL_ROUNDS);
}

static void idle_server(int listener, uint64_t count)
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

static pid_t server_pid;

static void cpu_client(uint16_t port, uint64_t count)
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

static void cpu_server(int listener, uint64_t count)
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

static void syscalls_client(uint16_t port, uint64_t count)
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

/*
 * ---- Start ----
 */

static const struct mode {
	const char *name;
	void (*client)(uint16_t port, uint64_t count);
	void (*server)(int listener, uint64_t count);
	bool plain_peer;
} modes[] = {
	{ "pingpong", pingpong_client, echo_server, false },
	{ "small", small_client, small_server, false },
	{ "large", large_client, large_server, false },
	{ "short", short_client, short_server, false },
	{ "plain", plain_client, discard_server, true },
	{ "idle", idle_client, idle_server, false },
	{ "cpu", cpu_client, cpu_server, false },
	{ "syscalls", syscalls_client, echo_server, false },
};

static const struct mode *mode_named(const char *name)
{
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		if (!strcmp(modes[i].name, name))
			return &modes[i];
	fprintf(stderr, "sockbench: no mode \"%s\"\n", name);
	exit(2);
}

static int serve(const struct mode *mode, uint64_t count)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };
	socklen_t addr_len = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (listener < 0 || bind(listener, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(listener, 4096) < 0 ||
	    getsockname(listener, (struct sockaddr *)&addr, &addr_len) < 0)
		die("listen");
	if (write(PORT_FD, &addr.sin_port, sizeof(addr.sin_port)) != sizeof(addr.sin_port))
		die("port");
	close(PORT_FD);
	mode->server(listener, count);
	return 0;
}

static uint16_t start_server(const struct mode *mode, char **argv)
{
	uint16_t port;
	int fds[2];

	if (pipe(fds) < 0)
		die("pipe");
	server_pid = fork();
	if (server_pid < 0)
		die("fork");
	if (!server_pid) {
		if (fds[1] != PORT_FD) {
			dup2(fds[1], PORT_FD);
			close(fds[1]);
		}
		if (fds[0] != PORT_FD)
			close(fds[0]);
		if (mode->plain_peer) {
			unsetenv("LD_PRELOAD");
			unsetenv("RINGWAY");
		}
		execl("/proc/self/exe", "sockbench", "--serve", argv[1], argv[2], (char *)NULL);
		die("exec");
	}
	close(fds[1]);
	if (read(fds[0], &port, sizeof(port)) != sizeof(port))
		die("the server did not start");
	close(fds[0]);
	return ntohs(port);
}

int main(int argc, char **argv)
{
	bool serving = argc == 4 && !strcmp(argv[1], "--serve");
	const struct mode *mode;
	uint64_t count;

	if (serving)
		argv++;
	else if (argc != 3) {
		fprintf(stderr, "usage: sockbench MODE COUNT\n");
		return 2;
	}
	alarm(120);
	mode = mode_named(argv[1]);
	count = strtoull(argv[2], NULL, 10);
	if (serving)
		return serve(mode, count);
	mode->client(start_server(mode, argv), count);
	fflush(stdout);
	kill(server_pid, SIGKILL);
	waitpid(server_pid, NULL, 0);
	return 0;
}
