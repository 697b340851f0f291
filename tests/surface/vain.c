/* SPDX-License-Identifier: MIT */
/* Threads stream in both directions of several connections to another process, while one tries to become a program that the kernel refuses. */
#include "probe.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

enum { CONNECTIONS = 4, BYTES = 3 << 20, PIECE = 40000, TIMES = 200 };

struct stream {
	int fd;
	unsigned out, in;	/* what tells its bytes from others */
};

static atomic_int running;
static atomic_size_t received;

static uint8_t byte_at(unsigned seed, size_t pos)
{
	return (uint8_t)(pos * 7 + (pos >> 8) * 13 + (pos >> 16) * 31 + seed);
}

static size_t send_piece(const struct stream *s, size_t pos)
{
	static _Thread_local uint8_t piece[PIECE];
	size_t len = 1 + (pos * 31) % PIECE;
	ssize_t n;

	len = len < BYTES - pos ? len : BYTES - pos;
	for (size_t i = 0; i < len; i++)
		piece[i] = byte_at(s->out, pos + i);
	n = send(s->fd, piece, len, MSG_NOSIGNAL);
	MUST(n == (ssize_t)len);
	if (pos + len == BYTES)
		MUST(shutdown(s->fd, SHUT_WR) == 0);
	return pos + len;
}

/* Up to the position `to` at most; 0 at the end. */
static size_t receive_piece(const struct stream *s, size_t pos, size_t to)
{
	static _Thread_local uint8_t piece[PIECE];
	ssize_t n = recv(s->fd, piece, to - pos < PIECE ? to - pos : PIECE, 0);

	MUST(n > 0 || (n == 0 && pos == BYTES));
	for (ssize_t i = 0; i < n; i++)
		if (piece[i] != byte_at(s->in, pos + (size_t)i)) {
			fprintf(stderr, "byte %zu is wrong\n", pos + (size_t)i);
			exit(9);
		}
	atomic_fetch_add(&received, (size_t)n);
	return n ? pos + (size_t)n : 0;
}

static void *sends(void *arg)
{
	for (size_t pos = 0; pos < BYTES;)
		pos = send_piece(arg, pos);
	atomic_fetch_sub(&running, 1);
	return NULL;
}

static void *receives(void *arg)
{
	size_t pos = 0;

	do
		pos = receive_piece(arg, pos, BYTES + 1);
	while (pos);
	atomic_fetch_sub(&running, 1);
	return NULL;
}

/* In turn with the other end, so that a lane is quiet now and then. */
static void *talks(void *arg)
{
	size_t sent = 0, got = 0;

	while (sent < BYTES) {
		sent = send_piece(arg, sent);
		while (got < sent)
			got = receive_piece(arg, got, sent);
	}
	MUST(receive_piece(arg, got, BYTES + 1) == 0);
	atomic_fetch_sub(&running, 1);
	return NULL;
}

/* The file is there and may be executed, and is none that the kernel can run. */
static void exec_in_vain(int file)
{
	char path[32], *argv[] = { path, NULL };

	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	execve(path, argv, argv + 1);
	MUST(errno == ENOEXEC);
}

static void start(pthread_t *threads, unsigned *nr, void *(*does)(void *arg), struct stream *s)
{
	atomic_fetch_add(&running, 1);
	MUST(pthread_create(&threads[(*nr)++], NULL, does, s) == 0);
}

static void stream_all(const int *fds, unsigned own, bool cold, int file)
{
	pthread_t threads[2 * CONNECTIONS];
	struct stream s[CONNECTIONS];
	unsigned nr = 0;

	for (unsigned i = 0; i < CONNECTIONS && !cold; i++)
		warm(fds[i], own);
	for (unsigned i = 0; i < CONNECTIONS; i++) {
		s[i] = (struct stream){ fds[i], 2 * i + own, 2 * i + !own };
		if (i % 2) {
			start(threads, &nr, talks, &s[i]);
		} else {
			start(threads, &nr, sends, &s[i]);
			start(threads, &nr, receives, &s[i]);
		}
	}
	/* Now and then. */
	for (unsigned i = 1; file >= 0 && i < TIMES; i++) {
		while (running && received < i * ((size_t)CONNECTIONS * BYTES / TIMES))
			sched_yield();
		exec_in_vain(file);
	}
	for (unsigned i = 0; i < nr; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	for (unsigned i = 0; i < CONNECTIONS; i++)
		MUST(close(fds[i]) == 0);
}

/* `cloexec`: they would not be the other program's. `cold`: they are on their way to the rings. */
int main(int argc, char **argv)
{
	int flags = strcmp(argv[1], "cloexec") == 0 ? SOCK_CLOEXEC : 0;
	bool cold = argc > 2;
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), fds[CONNECTIONS];
	int file = memfd_create("none", MFD_CLOEXEC);
	socklen_t len = sizeof(addr);
	pid_t pid;

	MUST(file >= 0 && write(file, "no program\n", 11) == 11 && fchmod(file, 0700) == 0);
	MUST(listener >= 0 && bind(listener, (struct sockaddr *)&addr, len) == 0 && listen(listener, CONNECTIONS) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (unsigned i = 0; i < CONNECTIONS; i++) {
			fds[i] = socket(AF_INET, SOCK_STREAM, 0);
			MUST(fds[i] >= 0 && connect(fds[i], (struct sockaddr *)&addr, len) == 0);
		}
		stream_all(fds, 1, cold, -1);
		exit(0);
	}
	for (unsigned i = 0; i < CONNECTIONS; i++) {
		fds[i] = accept4(listener, NULL, NULL, flags);
		MUST(fds[i] >= 0);
	}
	stream_all(fds, 0, cold, file);
	SAY("all came, the other end %d\n", wait_for(pid));
	return 0;
}
