/* SPDX-License-Identifier: MIT */
/*
 * Instructions of calls in which Ringway has nothing to do: on a connection that stays on TCP, and on descriptors that are none. The client is
 * stepped through COUNT calls as the program makes them and through COUNT of libc's own; printed is what one takes more, and that is the same on
 * any machine and under any load. A system call is one instruction.
 */
#include "sockbench.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>

#define PATIENCE_NS 20000000

static struct {
	ssize_t (*recv)(int fd, void *buf, size_t len, int flags);
	ssize_t (*send)(int fd, const void *buf, size_t len, int flags);
	ssize_t (*read)(int fd, void *buf, size_t len);
	ssize_t (*write)(int fd, const void *buf, size_t len);
	ssize_t (*readv)(int fd, const struct iovec *iov, int nr_iov);
	ssize_t (*writev)(int fd, const struct iovec *iov, int nr_iov);
	ssize_t (*recvfrom)(int fd, void *buf, size_t len, int flags, struct sockaddr *addr, socklen_t *addr_len);
	ssize_t (*sendto)(int fd, const void *buf, size_t len, int flags, const struct sockaddr *addr, socklen_t addr_len);
	ssize_t (*recvmsg)(int fd, struct msghdr *msg, int flags);
	ssize_t (*sendmsg)(int fd, const struct msghdr *msg, int flags);
	int (*poll)(struct pollfd *fds, nfds_t nr_fds, int timeout);
	int (*epoll_wait)(int set, struct epoll_event *events, int nr_events, int timeout);
} as_linked = { recv, send, read, write, readv, writev, recvfrom, sendto, recvmsg, sendmsg, poll, epoll_wait }, of_libc, *calls;

static uint8_t message[MESSAGE];
/* More than is ever taken, less than a pipe holds. */
static const uint8_t filling[1 << 14];
static struct iovec piece = { message, MESSAGE };
static struct msghdr header = { .msg_iov = &piece, .msg_iovlen = 1 };

static void do_recv_nothing(int fd)
{
	calls->recv(fd, message, MESSAGE, MSG_DONTWAIT);
}

static void do_recv(int fd)
{
	calls->recv(fd, message, 1, 0);
}

static void do_send(int fd)
{
	calls->send(fd, message, MESSAGE, MSG_NOSIGNAL);
}

static void do_read(int fd)
{
	calls->read(fd, message, 1);
}

static void do_write(int fd)
{
	calls->write(fd, message, 1);
}

static void do_readv(int fd)
{
	calls->readv(fd, &(struct iovec){ message, 1 }, 1);
}

static void do_writev(int fd)
{
	calls->writev(fd, &piece, 1);
}

static void do_recvfrom(int fd)
{
	calls->recvfrom(fd, message, 1, 0, NULL, NULL);
}

static void do_sendto(int fd)
{
	calls->sendto(fd, message, MESSAGE, MSG_NOSIGNAL, NULL, 0);
}

static void do_recvmsg(int fd)
{
	calls->recvmsg(fd, &header, 0);
}

static void do_sendmsg(int fd)
{
	calls->sendmsg(fd, &header, MSG_NOSIGNAL);
}

static void do_poll(int fd)
{
	calls->poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, 0);
}

static void do_epoll_wait(int set)
{
	struct epoll_event event;

	calls->epoll_wait(set, &event, 1, 0);
}

enum { ON_QUIET, ON_PLAIN, ON_SET, ON_NULL, ON_PIPE, ON_PIPE_END, NR_FDS };

/* In the order in which `run` has their names. */
static const struct step {
	void (*call)(int fd);
	int on;
} steps[] = {
	{ do_recv_nothing, ON_QUIET },
	{ do_recv, ON_PLAIN },
	{ do_send, ON_PLAIN },
	{ do_read, ON_PLAIN },
	{ do_write, ON_PLAIN },
	{ do_readv, ON_PLAIN },
	{ do_writev, ON_PLAIN },
	{ do_recvfrom, ON_PLAIN },
	{ do_sendto, ON_PLAIN },
	{ do_recvmsg, ON_PLAIN },
	{ do_sendmsg, ON_PLAIN },
	{ do_poll, ON_PLAIN },
	{ do_epoll_wait, ON_SET },
	{ do_read, ON_NULL },
	{ do_write, ON_NULL },
	{ do_read, ON_PIPE },
	{ do_write, ON_PIPE_END },
	{ do_poll, ON_PIPE_END },
};
#define NR_STEPS (sizeof(steps) / sizeof(steps[0]))

static void look_up(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW);

	if (!libc)
		die("libc");
#define LOOK_UP(name) *(void **)&of_libc.name = dlsym(libc, #name)
	LOOK_UP(recv), LOOK_UP(send), LOOK_UP(read), LOOK_UP(write), LOOK_UP(readv), LOOK_UP(writev), LOOK_UP(recvfrom), LOOK_UP(sendto);
	LOOK_UP(recvmsg), LOOK_UP(sendmsg), LOOK_UP(poll), LOOK_UP(epoll_wait);
#undef LOOK_UP
}

static void mark(void)
{
	syscall(SYS_getppid);
}

static void stepped_client(uint16_t port, uint64_t count)
{
	struct timespec pause = { .tv_nsec = PATIENCE_NS };
	int fds[NR_FDS], pipe_fds[2], quiet = connect_to(port), fd = connect_to(port);
	struct epoll_event event = { .events = EPOLLOUT };

	look_up();
	fds[ON_QUIET] = quiet;
	fds[ON_PLAIN] = fd;
	fds[ON_SET] = epoll_create1(EPOLL_CLOEXEC);
	fds[ON_NULL] = open("/dev/zero", O_RDWR | O_CLOEXEC);
	if (fds[ON_SET] < 0 || epoll_ctl(fds[ON_SET], EPOLL_CTL_ADD, fd, &event) < 0 || fds[ON_NULL] < 0 || pipe2(pipe_fds, O_CLOEXEC) < 0)
		die("descriptors");
	fds[ON_PIPE] = pipe_fds[0];
	fds[ON_PIPE_END] = pipe_fds[1];
	/* The rendezvous has given up when the connections have been busy for a while. */
	calls = &as_linked;
	for (int i = 0; i < 20; i++) {
		for (int k = 0; k < 500; k++) {
			do_recv_nothing(quiet);
			do_write(fd);
		}
		nanosleep(&pause, NULL);
	}
	if (write(pipe_fds[1], filling, sizeof(filling)) != sizeof(filling))
		die("pipe");
	/* Whatever a first call has to look up. */
	for (size_t i = 0; i < NR_STEPS; i++)
		for (calls = &as_linked; calls; calls = calls == &as_linked ? &of_libc : NULL)
			steps[i].call(fds[steps[i].on]);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		die("ptrace");
	raise(SIGSTOP);
	for (size_t i = 0; i < NR_STEPS; i++) {
		for (calls = &as_linked; calls; calls = calls == &as_linked ? &of_libc : NULL) {
			mark();
			for (uint64_t k = 0; k < count; k++)
				steps[i].call(fds[steps[i].on]);
		}
	}
	mark();
	_exit(0);
}

static bool at_mark(pid_t pid)
{
	struct user_regs_struct regs;
	long code;

	if (ptrace(PTRACE_GETREGS, pid, NULL, &regs) < 0)
		die("ptrace");
	if (regs.rax != SYS_getppid)
		return false;
	errno = 0;
	code = ptrace(PTRACE_PEEKTEXT, pid, (void *)regs.rip, NULL);
	return !errno && (code & 0xffff) == 0x050f;
}

static uint64_t step_to_mark(pid_t pid)
{
	uint64_t nr = 0;
	int status;

	do {
		if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) < 0 || waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
			die("the client is gone");
		nr++;
	} while (!at_mark(pid));
	return nr;
}

void steps_client(uint16_t port, uint64_t count)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		stepped_client(port, count);
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
		die("the client did not stop");
	ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL);
	step_to_mark(pid);
	for (size_t i = 0; i < NR_STEPS; i++) {
		uint64_t linked = step_to_mark(pid), libc = step_to_mark(pid);

		printf("%.2f ", ((double)linked - (double)libc) / (double)count);
	}
	printf("\n");
	ptrace(PTRACE_CONT, pid, NULL, NULL);
	waitpid(pid, &status, 0);
}

void steps_server(int listener, uint64_t count)
{
	static uint8_t discarded[sizeof(filling)];
	int fd;

	/* The quiet one. */
	accept_from(listener);
	fd = accept_from(listener);
	send_all(fd, filling, sizeof(filling));
	while (recv(fd, discarded, sizeof(discarded), 0) > 0)
		;
}
