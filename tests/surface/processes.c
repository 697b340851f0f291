/* SPDX-License-Identifier: MIT */
/* Processes made in every way that libc knows, with a connection open all the while. */
#include "probe.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

extern char **environ;

static int a, b;

static void still_talks(const char *after)
{
	ping_pong(a, b, 12);
	ping_pong(b, a, 12);
	SAY("after %s\n", after);
}

static void by_vfork(void)
{
	int status[2], value = 0;
	pid_t pid;

	MUST(pipe2(status, O_CLOEXEC) == 0);
	for (int i = 0; i < 30; i++) {
		pid = vfork();
		if (pid == 0) {
			/* What subprocess modules do: move descriptors, close the rest, exec. */
			dup2(status[1], 1);
			for (int fd = 3; fd < 64; fd++)
				if (fd != status[1])
					close(fd);
			value++;
			execl("/bin/sh", "sh", "-c", "exit 5", (char *)NULL);
			_exit(99);
		}
		MUST(wait_for(pid) == 5);
	}
	pid = vfork();
	if (pid == 0) {
		char *argv[] = { "x", NULL };

		execve("/nonexistent/program", argv, environ);
		execvp("nonexistent-program", argv);
		_exit(errno == ENOENT ? 6 : 7);
	}
	SAY("vfork child %d, shared %d\n", wait_for(pid), value);
	still_talks("vfork");
}

static void by_spawn(void)
{
	char *argv[] = { "sh", "-c", "echo spawned; exit 4", NULL };
	posix_spawn_file_actions_t actions;
	pid_t pid;

	MUST(posix_spawn_file_actions_init(&actions) == 0);
	MUST(posix_spawn_file_actions_addclose(&actions, a) == 0);
	MUST(posix_spawn(&pid, "/bin/sh", &actions, NULL, argv, environ) == 0);
	SAY("posix_spawn %d\n", wait_for(pid));
	MUST(posix_spawnp(&pid, "sh", NULL, NULL, argv, environ) == 0);
	SAY("posix_spawnp %d\n", wait_for(pid));
	SAY("posix_spawn of nothing %s\n", strerrorname_np(posix_spawn(&pid, "/nonexistent", NULL, NULL, argv, environ)));
	posix_spawn_file_actions_destroy(&actions);
	still_talks("posix_spawn");
}

static void by_shell(void)
{
	char line[64] = "";
	FILE *pipe;

	SAY("system %d\n", system("echo shell; exit 3"));
	pipe = popen("echo through a pipe", "r");
	MUST(pipe && fgets(line, sizeof(line), pipe));
	SAY("popen %s", line);
	SAY("pclose %d\n", pclose(pipe));
	still_talks("system and popen");
}

static int clone_main(void *arg)
{
	ping_pong(a, b, 3);
	_exit(*(int *)arg);
}

static void by_fork(void)
{
	static char stack[256 * 1024] __attribute__((aligned(16)));
	int code = 21;
	pid_t pid;

	pid = fork();
	if (pid == 0) {
		ping_pong(a, b, 40); /* the child may use both ends while we wait */
		exit(11);
	}
	SAY("fork %d\n", wait_for(pid));
	pid = _Fork();
	if (pid == 0) {
		ping_pong(b, a, 3);
		_exit(12);
	}
	SAY("_Fork %d\n", wait_for(pid));
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0) {
		ping_pong(b, a, 3);
		syscall(SYS_exit_group, 13);
	}
	SAY("syscall(clone) %d\n", wait_for(pid));
	pid = clone(clone_main, stack + sizeof(stack), SIGCHLD, &code);
	SAY("clone %d\n", wait_for(pid));
	pid = clone(clone_main, stack + sizeof(stack), SIGCHLD | CLONE_VM | CLONE_VFORK, &code);
	SAY("clone like vfork %d\n", pid < 0 ? -1 : wait_for(pid));
	still_talks("fork and clone");
}

/* A child that is killed while it holds the connection is not counted as one who shares it. */
static void by_kill(void)
{
	int ready[2];
	char byte;
	pid_t pid;

	MUST(pipe(ready) == 0);
	for (int i = 0; i < 3; i++) {
		pid = fork();
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			ping_pong(a, b, 2);
			MUST(write(ready[1], "x", 1) == 1);
			for (;;)
				pause();
		}
		MUST(read(ready[0], &byte, 1) == 1);
		MUST(kill(pid, SIGKILL) == 0);
		SAY("killed %d\n", wait_for(pid));
	}
	still_talks("kills");
	still_talks("more");
}

/* A child in a PID namespace of its own, where the parent's numbers mean nothing. Where that is not allowed: a plain one. */
static void by_namespace(void)
{
	pid_t pid;
	int rounds = 60;

	if (unshare(CLONE_NEWPID))
		fprintf(stderr, "no PID namespace for us\n");
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		ping_pong(a, b, rounds);
		pid = fork();
		if (pid == 0) {
			ping_pong(b, a, rounds);
			exit(15);
		}
		MUST(wait_for(pid) == 15);
		ping_pong(a, b, rounds);
		exit(14);
	}
	SAY("in a namespace %d\n", wait_for(pid));
	still_talks("a namespace");
	still_talks("more");
}

/* A child's child goes on alone with connections of its parent's, who has let go of them. */
static void by_descent(void)
{
	int up[2], ends[2], c, d;
	char byte = 0;
	pid_t pid;

	MUST(pipe(up) == 0 && pipe(ends) == 0);
	pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		d = tcp_pair(&c);
		pid = fork();
		MUST(pid >= 0);
		if (pid == 0) {
			close(ends[1]);
			MUST(write(up[1], &byte, 1) == 1 && read(ends[0], &byte, 1) == 0);
			ping_pong(c, d, 40);
			exit(21);
		}
		MUST(read(up[0], &byte, 1) == 1);
		close(c);
		close(d);
		close(ends[1]);
		MUST(wait_for(pid) == 21);
		exit(20);
	}
	close(ends[1]);
	SAY("child %d\n", wait_for(pid));
	still_talks("that");
}

/* The peer of by_half(): echoes until the end, then says a line for each byte in the pipe. */
static void half_peer(int go)
{
	char bytes[16];
	ssize_t n;
	int nr = 0;

	while ((n = read(b, bytes, sizeof(bytes))) > 0)
		MUST(write(b, bytes, (size_t)n) == n);
	MUST(n == 0);
	while (read(go, bytes, 1) == 1)
		MUST(dprintf(b, "line %4d\n", nr++) == 10);
	exit(17);
}

static void half_line(const char *who)
{
	char line[10];

	MUST(recv(a, line, sizeof(line), MSG_WAITALL) == sizeof(line));
	SAY("%s: %.*s", who, (int)sizeof(line), line);
}

/* Of a stream that this process has ended, and whose peer goes on, its children read as well as it does itself, and so does another program. */
static void by_half(void)
{
	char bytes[4];
	pid_t peer, pid;
	int go[2];

	MUST(pipe2(go, O_CLOEXEC) == 0);
	peer = fork();
	if (peer == 0) {
		close(a);
		close(go[1]);
		half_peer(go[0]);
	}
	close(b);
	close(go[0]);
	for (int i = 0; i < 40; i++)
		MUST(write(a, "ask", 3) == 3 && read(a, bytes, sizeof(bytes)) == 3);
	MUST(shutdown(a, SHUT_WR) == 0);
	for (int i = 0; i < 3; i++) {
		MUST(write(go[1], "g", 1) == 1);
		half_line("parent");
		pid = fork();
		if (pid == 0) {
			half_line("child");
			exit(16);
		}
		MUST(write(go[1], "g", 1) == 1);
		MUST(wait_for(pid) == 16);
	}
	pid = fork();
	if (pid == 0) {
		dup2(a, 0);
		execlp("cat", "cat", (char *)NULL);
	}
	MUST(write(go[1], "gg", 2) == 2);
	close(go[1]);
	SAY("cat %d\n", wait_for(pid));
	SAY("peer %d\n", wait_for(peer));
	SAY("then %s\n", outcome(read(a, bytes, 1)));
}

static atomic_int asking;

static void *asks(void *arg)
{
	char byte;

	for (int i = 0; i < *(int *)arg; i++)
		MUST(write(a, "x", 1) == 1 && read(a, &byte, 1) == 1);
	atomic_store(&asking, 0);
	return NULL;
}

static void *answers(void *arg)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	char byte;

	MUST(epoll_ctl(set, EPOLL_CTL_ADD, b, &ev) == 0);
	for (int i = 0; i < *(int *)arg;) {
		/* A SIGCHLD that came while who forks had it blocked is another thread's, and ends its wait. */
		MUST(epoll_wait(set, &ev, 1, -1) == 1 || errno == EINTR);
		for (; recv(b, &byte, 1, MSG_DONTWAIT) == 1; i++)
			MUST(write(b, &byte, 1) == 1);
	}
	return NULL;
}

/* Who waits for edges hears of each question, though the process forks all the while. */
static void by_edges(void)
{
	int rounds = 6000, nr_forks = 0;
	pthread_t threads[2];

	atomic_store(&asking, 1);
	MUST(!pthread_create(&threads[0], NULL, asks, &rounds) && !pthread_create(&threads[1], NULL, answers, &rounds));
	while (atomic_load(&asking) && nr_forks++ < 1000) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(18);
		MUST(wait_for(pid) == 18);
	}
	MUST(!pthread_join(threads[0], NULL) && !pthread_join(threads[1], NULL));
	SAY("%d answers\n", rounds);
}

static void *waits_on(void *arg)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int *line = arg, set = epoll_create1(EPOLL_CLOEXEC), nr_interrupted = 0;

	MUST(epoll_ctl(set, EPOLL_CTL_ADD, line[0], &ev) == 0);
	while (epoll_wait(set, &ev, 1, -1) != 1) {
		MUST(errno == EINTR);
		nr_interrupted++;
	}
	line[0] = nr_interrupted;
	return NULL;
}

/* A signal that nobody catches ends no wait, though its thread is forking when it comes. libc blocks signals there for a moment, too. */
static void by_dropped(void)
{
	enum { PAIRS = 60, FORKS = 1000 };
	pthread_t thread;
	int line[2], other;

	for (int i = 0; i < PAIRS; i++)
		tcp_pair(&other);
	MUST(pipe(line) == 0 && !pthread_create(&thread, NULL, waits_on, line));
	for (int i = 0; i < FORKS; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(0);
		MUST(wait_for(pid) == 0);
	}
	MUST(write(line[1], "x", 1) == 1 && !pthread_join(thread, NULL));
	SAY("waits %s\n", line[0] > 2 ? "end" : "go on");
}

static void storm(int depth)
{
	pid_t pids[3];

	for (int i = 0; i < 3; i++) {
		pids[i] = fork();
		MUST(pids[i] >= 0);
		if (pids[i] == 0) {
			int connected, accepted = tcp_pair(&connected);

			close(a);
			close(b);
			ping_pong(accepted, connected, 20);
			if (depth > 0) {
				a = accepted;
				b = connected;
				storm(depth - 1);
			}
			_exit(0);
		}
	}
	for (int i = 0; i < 3; i++)
		MUST(wait_for(pids[i]) == 0);
}

static void by_exec(char *self)
{
	char *argv[] = { "x", NULL };
	int extra = dup(a);
	pid_t pid;

	SAY("execve of nothing %s\n", outcome(execve("/nonexistent", argv, environ)));
	SAY("execv of a directory %s\n", outcome(execv("/", argv)));
	SAY("execvp of nothing %s\n", outcome(execvp("nonexistent-program", argv)));
	SAY("execl of no program %s\n", outcome(execl("/etc/passwd", "x", (char *)NULL)));
	close(extra);
	still_talks("failed execs");
	fcntl(a, F_SETFD, FD_CLOEXEC);
	fcntl(b, F_SETFD, FD_CLOEXEC);
	pid = fork();
	if (pid == 0)
		execlp(self, self, "exec-target", "one", "two", (char *)NULL);
	SAY("execlp %d\n", wait_for(pid));
	pid = fork();
	if (pid == 0) {
		char *envp[] = { "ONLY=this", NULL };

		execle(self, self, "exec-target", "three", (char *)NULL, envp);
	}
	SAY("execle %d\n", wait_for(pid));
	pid = fork();
	if (pid == 0) {
		char *args[] = { self, "exec-target", NULL };

		fexecve(open(self, O_RDONLY | O_CLOEXEC), args, environ);
	}
	SAY("fexecve %d\n", wait_for(pid));
	still_talks("execs of children");
}

static void exec_target(int argc, char **argv)
{
	SAY("target:");
	for (int i = 2; i < argc; i++)
		SAY(" %s", argv[i]);
	SAY(" ONLY=%s\n", getenv("ONLY") ? getenv("ONLY") : "");
	exit(31);
}

static void by_daemon(void)
{
	int lines[2];
	char line[64];
	ssize_t len;
	pid_t pid;

	MUST(pipe(lines) == 0);
	pid = fork();
	if (pid == 0) {
		MUST(daemon(0, 0) == 0);
		close(lines[0]);
		ping_pong(a, b, 20);
		dprintf(lines[1], "daemon talked\n");
		_Exit(0);
	}
	close(lines[1]);
	MUST(wait_for(pid) == 0);
	len = read(lines[0], line, sizeof(line) - 1);
	SAY("%.*s", (int)len, line);
	MUST(read(lines[0], line, 1) == 0);
	still_talks("daemon");
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "exec-target") == 0)
		exec_target(argc, argv);
	a = tcp_pair(&b);
	if (argc > 2 && strcmp(argv[2], "first") == 0 && strcmp(argv[1], "half") != 0)
		ping_pong(a, b, 30);
	if (strcmp(argv[1], "vfork") == 0)
		by_vfork();
	else if (strcmp(argv[1], "spawn") == 0)
		by_spawn();
	else if (strcmp(argv[1], "shell") == 0)
		by_shell();
	else if (strcmp(argv[1], "fork") == 0)
		by_fork();
	else if (strcmp(argv[1], "kill") == 0)
		by_kill();
	else if (strcmp(argv[1], "namespace") == 0)
		by_namespace();
	else if (strcmp(argv[1], "descent") == 0)
		by_descent();
	else if (strcmp(argv[1], "half") == 0)
		by_half();
	else if (strcmp(argv[1], "edges") == 0)
		by_edges();
	else if (strcmp(argv[1], "dropped") == 0)
		by_dropped();
	else if (strcmp(argv[1], "storm") == 0)
		storm(2);
	else if (strcmp(argv[1], "exec") == 0)
		by_exec(argv[0]);
	else if (strcmp(argv[1], "daemon") == 0)
		by_daemon();
	quick_exit(0);
}
