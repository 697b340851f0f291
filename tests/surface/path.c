/* SPDX-License-Identifier: MIT */
/*
 * A peer that reads nothing, and a path to it that dies when a ring is full and all that was sent is acknowledged: who waits for room is to find out, however it waits. By
 * TCP there is some.
 */
#include "probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <time.h>

enum { BEATS = 200, BEAT_MS = 100, MORE = 40000, ALARM_S = BEATS * BEAT_MS / 1000 };

static uint8_t byte_at(size_t pos)
{
	return (uint8_t)(pos * 7 + (pos >> 8) * 13 + (pos >> 16) * 31);
}

/* What the socket takes of the next bytes, one at most where it takes none. */
static ssize_t send_some(int fd, size_t pos, size_t len)
{
	static uint8_t piece[MORE];

	len = len < sizeof(piece) ? len : sizeof(piece);
	for (size_t i = 0; i < len; i++)
		piece[i] = byte_at(pos + i);
	return send(fd, piece, len, MSG_NOSIGNAL);
}

static size_t fill(int fd, size_t pos)
{
	ssize_t n;

	while ((n = send_some(fd, pos, MORE)) > 0)
		pos += (size_t)n;
	MUST(n == -1 && errno == EAGAIN);
	return pos;
}

/* One beat of a program's own. */
static bool has_room(const char *how, int fd, int set, int ms)
{
	if (strcmp(how, "select") == 0) {
		struct timeval t = { .tv_usec = ms * 1000 };
		fd_set out;

		FD_ZERO(&out);
		FD_SET(fd, &out);
		return select(fd + 1, NULL, &out, NULL, &t) == 1;
	}
	if (strcmp(how, "poll") == 0)
		return poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, ms) == 1;
	if (strcmp(how, "epoll") == 0 || strcmp(how, "edge") == 0)
		return epoll_wait(set, &(struct epoll_event){ 0 }, 1, ms) == 1;
	nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
	return false;
}

static void cut(const char *path)
{
	int control = open(path, O_WRONLY | O_CLOEXEC);

	MUST(control >= 0 && pwrite(control, "l", 1, 0) == 1 && close(control) == 0);
}

static void no_room(int number)
{
	(void)number;
}

/* In one call for ever, or again and again. */
static size_t wait_for_room(const char *how, int fd, size_t pos)
{
	struct epoll_event ev = { .events = strcmp(how, "edge") ? EPOLLOUT : EPOLLOUT | EPOLLET };
	int set = epoll_create1(EPOLL_CLOEXEC);
	ssize_t n = -1;

	MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev) == 0);
	if (strcmp(how, "send") == 0) {
		sigaction(SIGALRM, &(struct sigaction){ .sa_handler = no_room }, NULL);
		MUST(fcntl(fd, F_SETFL, 0) == 0);
		alarm(ALARM_S);
		n = send_some(fd, pos, 1);
		MUST(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	}
	for (int beat = 0; beat < BEATS && n <= 0; beat++)
		if (has_room(how, fd, set, BEAT_MS) || strcmp(how, "again") == 0)
			n = send_some(fd, pos, 1);
	MUST(n == 1);
	return pos + 1;
}

static void sends(int fd, int told, const char *how, const char *control)
{
	size_t pos, total;
	ssize_t n = 0;

	warm(fd, true);
	MUST(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	pos = fill(fd, 0);
	/* Asleep, so that nothing is held back, and all of it is acknowledged. */
	MUST(poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, 1) == 0);
	cut(control);
	pos = wait_for_room(how, fd, pos);
	total = pos + MORE;
	MUST(write(told, &total, sizeof(total)) == sizeof(total));
	MUST(fcntl(fd, F_SETFL, 0) == 0);
	for (; pos < total; pos += (size_t)n)
		MUST((n = send_some(fd, pos, total - pos)) > 0);
	MUST(close(fd) == 0);
}

static void receives(int fd, int told)
{
	uint8_t piece[4096];
	size_t pos = 0, total;
	ssize_t n;

	warm(fd, false);
	MUST(read(told, &total, sizeof(total)) == sizeof(total));
	while ((n = recv(fd, piece, sizeof(piece), 0)) > 0)
		for (ssize_t i = 0; i < n; i++)
			MUST(piece[i] == byte_at(pos++));
	MUST(n == 0 && pos == total);
}

/* HOW CONTROL: the file that says what the devices do. */
int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), told[2], fd;
	socklen_t len = sizeof(addr);
	pid_t pid;

	MUST(argc == 3 && pipe2(told, O_CLOEXEC) == 0);
	MUST(listener >= 0 && bind(listener, (struct sockaddr *)&addr, len) == 0 && listen(listener, 1) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&addr, &len) == 0);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(told[0]);
		fd = socket(AF_INET, SOCK_STREAM, 0);
		MUST(fd >= 0 && connect(fd, (struct sockaddr *)&addr, len) == 0);
		sends(fd, told[1], argv[1], argv[2]);
		exit(0);
	}
	close(told[1]);
	fd = accept(listener, NULL, NULL);
	MUST(fd >= 0);
	receives(fd, told[0]);
	SAY("all came, the other end %d\n", wait_for(pid));
	return 0;
}
