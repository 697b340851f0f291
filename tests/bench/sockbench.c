/* SPDX-License-Identifier: MIT */
/*
 * What a program sees: plain socket calls, timed. The same binary runs on kernel TCP and, preloaded, under Ringway; `run`
 * does both in turn and compares.
 *
 *	sockbench [--turns] MODE COUNT       COUNT operations a batch
 *
 * The process is the client; it starts itself again as the server ("sockbench --serve MODE COUNT"), with its own environment or, for
 * the modes that need a peer without Ringway, without the preload. The server dies with the client. Prints numbers that `run` knows,
 * most often nanoseconds for each operation. With --turns, in the modes pingpong, readiness and short, a batch begins when a byte comes on standard
 * input, and its own figure is printed before the next: so two of these programs can take turns.
 */
#include "sockbench.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/* Of the server: where it says its port, and what it shares with the client. */
#define PORT_FD 3
#define MEMORY_FD 4

pid_t server_pid;

_Noreturn void die(const char *what)
{
	fprintf(stderr, "sockbench: %s: %s\n", what, strerror(errno));
	exit(2);
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int in_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *values)
{
	qsort(values, BATCHES, sizeof(values[0]), in_order);
	return values[BATCHES / 2];
}

double batch_ns(void (*batch)(int arg, uint64_t count), int arg, uint64_t count)
{
	uint64_t start = now_ns();

	batch(arg, count);
	return (double)(now_ns() - start) / (double)count;
}

static bool in_turns;

static void await_turn(void)
{
	char turn;

	if (read(STDIN_FILENO, &turn, 1) != 1)
		die("no turn");
}

double median_batch(void (*batch)(int arg, uint64_t count), int arg, uint64_t count)
{
	double ns[BATCHES];

	for (int i = 0; i < BATCHES; i++) {
		if (in_turns)
			await_turn();
		ns[i] = batch_ns(batch, arg, count);
		if (in_turns) {
			printf("%.2f\n", ns[i]);
			fflush(stdout);
		}
	}
	return median(ns);
}

void send_all(int fd, const void *buf, size_t len)
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
bool recv_all(int fd, void *buf, size_t len)
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

int connect_to(uint16_t port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		die("connect");
	no_delay(fd);
	return fd;
}

int accept_from(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		die("accept");
	no_delay(fd);
	return fd;
}

/*
 * ---- Start ----
 */

static int memory_fd = MEMORY_FD;

void *shared_memory(size_t len)
{
	void *at;

	if (ftruncate(memory_fd, (off_t)len) < 0)
		die("ftruncate");
	at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
	if (at == MAP_FAILED)
		die("mmap");
	return at;
}

/* Neither in the other's way; both above the numbers that the server knows them by. */
static int clear_of_standing(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, MEMORY_FD + 1);

	if (high < 0)
		die("dup");
	close(fd);
	return high;
}

static const struct mode {
	const char *name;
	void (*client)(uint16_t port, uint64_t count);
	void (*server)(int listener, uint64_t count);
	bool plain_peer;
} modes[] = {
	{ "pingpong", pingpong_client, pingpong_server, false },
	{ "readiness", readiness_client, readiness_server, false },
	{ "small", small_client, small_server, false },
	{ "large", large_client, large_server, false },
	{ "short", short_client, short_server, false },
	{ "plain", plain_client, plain_server, true },
	{ "idle", idle_client, idle_server, false },
	{ "cpu", cpu_client, cpu_server, false },
	{ "syscalls", syscalls_client, syscalls_server, false },
	{ "steps", steps_client, steps_server, true },
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
	fds[0] = clear_of_standing(fds[0]);
	fds[1] = clear_of_standing(fds[1]);
	memory_fd = memfd_create("sockbench", MFD_CLOEXEC);
	if (memory_fd < 0)
		die("memfd_create");
	memory_fd = clear_of_standing(memory_fd);
	server_pid = fork();
	if (server_pid < 0)
		die("fork");
	if (!server_pid) {
		if (dup2(fds[1], PORT_FD) < 0 || dup2(memory_fd, MEMORY_FD) < 0)
			die("dup2");
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

	in_turns = argc == 4 && !strcmp(argv[1], "--turns");
	if (serving || in_turns)
		argv++;
	else if (argc != 3) {
		fprintf(stderr, "usage: sockbench [--turns] MODE COUNT\n");
		return 2;
	}
	/* Neither outlives who started it, nor hangs for ever. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
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
