/* SPDX-License-Identifier: MIT */
/* Connections and listeners that are given to another program. */
#include "probe.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <wordexp.h>

extern char **environ;

static int a, b;

static void cat_reads_zero(void)
{
	execlp("cat", "cat", (char *)NULL);
	_exit(99);
}

/*
 * As inetd does: the program finds the connection under 0, with what was sent before it was there and was not read by then, and what is
 * sent afterwards. `ended`: nothing is, the stream has ended before the program is there.
 */
static void give_by_fork(bool ended)
{
	int there[2], begin[2];
	char bytes[8];
	pid_t pid;

	MUST(pipe2(there, O_CLOEXEC) == 0 && pipe2(begin, O_CLOEXEC) == 0);
	MUST(send(a, "not read, ", 10, 0) == 10 && recv(b, bytes, 4, 0) == 4);
	pid = fork();
	if (pid == 0) {
		close(begin[1]);
		MUST(read(begin[0], bytes, 1) == 0);
		dup2(b, 0);
		close(a);
		close(b);
		cat_reads_zero();
	}
	close(b);
	close(there[1]);
	if (ended)
		shutdown(a, SHUT_WR);
	close(begin[1]);
	/* It is another program now. */
	MUST(read(there[0], bytes, 1) == 0);
	if (!ended)
		MUST(send(a, "hello\n", 6, MSG_NOSIGNAL) == 6);
	shutdown(a, SHUT_WR);
	SAY("child %d\n", wait_for(pid));
	SAY("then %s\n", outcome(read(a, bytes, 1)));
}

static pid_t vfork_cat(int fd)
{
	pid_t pid = vfork();

	if (pid == 0) {
		dup2(fd, 0);
		cat_reads_zero();
	}
	return pid;
}

/* What the parent has of it stays usable beside the child's. */
static void give_by_vfork(bool hidden)
{
	char byte;
	pid_t pid;

	/* A number that the child does not inherit, and copies. */
	if (hidden)
		MUST(fcntl(b, F_SETFD, FD_CLOEXEC) == 0 && fcntl(a, F_SETFD, FD_CLOEXEC) == 0);
	pid = vfork_cat(b);
	for (int i = 0; i < 20; i++)
		MUST(send(b, "x", 1, 0) == 1 && read(a, &byte, 1) == 1);
	MUST(send(a, "hello\n", 6, MSG_NOSIGNAL) == 6);
	shutdown(a, SHUT_WR);
	SAY("child %d\n", wait_for(pid));
	MUST(send(b, "x", 1, 0) == 1 && read(a, &byte, 1) == 1);
	SAY("still talks\n");
}

static int dup2_to(int fd, int to)
{
	return dup2(fd, to);
}

/* The lowest number that is free. */
static int dup_to(int fd, int to)
{
	close(to);
	return dup(fd);
}

static int fcntl_to(int fd, int to)
{
	close(to);
	return fcntl(fd, F_DUPFD, to);
}

/* Streams of libc make calls that nobody sees. */
static void give_to_streams(int (*copy)(int fd, int to))
{
	int out = dup(1);
	char line[32] = "";

	MUST(out > 2);
	MUST(send(a, "not read\n", 9, 0) == 9);
	MUST(copy(b, 0) == 0 && copy(b, 1) == 1);
	MUST(send(a, "line\n", 5, 0) == 5);
	MUST(fgets(line, sizeof(line), stdin) && strcmp(line, "not read\n") == 0);
	MUST(fgets(line, sizeof(line), stdin) && strcmp(line, "line\n") == 0);
	SAY("to the peer\n");
	MUST(recv(a, line, sizeof(line), 0) == 12 && memcmp(line, "to the peer\n", 12) == 0);
	MUST(dup2(out, 1) == 1);
	SAY("streams talk\n");
}

/* A program without standard streams that opens connections has them there. */
static void born_as_streams(void)
{
	struct sockaddr_in addr;
	socklen_t len = sizeof(addr);
	int out = dup(1), listener = socket(AF_INET, SOCK_STREAM, 0), peer = socket(AF_INET, SOCK_STREAM, 0);
	char line[32] = "";

	MUST(listen(listener, 2) == 0 && getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
	close(0);
	MUST(connect(peer, (struct sockaddr *)&addr, len) == 0 && accept(listener, NULL, NULL) == 0);
	ping_pong(0, peer, 30);
	MUST(send(peer, "line\n", 5, 0) == 5);
	MUST(fgets(line, sizeof(line), stdin) && strcmp(line, "line\n") == 0);
	close(1);
	MUST(socket(AF_INET, SOCK_STREAM, 0) == 1 && connect(1, (struct sockaddr *)&addr, len) == 0);
	peer = accept(listener, NULL, NULL);
	ping_pong(1, peer, 30);
	SAY("to the peer\n");
	MUST(recv(peer, line, sizeof(line), 0) == 12 && memcmp(line, "to the peer\n", 12) == 0);
	MUST(dup2(out, 1) == 1);
	SAY("streams talk\n");
}

static void give_to_shell(void)
{
	SAY("sockets in the child: ");
	system("ls -l /proc/self/fd | grep -c socket:");
	SAY("flags %d %d\n", fcntl(a, F_GETFD), fcntl(b, F_GETFD));
	ping_pong(a, b, 20);
	SAY("still talks\n");
}

/* What words stand for a program may say. */
static void give_to_words(void)
{
	char words[64], in[16] = "";
	wordexp_t out;

	snprintf(words, sizeof(words), "one $(echo hello >&%d; echo two)", b);
	SAY("without a program %d\n", wordexp(words, &out, WRDE_NOCMD));
	ping_pong(a, b, 20);
	SAY("with one %d\n", wordexp(words, &out, 0));
	SAY("%s %s\n", out.we_wordv[0], out.we_wordv[1]);
	wordfree(&out);
	MUST(recv(a, in, sizeof(in), 0) == 6 && strcmp(in, "hello\n") == 0);
	ping_pong(a, b, 20);
	SAY("still talks\n");
}

static void give_to_spawn(void)
{
	posix_spawn_file_actions_t actions;

	MUST(posix_spawn_file_actions_init(&actions) == 0);
	errno = posix_spawn_file_actions_adddup2(&actions, b, 0);
	SAY("adddup2 %s\n", errno ? strerrorname_np(errno) : "ok");
	posix_spawn_file_actions_destroy(&actions);
	ping_pong(a, b, 20);
}

/* The next program accepts on a listener that this one opened, as under a service manager. */
static void give_listener(char *self)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	char number[16], port[16];

	MUST(bind(listener, (struct sockaddr *)&addr, len) == 0 && listen(listener, 1) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
	snprintf(number, sizeof(number), "%d", listener);
	snprintf(port, sizeof(port), "%d", ntohs(addr.sin_port));
	execl(self, self, "serve", number, port, (char *)NULL);
	MUST(!"exec");
}

static void serve(int listener, int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	b = socket(AF_INET, SOCK_STREAM, 0);
	MUST(connect(b, (struct sockaddr *)&addr, sizeof(addr)) == 0);
	a = accept(listener, NULL, NULL);
	MUST(a >= 0);
	ping_pong(a, b, 40);
	SAY("served\n");
}

/* The file is there and may be executed, and the kernel refuses all the same. */
static void exec_in_vain(void)
{
	static char long_argument[200000];

	memset(long_argument, 'x', sizeof(long_argument) - 1);
	execl("/bin/true", "true", long_argument, (char *)NULL);
	SAY("exec %s\n", strerrorname_np(errno));
}

/* Nothing has happened to the connection: neither what was unread then nor what is unread later is forgotten. */
static void fail_to_exec(void)
{
	char byte;

	MUST(send(b, "x", 1, 0) == 1 && recv(a, &byte, 1, MSG_PEEK) == 1);
	exec_in_vain();
	MUST(read(a, &byte, 1) == 1);
	ping_pong(a, b, 20);
	close(a);
	SAY("all read, closed: %s\n", outcome(read(b, &byte, 1)));
	close(b);
	a = tcp_pair(&b);
	ping_pong(a, b, 30);
	exec_in_vain();
	MUST(send(b, "x", 1, 0) == 1 && recv(a, &byte, 1, MSG_PEEK) == 1);
	close(a);
	SAY("unread, closed: %s\n", outcome(read(b, &byte, 1)));
}

int main(int argc, char **argv)
{
	if (strcmp(argv[1], "listener") == 0)
		give_listener(argv[0]);
	if (strcmp(argv[1], "serve") == 0)
		return serve(atoi(argv[2]), atoi(argv[3])), 0;
	a = tcp_pair(&b);
	if (argc > 2) /* late */
		ping_pong(a, b, 30);
	if (strcmp(argv[1], "fork") == 0)
		give_by_fork(false);
	else if (strcmp(argv[1], "ended") == 0)
		give_by_fork(true);
	else if (strcmp(argv[1], "vfork") == 0)
		give_by_vfork(false);
	else if (strcmp(argv[1], "vfork-hidden") == 0)
		give_by_vfork(true);
	else if (strcmp(argv[1], "in-vain") == 0)
		fail_to_exec();
	else if (strcmp(argv[1], "streams") == 0)
		give_to_streams(dup2_to);
	else if (strcmp(argv[1], "streams-dup") == 0)
		give_to_streams(dup_to);
	else if (strcmp(argv[1], "streams-fcntl") == 0)
		give_to_streams(fcntl_to);
	else if (strcmp(argv[1], "streams-born") == 0)
		born_as_streams();
	else if (strcmp(argv[1], "shell") == 0)
		give_to_shell();
	else if (strcmp(argv[1], "words") == 0)
		give_to_words();
	else
		give_to_spawn();
	return 0;
}
