/* SPDX-License-Identifier: MIT */
/*
 * sendfile and splice: whatever ends them early, no byte is lost, doubled or reordered, and positions are what was sent. What
 * is printed is the same on every road; how much a road takes at once is not, and only has to add up.
 */
#include "probe.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/time.h>

enum { FILE_BYTES = 24 << 20, CHUNK = 3000 };

static int a, b;	/* a sends */
static sigjmp_buf jump;
static volatile sig_atomic_t jumps;

static unsigned char byte_at(size_t pos)
{
	return (unsigned char)(pos * 7 + (pos >> 8) + (pos >> 16) * 13);
}

static void fill(unsigned char *to, size_t pos, size_t len)
{
	for (size_t i = 0; i < len; i++)
		to[i] = byte_at(pos + i);
}

static void right(const unsigned char *at, size_t pos, size_t len)
{
	for (size_t i = 0; i < len; i++)
		MUST(at[i] == byte_at(pos + i));
}

/* Takes and checks what there is, up to the end or until nothing comes. Returns the next position. */
static size_t drain(int fd, size_t pos)
{
	unsigned char buf[65536];
	ssize_t n;

	while ((n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0) {
		right(buf, pos, (size_t)n);
		pos += (size_t)n;
	}
	return pos;
}

static size_t in_pipe(int fd)
{
	int bytes;

	MUST(ioctl(fd, FIONREAD, &bytes) == 0);
	return (size_t)bytes;
}

static void start(void)
{
	a = tcp_pair(&b);
	ping_pong(a, b, 40);
}

static void end(void)
{
	MUST(close(a) == 0 && close(b) == 0);
}

static void handler(int sig)
{
	if (jumps) {
		jumps = 0;
		siglongjmp(jump, 1);
	}
}

/* A signal again and again, until what it is to interrupt has been. */
static void interrupt(int usec)
{
	struct itimerval timer = { .it_interval.tv_usec = usec, .it_value.tv_usec = usec };
	struct sigaction act = { .sa_handler = handler };

	MUST(sigaction(SIGALRM, &act, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static int file_of_bytes(void)
{
	static unsigned char buf[1 << 16];
	int fd = memfd_create("moves", MFD_CLOEXEC);

	for (size_t pos = 0; pos < FILE_BYTES; pos += sizeof(buf)) {
		fill(buf, pos, sizeof(buf));
		MUST(write(fd, buf, sizeof(buf)) == sizeof(buf));
	}
	return fd;
}

/* The handler comes back, or it jumps: the position is what the peer gets. */
static void interrupted_sendfile(int file, int by_jump, int by_offset)
{
	off_t off = 0;

	start();
	MUST(lseek(file, 0, SEEK_SET) == 0);
	interrupt(20000);
	if (sigsetjmp(jump, 1) == 0) {
		ssize_t n;

		jumps = by_jump;
		n = sendfile(a, file, by_offset ? &off : NULL, FILE_BYTES);
		MUST(!by_jump && n > 0 && n < FILE_BYTES);
		MUST(n == (by_offset ? off : lseek(file, 0, SEEK_CUR)));
	}
	interrupt(0);
	if (!by_offset)
		off = lseek(file, 0, SEEK_CUR);
	/* A jump may come before the first byte. */
	MUST((off > 0 || by_jump) && shutdown(a, SHUT_WR) == 0);
	for (size_t pos = 0; pos < (size_t)off;)
		pos = drain(b, pos);
	MUST(recv(b, &(char){ 0 }, 1, 0) == 0);
	SAY("sendfile interrupted%s%s\n", by_jump ? " by a jump" : "", by_offset ? ", offset" : "");
	end();
}

/* Puts pattern bytes into the pipe until it holds CHUNK of them. */
static size_t refill(int fd, size_t pos)
{
	unsigned char buf[CHUNK];
	size_t len = CHUNK - in_pipe(fd);

	fill(buf, pos, len);
	MUST(write(fd, buf, len) == (ssize_t)len);
	return pos + len;
}

enum ending { FULL, FULL_HALF_CLOSED, RESET, SIGNALLED, JUMPED };

static const char *const ending_names[] = { "full", "full, peer half closed", "reset", "signalled", "jumped out of" };

/* Splices into the connection until it ends in this way; what has left the pipe is what the peer gets. */
static void spliced_out(enum ending how)
{
	int ends[2], jumped;
	volatile size_t put = 0;
	size_t got;
	volatile size_t sent = 0;
	ssize_t n = 0;

	start();
	MUST(pipe(ends) == 0);
	if (how == FULL_HALF_CLOSED) {
		MUST(shutdown(b, SHUT_WR) == 0 && recv(a, &(char){ 0 }, 1, 0) == 0);
		MUST(write(a, "x", 1) == 1 && read(b, &(char){ 0 }, 1) == 1);
	}
	if (how == FULL || how == FULL_HALF_CLOSED)
		MUST(fcntl(a, F_SETFL, O_NONBLOCK) == 0);
	if (how == RESET) {
		MUST(write(a, "unread", 6) == 6 && close(b) == 0);
		signal(SIGPIPE, SIG_IGN);
	}
	if (how == SIGNALLED || how == JUMPED)
		interrupt(20000);
	jumped = sigsetjmp(jump, 1);
	while (!jumped) {
		put = refill(ends[1], put);
		jumps = how == JUMPED;
		n = splice(ends[0], NULL, a, NULL, CHUNK, 0);
		jumps = 0;
		sent = put - in_pipe(ends[0]);
		MUST(how == RESET || (n >= 0 && sent > 0) || (n == -1 && (errno == EAGAIN || errno == EINTR)));
		if (n < 0)
			break;
	}
	interrupt(0);
	sent = put - in_pipe(ends[0]);
	if (how == RESET) {
		/* What failed has left the pipe as it was. */
		SAY("splice after %s: pipe full %d\n", ending_names[how], in_pipe(ends[0]) == CHUNK);
		b = dup(a);
	} else {
		MUST(shutdown(a, SHUT_WR) == 0);
		for (got = 0; got < sent;)
			got = drain(b, got);
		SAY("splice %s: end %s\n", ending_names[how], outcome(recv(b, &(char){ 0 }, 1, 0)));
	}
	close(ends[0]);
	close(ends[1]);
	end();
}

/* Both ways at odd sizes: the stream comes out of the second pipe as it went into the first. */
static void through_pipes(int by_sendfile)
{
	int first[2], second[2];
	size_t put = 0, got = 0;
	unsigned char buf[CHUNK];

	start();
	MUST(pipe(first) == 0 && pipe(second) == 0);
	MUST(fcntl(a, F_SETFL, O_NONBLOCK) == 0 && fcntl(b, F_SETFL, O_NONBLOCK) == 0);
	MUST(fcntl(second[1], F_SETPIPE_SZ, 4096) >= 4096 && fcntl(second[1], F_SETFL, O_NONBLOCK) == 0);
	for (size_t round = 0; got < 2 << 20; round++) {
		ssize_t n;

		put = refill(first[1], put);
		MUST(splice(first[0], NULL, a, NULL, 1 + round * 37 % CHUNK, 0) > 0 || errno == EAGAIN);
		n = by_sendfile ? sendfile(second[1], b, NULL, 1 + round * 61 % 5000) :
			splice(b, NULL, second[1], NULL, 1 + round * 61 % 5000, SPLICE_F_NONBLOCK);
		MUST(n > 0 || errno == EAGAIN);
		if (!in_pipe(second[0]))
			continue;
		n = read(second[0], buf, 1 + round * 17 % sizeof(buf));
		right(buf, got, (size_t)n);
		got += (size_t)n;
	}
	SAY("%s into a pipe\n", by_sendfile ? "sendfile" : "splice");
	for (int i = 0; i < 2; i++)
		MUST(close(first[i]) == 0 && close(second[i]) == 0);
	end();
}

static void *send_file(void *file)
{
	MUST(sendfile(a, *(int *)file, &(off_t){ 0 }, 1 << 20) == 1 << 20);
	return NULL;
}

/* A sanitizer's frames are larger. */
#ifdef __SANITIZE_ADDRESS__
#define SMALL_STACK (16 * PTHREAD_STACK_MIN)
#else
#define SMALL_STACK PTHREAD_STACK_MIN
#endif

static void on_a_small_stack(int file)
{
	pthread_attr_t attr;
	pthread_t thread;
	size_t got = 0;

	start();
	MUST(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, SMALL_STACK) == 0);
	MUST(pthread_create(&thread, &attr, send_file, &file) == 0);
	while (got < 1 << 20) {
		MUST(recv(b, &(char){ 0 }, 1, MSG_PEEK) == 1);
		got = drain(b, got);
	}
	MUST(pthread_join(thread, NULL) == 0);
	SAY("sendfile on a small stack\n");
	end();
}

/* As kernels were before 6.4: RWF_NOWAIT is refused on pipes. The program that is started then has never heard of the filter. */
static void be_old(char *self)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_preadv2, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwritev2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	execl(self, self, (char *)NULL);
	MUST(!"exec");
}

int main(int argc, char **argv)
{
	int file;

	if (argc > 1)
		be_old(argv[0]);
	file = file_of_bytes();
	for (int how = 0; how < 4; how++)
		interrupted_sendfile(file, how & 1, how & 2);
	for (int how = FULL; how <= JUMPED; how++)
		spliced_out((enum ending)how);
	on_a_small_stack(file);
	through_pipes(0);
	through_pipes(1);
	return 0;
}
