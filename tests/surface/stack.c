/* SPDX-License-Identifier: MIT */
/*
 * stack BYTES [each]: handlers on a stack of their own that use a connection. The kernel takes of it what it says that it takes, and the calls have BYTES;
 * below it nothing is mapped. With `each` it says on standard error what each call has used.
 */
#include "probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/uio.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

enum { UNUSED = 0xa5, OWN = 192 };	/* the handler's own frame */

static int here, there, set;
static char bytes[300];
static struct iovec parts[2] = { { bytes, 100 }, { bytes + 100, 100 } };
static struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
static struct pollfd asked[2];
static struct epoll_event events[4];
static fd_set numbers;
static struct timeval no_time;

static void send_some(void)
{
	MUST(send(here, bytes, 100, 0) == 100);
}

static void write_some(void)
{
	MUST(write(here, bytes, 100) == 100);
}

static void writev_some(void)
{
	MUST(writev(here, parts, 2) == 200);
}

static void sendmsg_some(void)
{
	MUST(sendmsg(here, &message, 0) == 200);
}

static void recv_some(void)
{
	MUST(recv(here, bytes, 300, 0) > 0);
}

static void read_some(void)
{
	MUST(read(here, bytes, 300) > 0);
}

static void readv_some(void)
{
	MUST(readv(here, parts, 2) > 0);
}

static void recvmsg_some(void)
{
	MUST(recvmsg(here, &message, 0) > 0);
}

static void peek_some(void)
{
	MUST(recv(here, bytes, 300, MSG_PEEK) > 0);
}

static void recv_nothing(void)
{
	MUST(recv(here, bytes, 300, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

static void poll_both(void)
{
	asked[0] = (struct pollfd){ .fd = here, .events = POLLIN | POLLOUT };
	asked[1] = (struct pollfd){ .fd = there, .events = POLLIN };
	MUST(poll(asked, 2, 0) == 1);
}

static void poll_briefly(void)
{
	asked[0] = (struct pollfd){ .fd = here, .events = POLLIN };
	MUST(poll(asked, 1, 1) == 0);
}

static void select_both(void)
{
	FD_ZERO(&numbers);
	FD_SET(here, &numbers);
	MUST(select(here + 1, NULL, &numbers, NULL, &no_time) == 1);
}

static void wait_on_set(void)
{
	MUST(epoll_wait(set, events, 4, 0) >= 0);
}

static void wait_on_set_briefly(void)
{
	MUST(epoll_wait(set, events, 4, 1) >= 0);
}

static void shut(void)
{
	MUST(shutdown(here, SHUT_WR) == 0);
}

static void close_it(void)
{
	MUST(close(here) == 0);
}

/* From the first byte on: how two ends find each other is part of it. */
static void move_out(void)
{
	for (int i = 0; i < 20; i++) {
		MUST(send(here, bytes, 100, 0) == 100 && recv(there, bytes, 300, 0) == 100);
		MUST(send(there, bytes, 100, 0) == 100 && recv(here, bytes, 300, 0) == 100);
	}
}

static const struct call {
	const char *name;
	void (*make)(void);
} calls[] = {
	{ "moving out", move_out }, { "send", send_some }, { "write", write_some }, { "writev", writev_some }, { "sendmsg", sendmsg_some },
	{ "recv", recv_some }, { "read", read_some }, { "readv", readv_some }, { "recvmsg", recvmsg_some }, { "recv, a look", peek_some },
	{ "recv, nothing there", recv_nothing }, { "poll", poll_both }, { "poll, asleep", poll_briefly }, { "select", select_both },
	{ "epoll_wait", wait_on_set }, { "epoll_wait, asleep", wait_on_set_briefly }, { "shutdown", shut }, { "close", close_it },
};

static void leave(void)
{
	_exit(0);
}

static const struct call leaves = { "_exit", leave };
static const struct call *next;
static uintptr_t entered;

static void handler(int sig)
{
	entered = (uintptr_t)__builtin_frame_address(0);
	next->make();
}

static void empty(int fd)
{
	while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
}

int main(int argc, char **argv)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), kernel = getauxval(AT_MINSIGSTKSZ), len = kernel + OWN + (size_t)atoi(argv[1]), mapped;
	int each = argc > 2;
	struct epoll_event ev = { .events = EPOLLIN };
	struct sigaction act = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	stack_t stack;
	char *at;

	if (kernel < 2048)
		len += 2048 - kernel;
	mapped = (len + page - 1) / page * page;
	at = mmap(NULL, mapped + 4 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(at != MAP_FAILED && mprotect(at + 4 * page, mapped, PROT_READ | PROT_WRITE) == 0);
	/* Its lower end is a page's. */
	stack = (stack_t){ .ss_sp = at + 4 * page, .ss_size = len };
	MUST(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &act, NULL) == 0);
	set = epoll_create1(0);
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		char *lowest = stack.ss_sp;

		if (i == 0) {
			here = tcp_pair(&there);
			MUST(epoll_ctl(set, EPOLL_CTL_ADD, here, &ev) == 0);
		}
		next = &calls[i];
		empty(there);
		if (strstr("recv read readv recvmsg recv, a look", next->name))
			MUST(send(there, "some bytes", 10, 0) == 10);
		memset(stack.ss_sp, UNUSED, stack.ss_size);
		MUST(raise(SIGUSR1) == 0);
		while (*(unsigned char *)lowest == UNUSED)
			lowest++;
		if (each)
			fprintf(stderr, "%-20s %5zu\n", next->name, (size_t)(entered - (uintptr_t)lowest));
		empty(here);
	}
	SAY("%zu calls\n", sizeof(calls) / sizeof(*calls));
	next = &leaves;
	raise(SIGUSR1);
	return 9;
}
