/* SPDX-License-Identifier: MIT */
/* Steps about processes and threads, and descriptors that travel between them. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verbs.h"

extern char **environ;

enum { MAX_CHILDREN = 16 };

static struct child {
	char name[12];
	pid_t pid;
} children[MAX_CHILDREN];
static int nr_children;

static void child_add(const char *name, pid_t pid)
{
	if (nr_children == MAX_CHILDREN)
		bad_step("too many children", name);
	snprintf(children[nr_children].name, sizeof(children[0].name), "%s", name);
	children[nr_children++].pid = pid;
}

static void *thread_main(void *actor)
{
	actor_serve(actor);
	return NULL;
}

void verb_new_thread(struct actor *a, int argc, char **argv)
{
	pthread_t thread;
	int error = pthread_create(&thread, NULL, thread_main, actor_new(argv[1], channel_of(argv[1]), a->names));

	if (!error)
		pthread_detach(thread);
	say(a, error ? "= failed" : "= ok");
}

void verb_end_thread(struct actor *a, int argc, char **argv)
{
	say(a, "= ok");
}

void verb_fork(struct actor *a, int argc, char **argv)
{
	int channel = channel_of(argv[1]);
	pid_t pid = CALL(fork());

	if (pid == 0) {
		close(a->channel);
		nr_children = 0;
		actor_serve(actor_new(argv[1], channel, a->names));
		exit(0);
	}
	say(a, pid < 0 ? "= -1" : "= ok");
	if (pid > 0)
		child_add(argv[1], pid);
}

void verb_vfork_true(struct actor *a, int argc, char **argv)
{
	int status = -1;
	pid_t pid = vfork();

	if (pid == 0) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		say(a, "= failed");
	else
		say(a, "= status %d", status);
}

void verb_system_true(struct actor *a, int argc, char **argv)
{
	say(a, "= status %d", system("true"));
}

/* The command line that makes this program play `name`, with the descriptors given by name kept under their names. */
struct command {
	char *argv[MAX_ARGS + MAX_CHANNELS + 4];
	char words[MAX_ARGS][40];
};

static void command_build(struct actor *a, struct command *c, const char *name, int argc, char **argv, int from)
{
	static char program[] = "conform", serve[] = "--serve", keep[] = "--keep", family[2];
	int n = 0, w = 0;

	family[0] = run_family;
	c->argv[n++] = program;
	c->argv[n++] = family;
	snprintf(c->words[w], sizeof(c->words[0]), "%s=%d", name, channel_of(name));
	c->argv[n++] = c->words[w++];
	for (int i = from; i < argc && w < MAX_ARGS - 2; i++) {
		c->argv[n++] = keep;
		snprintf(c->words[w], sizeof(c->words[0]), "%s=%d", argv[i], fd_of(a, argv[i]));
		c->argv[n++] = c->words[w++];
	}
	c->argv[n++] = serve;
	snprintf(c->words[w], sizeof(c->words[0]), "%s", name);
	c->argv[n++] = c->words[w];
	c->argv[n] = NULL;
}

void verb_spawn(struct actor *a, int argc, char **argv)
{
	struct command c;
	pid_t pid;
	int error;

	command_build(a, &c, argv[1], argc, argv, 2);
	error = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, c.argv, environ);
	if (!error)
		child_add(argv[1], pid);
	say(a, error ? "= failed" : "= ok");
}

/* Answers by its greeting. */
void verb_exec(struct actor *a, int argc, char **argv)
{
	struct command c;

	command_build(a, &c, a->name, argc, argv, 1);
	execv("/proc/self/exe", c.argv);
	bad_step("exec failed", strerrorname_np(errno));
}

void verb_wait(struct actor *a, int argc, char **argv)
{
	for (int i = 0; i < nr_children; i++) {
		int status = 0;

		if (strcmp(children[i].name, argv[1]))
			continue;
		if (CALL(waitpid(children[i].pid, &status, 0)) != children[i].pid)
			say(a, "= failed %s", strerrorname_np(errno));
		else if (WIFSIGNALED(status))
			say(a, "= killed SIG%s", sigabbrev_np(WTERMSIG(status)));
		else
			say(a, "= exited %d", WEXITSTATUS(status));
		return;
	}
	bad_step("no child of that name", argv[1]);
}

void verb_exit(struct actor *a, int argc, char **argv)
{
	exit((int)parse_number(argv[1]));
}

void verb__exit(struct actor *a, int argc, char **argv)
{
	_exit((int)parse_number(argv[1]));
}

void verb_abort(struct actor *a, int argc, char **argv)
{
	const struct rlimit no_core = { 0, 0 };

	setrlimit(RLIMIT_CORE, &no_core);
	abort();
}

void verb_setsid(struct actor *a, int argc, char **argv)
{
	say(a, setsid() < 0 ? "= -1" : "= ok");
}

union rights {
	char room[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

void verb_pass_fd(struct actor *a, int argc, char **argv)
{
	union rights control = {{0}};
	char byte = 'f';
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int fd = fd_of(a, argv[1]);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	say_result(a, CALL(sendmsg(fd_of(a, argv[2]), &msg, 0)));
}

void verb_take_fd(struct actor *a, int argc, char **argv)
{
	union rights control = {{0}};
	char byte;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control)};
	ssize_t n = CALL(recvmsg(fd_of(a, argv[1]), &msg, MSG_CMSG_CLOEXEC));
	struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);
	int fd = -1;

	say_result(a, n);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	say(a, fd >= 0 ? " with a descriptor" : " without");
	name_set(a, argv[2], fd);
}

void verb_unixpair(struct actor *a, int argc, char **argv)
{
	int ends[2] = {-1, -1};

	say_result(a, CALL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends)));
	name_set(a, argv[1], ends[0]);
	name_set(a, argv[2], ends[1]);
}
