/* SPDX-License-Identifier: MIT */
/*
 * A connection of which another program gets a number that is not the one it was made under, or not inheritable until the last moment. The heir
 * is this program again: it reads what was sent before it was there and not read, and what comes afterwards, and answers.
 */
#include "probe.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

#define LIFE_S 25

extern char **environ;

static char *self;
static int a, b;

static void become_heir(const char *how, int fd)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", fd);
	execl(self, self, how, number, (char *)NULL);
	_exit(99);
}

/* Until the end of the stream, or the first line. */
static void inherit(int fd, bool line)
{
	static char got[200 << 10];
	ssize_t n;
	size_t nr = 0;

	while ((n = read(fd, got + nr, sizeof(got) - 1 - nr)) > 0) {
		nr += (size_t)n;
		if (line && got[nr - 1] == '\n')
			break;
	}
	got[nr] = 0;
	SAY("heir read %zu bytes, '%s' then %s\n", nr, got + strspn(got, "."), outcome(n));
	SAY("heir writes %s\n", outcome(send(fd, "bye\n", 4, MSG_NOSIGNAL)));
}

static void dup_to_9(void)
{
	MUST(dup2(b, 9) == 9);
	become_heir("inherit", 9);
}

static void dup3_to_9(void)
{
	MUST(dup3(b, 9, O_CLOEXEC) == 9 && dup3(9, 10, 0) == 10);
	become_heir("inherit", 10);
}

static void dup_from_40(void)
{
	become_heir("inherit", fcntl(b, F_DUPFD, 40));
}

static void copy_is_closed(void)
{
	int copy = dup(b);

	close(b);
	become_heir("inherit", copy);
}

static void not_cloexec(void)
{
	MUST(fcntl(b, F_SETFD, 0) == 0);
	become_heir("inherit", b);
}

static void not_cloexec_by_ioctl(void)
{
	MUST(ioctl(b, FIONCLEX) == 0);
	become_heir("inherit", b);
}

/* As programs do that close what the next one is not to have, also what they know nothing of. */
static void all_else_closed(void)
{
	MUST(fcntl(b, F_SETFD, 0) == 0);
	if (b > 3)
		MUST(close_range(3, (unsigned int)b - 1, 0) == 0);
	MUST(close_range((unsigned int)b + 1, ~0U, 0) == 0);
	become_heir("inherit", b);
}

static void many_copies(void)
{
	int copy = b;

	for (int i = 0; i < 40; i++)
		MUST((copy = fcntl(copy, F_DUPFD_CLOEXEC, 60)) >= 60);
	MUST(fcntl(copy, F_SETFD, 0) == 0);
	become_heir("inherit", copy);
}

static const struct way {
	const char *name;
	void (*go)(void);
} ways[] = {
	{ "dup2", dup_to_9 },
	{ "dup3", dup3_to_9 },
	{ "dupfd", dup_from_40 },
	{ "dup", copy_is_closed },
	{ "setfd", not_cloexec },
	{ "fionclex", not_cloexec_by_ioctl },
	{ "close-range", all_else_closed },
	{ "many", many_copies },
};

static const struct way *way_of(const char *name)
{
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (strcmp(ways[i].name, name) == 0)
			return &ways[i];
	MUST(!"a way");
	return NULL;
}

/* The parent keeps what it has, and has the connection's other end. */
static void talk_to(pid_t heir)
{
	char bytes[8];

	MUST(heir > 0);
	MUST(send(a, "hello\n", 6, MSG_NOSIGNAL) == 6);
	shutdown(a, SHUT_WR);
	SAY("child %d\n", wait_for(heir));
	close(b);
	SAY("answer %s", outcome(recv(a, bytes, 4, MSG_WAITALL)));
	SAY(" then %s\n", outcome(read(a, bytes, 1)));
}

/* In a child, of which it is known when it has become another program: as with vfork. */
static pid_t fork_and(void (*go)(void))
{
	int there[2];
	pid_t pid;

	MUST(pipe2(there, O_CLOEXEC) == 0);
	pid = fork();
	if (pid == 0)
		go();
	close(there[1]);
	MUST(read(there[0], &(char){ 0 }, 1) == 0);
	close(there[0]);
	return pid;
}

static void by_fork(const struct way *way)
{
	talk_to(fork_and(way->go));
}

static void by_vfork(const struct way *way)
{
	pid_t pid = vfork();

	if (pid == 0)
		way->go();
	talk_to(pid);
}

static int clone_child(void *way)
{
	((const struct way *)way)->go();
	return 0;
}

static void by_clone(const struct way *way)
{
	static char stack[65536] __attribute__((aligned(16)));

	talk_to(clone(clone_child, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)way));
}

static int inheritable;

static void become_heir_of_it(void)
{
	become_heir("inherit", inheritable);
}

/* One of two numbers is inherited. */
static void by_exec(const struct way *way)
{
	pid_t pid;

	inheritable = fcntl(b, F_DUPFD, 20);
	pid = fork_and(become_heir_of_it);
	close(inheritable);
	talk_to(pid);
}

static void by_spawn(const struct way *way)
{
	int copy = fcntl(b, F_DUPFD, 20);
	char number[16];
	char *args[] = { self, "inherit", number, NULL };
	pid_t pid;

	snprintf(number, sizeof(number), "%d", copy);
	MUST(posix_spawn(&pid, self, NULL, NULL, args, environ) == 0);
	close(copy);
	talk_to(pid);
}

/* What the child is to have was said when the number was nobody's yet. */
static void by_early_spawn(const struct way *way)
{
	posix_spawn_file_actions_t actions;
	char *args[] = { self, "inherit", "9", NULL };
	int number = b;
	pid_t pid;

	close(a);
	close(b);
	MUST(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_adddup2(&actions, number, 9) == 0);
	a = tcp_pair(&b);
	MUST(b == number && fcntl(a, F_SETFD, FD_CLOEXEC) == 0 && fcntl(b, F_SETFD, FD_CLOEXEC) == 0);
	ping_pong(a, b, 30);
	MUST(send(a, "not read, ", 10, 0) == 10);
	MUST(posix_spawn(&pid, self, &actions, NULL, args, environ) == 0);
	posix_spawn_file_actions_destroy(&actions);
	talk_to(pid);
}

/* The child gets a pipe under the connection's number, and the parent keeps the connection. */
static void other_file(void)
{
	int ends[2];
	char bytes[8];
	pid_t pid;

	MUST(pipe2(ends, O_CLOEXEC) == 0);
	pid = vfork();
	if (pid == 0) {
		dup2(ends[1], b);
		become_heir("say", b);
	}
	close(ends[1]);
	SAY("child %d\n", wait_for(pid));
	SAY("pipe %s\n", outcome(read(ends[0], bytes, sizeof(bytes))));
	close(ends[0]);
	ping_pong(a, b, 20);
	SAY("still talks\n");
}

static bool sleeps(pid_t pid)
{
	char path[32], text[256] = "";
	FILE *stat;
	char *end;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	stat = fopen(path, "re");
	MUST(stat && fgets(text, sizeof(text), stat));
	fclose(stat);
	end = strrchr(text, ')');
	return end && end[2] == 'S';
}

/* The peer is asleep, and so the only one who could send again what was not read; who makes the heir closes what would have woken it. */
static void sleeping_peer(void)
{
	int there[2];
	char bytes[8];
	pid_t peer, heir;

	MUST(pipe2(there, O_CLOEXEC) == 0);
	peer = fork();
	if (peer == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(b);
		MUST(send(a, "not read\n", 9, 0) == 9);
		close(there[1]);
		_exit(recv(a, bytes, 4, MSG_WAITALL) != 4);
	}
	close(a);
	close(there[1]);
	MUST(read(there[0], bytes, 1) == 0);
	while (!sleeps(peer))
		sched_yield();
	heir = vfork();
	if (heir == 0) {
		MUST(fcntl(b, F_SETFD, 0) == 0);
		close_range((unsigned int)b + 1, ~0U, 0);
		become_heir("line", b);
	}
	close(b);
	SAY("child %d\n", wait_for(heir));
	SAY("peer %d\n", wait_for(peer));
}

static void vfork_sets(int (*set)(void))
{
	pid_t pid = vfork();

	if (pid == 0)
		_exit(set());
	MUST(wait_for(pid) == 0);
}

static int no_wait(void)
{
	return fcntl(dup(b), F_SETFL, O_RDWR | O_NONBLOCK);
}

static int wait_again(void)
{
	return ioctl(b, FIONBIO, &(int){ 0 });
}

/* Whether calls wait is the file's, which the two share. */
static void nonblock(void)
{
	char byte;
	pid_t peer;

	vfork_sets(no_wait);
	SAY("nothing there: %s\n", outcome(read(b, &byte, 1)));
	vfork_sets(wait_again);
	peer = fork();
	if (peer == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (!sleeps(getppid()))
			sched_yield();
		_exit(send(a, "x", 1, 0) != 1);
	}
	SAY("nothing there yet: %s\n", outcome(read(b, &byte, 1)));
	MUST(wait_for(peer) == 0);
}

/* Much is unread, and was so when the bytes began to take another road. */
static void leave_unread(void)
{
	static char much[100 << 10];
	char text[40];

	memset(much, '.', sizeof(much));
	MUST(send(a, much, sizeof(much), 0) == sizeof(much));
	for (int i = 0; i < 50; i++) {
		int len = snprintf(text, sizeof(text), "%d in the middle of nowhere, ", i);

		MUST(send(a, text, (size_t)len, 0) == len && recv(b, text, 1, 0) == 1);
	}
}

static void buried_fork(const struct way *way)
{
	by_fork(way_of("setfd"));
}

static void buried_vfork(const struct way *way)
{
	by_vfork(way_of("dup2"));
}

union one_fd {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static void pass_to(int end, int fd)
{
	union one_fd control = { .head = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct iovec byte = { "x", 1 };
	struct msghdr m = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };

	memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	MUST(sendmsg(end, &m, 0) == 1);
}

static int get_passed(int end)
{
	union one_fd control = { .bytes = "" };
	char into;
	struct iovec byte = { &into, 1 };
	struct msghdr m = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	int fd;

	MUST(recvmsg(end, &m, MSG_CMSG_CLOEXEC) == 1 && control.head.cmsg_type == SCM_RIGHTS);
	memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
	return fd;
}

/* To whoever is at the other end of a socket: here it is this process again. */
static int pass(int fd)
{
	int ends[2], got;

	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
	pass_to(ends[0], fd);
	got = get_passed(ends[1]);
	close(ends[0]);
	close(ends[1]);
	return got;
}

/* Another program, which is there before the connection is; under the preload as this one is, or plain. */
static pid_t start_catcher(bool plain, int *end)
{
	int ends[2];
	pid_t pid;

	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
	pid = fork();
	if (pid == 0) {
		if (plain)
			MUST(unsetenv("LD_PRELOAD") == 0 && unsetenv("RINGWAY") == 0);
		MUST(dup2(ends[1], 0) == 0);
		become_heir("catch", 0);
	}
	close(ends[1]);
	*end = ends[0];
	return pid;
}

/* It gets the one end or the other, while this program still has it, and sends on it once more. */
static void to_another_program(bool plain, bool connector)
{
	int end, kept;
	char bytes[32] = "";
	pid_t catcher = start_catcher(plain, &end);

	a = tcp_pair(&b);
	if (!connector) {
		kept = a;
		a = b;
		b = kept;
	}
	MUST(fcntl(a, F_SETFD, FD_CLOEXEC) == 0 && fcntl(b, F_SETFD, FD_CLOEXEC) == 0);
	ping_pong(a, b, 30);
	MUST(send(a, "not read, ", 10, 0) == 10 && recv(b, bytes, 4, 0) == 4);
	MUST(send(b, "from the ring, ", 15, 0) == 15);
	pass_to(end, b);
	MUST(send(b, "from the giver, ", 16, 0) == 16);
	close(b);
	MUST(send(a, "hello\n", 6, MSG_NOSIGNAL) == 6);
	shutdown(a, SHUT_WR);
	SAY("catcher %d\n", wait_for(catcher));
	SAY("answer %s", outcome(recv(a, bytes, 31, MSG_WAITALL)));
	SAY(" '%s'", bytes);
	SAY(" and %s", outcome(recv(a, bytes, 4, MSG_WAITALL)));
	SAY(" then %s\n", outcome(read(a, bytes, 1)));
}
static void buried_passed(const struct way *way)
{
	char bytes[8];
	int heir;

	heir = pass(b);
	close(b);
	MUST(send(a, "hello\n", 6, 0) == 6);
	shutdown(a, SHUT_WR);
	inherit(heir, false);
	close(heir);
	SAY("answer %s\n", outcome(recv(a, bytes, 4, MSG_WAITALL)));
}

static const struct {
	const char *name;
	void (*give)(const struct way *way);
} givers[] = {
	{ "fork", by_fork },
	{ "vfork", by_vfork },
	{ "clone", by_clone },
	{ "exec", by_exec },
	{ "spawn", by_spawn },
	{ "early-spawn", by_early_spawn },
	{ "buried-fork", buried_fork },
	{ "buried-vfork", buried_vfork },
	{ "buried-passed", buried_passed },
};

int main(int argc, char **argv)
{
	bool is_buried;
	char bytes[8];

	self = argv[0];
	alarm(LIFE_S);
	if (strcmp(argv[1], "inherit") == 0 || strcmp(argv[1], "line") == 0)
		return inherit(atoi(argv[2]), argv[1][0] == 'l'), 0;
	if (strcmp(argv[1], "catch") == 0)
		return inherit(get_passed(atoi(argv[2])), false), 0;
	if (strncmp(argv[1], "passed-", 7) == 0)
		return to_another_program(strcmp(argv[1], "passed-plain") == 0, argc > 2), 0;
	if (strcmp(argv[1], "say") == 0)
		return write(atoi(argv[2]), "bye\n", 4) != 4;
	a = tcp_pair(&b);
	MUST(fcntl(a, F_SETFD, FD_CLOEXEC) == 0 && fcntl(b, F_SETFD, FD_CLOEXEC) == 0);
	is_buried = strncmp(argv[1], "buried", 6) == 0;
	if (is_buried)
		leave_unread();
	else
		ping_pong(a, b, 30);
	if (strcmp(argv[1], "other-file") == 0)
		return other_file(), 0;
	if (strcmp(argv[1], "sleeping-peer") == 0)
		return sleeping_peer(), 0;
	if (strcmp(argv[1], "nonblock") == 0)
		return nonblock(), 0;
	if (!is_buried)
		MUST(send(a, "not read, ", 10, 0) == 10 && recv(b, bytes, 4, 0) == 4);
	for (size_t i = 0; i < sizeof(givers) / sizeof(givers[0]); i++)
		if (strcmp(givers[i].name, argv[1]) == 0)
			return givers[i].give(argc > 2 ? way_of(argv[2]) : NULL), 0;
	MUST(!"a giver");
	return 0;
}
