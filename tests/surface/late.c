/* SPDX-License-Identifier: MIT */
/* SIGIO and SIGURG, and the kernel's asynchronous I/O, asked for when the connection is on a ring. */
#include "probe.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>

static int a, b;
static sigset_t sigio;

static bool signal_comes(void)
{
	struct timespec patience = { .tv_sec = 20 };

	return sigtimedwait(&sigio, NULL, &patience) == SIGIO;
}

static void forget_signals(void)
{
	struct timespec none = { 0 };

	while (sigtimedwait(&sigio, NULL, &none) == SIGIO)
		;
}

/* One signal or more for what comes from now on, and for the end. */
static void expect_signals(void)
{
	char bytes[8];

	forget_signals();
	MUST(send(a, "one", 3, 0) == 3);
	SAY("bytes: %d, ", signal_comes());
	SAY("%s\n", outcome(recv(b, bytes, sizeof(bytes), 0)));
	forget_signals();
	MUST(send(b, "two", 3, 0) == 3 && recv(a, bytes, sizeof(bytes), 0) == 3);
	forget_signals();
	MUST(shutdown(a, SHUT_WR) == 0);
	SAY("end: %d, ", signal_comes());
	SAY("%s\n", outcome(recv(b, bytes, sizeof(bytes), 0)));
}

static void by_fcntl(bool unread)
{
	char bytes[8];

	if (unread)
		MUST(send(a, "unread", 6, 0) == 6);
	MUST(fcntl(b, F_SETOWN, getpid()) == 0);
	SAY("F_SETFL %s\n", outcome(fcntl(b, F_SETFL, fcntl(b, F_GETFL) | O_ASYNC)));
	if (unread)
		MUST(recv(b, bytes, sizeof(bytes), 0) == 6);
	expect_signals();
}

static void by_ioctl(void)
{
	int on = 1;

	MUST(fcntl(b, F_SETOWN, getpid()) == 0);
	SAY("FIOASYNC %s\n", outcome(ioctl(b, FIOASYNC, &on)));
	expect_signals();
}

/* The urgent byte behind some, and in front of others. */
static void urgent(void)
{
	struct timespec patience = { .tv_sec = 20 };
	sigset_t sigurg;
	char bytes[16] = "";
	int at_mark = -1;

	sigemptyset(&sigurg);
	sigaddset(&sigurg, SIGURG);
	MUST(sigprocmask(SIG_BLOCK, &sigurg, NULL) == 0);
	MUST(fcntl(b, F_SETOWN, getpid()) == 0);
	MUST(send(a, "before", 6, 0) == 6);
	MUST(send(a, "!", 1, MSG_OOB) == 1);
	MUST(send(a, "behind", 6, 0) == 6);
	SAY("SIGURG: %d\n", sigtimedwait(&sigurg, NULL, &patience) == SIGURG);
	MUST(ioctl(b, SIOCATMARK, &at_mark) == 0);
	SAY("at the mark: %d, ", at_mark);
	SAY("then %s ", outcome(recv(b, bytes, sizeof(bytes), 0)));
	MUST(ioctl(b, SIOCATMARK, &at_mark) == 0);
	SAY("'%s', at the mark: %d, ", bytes, at_mark);
	SAY("urgent %s ", outcome(recv(b, bytes, 1, MSG_OOB)));
	SAY("'%c', ", bytes[0]);
	SAY("then %s ", outcome(recv(b, bytes, sizeof(bytes), 0)));
	SAY("'%.6s'\n", bytes);
	MUST(send(b, "answer", 6, 0) == 6 && recv(a, bytes, sizeof(bytes), 0) == 6);
}

static void submit(aio_context_t aio, int opcode, void *bytes, size_t len)
{
	struct iocb block = { .aio_lio_opcode = (uint16_t)opcode, .aio_fildes = (uint32_t)b, .aio_buf = (uintptr_t)bytes, .aio_nbytes = len }, *list = &block;
	struct io_event event = { 0 };

	SAY("submit %s, ", outcome(syscall(SYS_io_submit, aio, 1, &list)));
	SAY("events %s, ", outcome(syscall(SYS_io_getevents, aio, 1, 1, &event, NULL)));
	SAY("result %lld\n", (long long)event.res);
}

static void by_kernel_aio(void)
{
	aio_context_t aio = 0;
	char bytes[8] = "";

	alarm(30);
	SAY("io_setup %s\n", outcome(syscall(SYS_io_setup, 4, &aio)));
	MUST(send(a, "bytes", 5, 0) == 5);
	submit(aio, IOCB_CMD_PREAD, bytes, 5);
	SAY("'%s'\n", bytes);
	submit(aio, IOCB_CMD_PWRITE, bytes, 5);
	SAY("%s '%s'\n", outcome(recv(a, bytes, sizeof(bytes), 0)), bytes);
	ping_pong(a, b, 30);
}

int main(int argc, char **argv)
{
	sigemptyset(&sigio);
	sigaddset(&sigio, SIGIO);
	MUST(sigprocmask(SIG_BLOCK, &sigio, NULL) == 0);
	a = tcp_pair(&b);
	ping_pong(a, b, 30);
	if (strcmp(argv[1], "fcntl") == 0)
		by_fcntl(false);
	else if (strcmp(argv[1], "unread") == 0)
		by_fcntl(true);
	else if (strcmp(argv[1], "urgent") == 0)
		urgent();
	else if (strcmp(argv[1], "aio") == 0)
		by_kernel_aio();
	else
		by_ioctl();
	return 0;
}
