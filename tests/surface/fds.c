/* SPDX-License-Identifier: MIT */
/* Descriptors: closing what is not there, closing everything, and numbers that somebody hides from us. */
#include "probe.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

static void closed_numbers(void)
{
	int bad[] = { -1, -100, 900, 1 << 30 };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int fd = bad[i];

		SAY("close(%d) %s\n", fd, outcome(close(fd)));
		SAY("dup(%d) %s\n", fd, outcome(dup(fd)));
		SAY("dup2(%d, 5) %s\n", fd, outcome(dup2(fd, 5)));
		SAY("dup3(%d, 5) %s\n", fd, outcome(dup3(fd, 5, O_CLOEXEC)));
		SAY("fcntl(%d) %s\n", fd, outcome(fcntl(fd, F_GETFD)));
		SAY("ioctl(%d) %s\n", fd, outcome(ioctl(fd, FIONREAD, &bad[0])));
		SAY("shutdown(%d) %s\n", fd, outcome(shutdown(fd, SHUT_WR)));
		SAY("read(%d) %s\n", fd, outcome(read(fd, &bad[0], 0)));
	}
	SAY("dup2(1, -1) %s\n", outcome(dup2(1, -1)));
	SAY("dup2(1, limit) %s\n", outcome(dup2(1, (int)sysconf(_SC_OPEN_MAX))));
	SAY("dup2(1, 1) %s\n", outcome(dup2(1, 1)));
	SAY("dup3(1, 1) %s\n", outcome(dup3(1, 1, 0)));
	SAY("close_range(5, 4) %s\n", outcome(close_range(5, 4, 0)));
	SAY("close_range(bad flags) %s\n", outcome(close_range(5, 6, 1 << 20)));
}

static void errno_is_kept_where_calls_succeed(void)
{
	int fds[2], connected, accepted;

	errno = ELNRNG;
	accepted = tcp_pair(&connected);
	MUST(pipe(fds) == 0);
	MUST(write(connected, "x", 1) == 1 && read(accepted, &fds[0], 0) == 0);
	MUST(dup2(connected, 60) == 60 && close(60) == 0 && fcntl(connected, F_SETFL, O_NONBLOCK) == 0);
	MUST(close(connected) == 0 && close(accepted) == 0);
	SAY("errno %s\n", strerrorname_np(errno));
}

static int count_open(int below)
{
	int nr = 0;

	for (int fd = 0; fd < below; fd++)
		nr += fcntl(fd, F_GETFD) >= 0;
	return nr;
}

static void lowest_number(const char *when)
{
	int fd = open("/dev/null", O_RDONLY);

	SAY("%s: lowest %d, open %d\n", when, fd, count_open(20000));
	close(fd);
}

/* Programs close everything they did not open themselves. Connections must go, and what is hidden must live on. */
static void close_everything(void)
{
	int connected, accepted = tcp_pair(&connected);
	char byte;

	ping_pong(accepted, connected, 20);
	for (int fd = 3; fd < (int)sysconf(_SC_OPEN_MAX); fd++)
		if (fd != accepted)
			close(fd);
	lowest_number("loop");
	SAY("peer gone: %s\n", outcome(read(accepted, &byte, 1)));
	close(accepted);

	accepted = tcp_pair(&connected);
	ping_pong(accepted, connected, 20);
	MUST(close_range((unsigned int)connected, (unsigned int)connected, CLOSE_RANGE_CLOEXEC) == 0);
	SAY("cloexec %d\n", fcntl(connected, F_GETFD));
	MUST(dup2(accepted, 40) == 40 && close(accepted) == 0);
	MUST(close_range(3, 39, 0) == 0);
	SAY("peer gone: %s\n", outcome(read(40, &byte, 1)));
	MUST(close_range(3, ~0u, 0) == 0);
	lowest_number("close_range");

	accepted = tcp_pair(&connected);
	closefrom(3);
	lowest_number("closefrom");
	accepted = tcp_pair(&connected);
	ping_pong(accepted, connected, 20);
	closefrom(-3);
	if (open("/dev/null", O_RDWR) == 0)
		exit(7);
	exit(8);
}

/* Whatever number the kernel holds open beyond those that we know, it is ours if we ask for it. */
static void take_every_number(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int numbers[256], nr = 0;

	MUST(dir);
	for (struct dirent *entry; (entry = readdir(dir)) && nr < 256;)
		if (entry->d_name[0] != '.' && atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(dir))
			numbers[nr++] = atoi(entry->d_name);
	closedir(dir);
	for (int i = 0; i < nr; i++) {
		struct pollfd pfd = { .fd = numbers[i], .events = POLLIN };

		MUST(fcntl(numbers[i], F_GETFD) == -1 && errno == EBADF);
		MUST(close(numbers[i]) == -1 && errno == EBADF);
		MUST(poll(&pfd, 1, 0) == 1 && pfd.revents == POLLNVAL);
		if (dup2(1, numbers[i]) == numbers[i]) {
			MUST(write(numbers[i], "", 0) == 0);
			MUST(close(numbers[i]) == 0);
		} else {
			MUST(errno == EBADF && numbers[i] >= sysconf(_SC_OPEN_MAX));
		}
		MUST(fcntl(numbers[i], F_GETFD) == -1);
	}
	if (getenv("EXPECT_HIDDEN"))
		MUST(nr > 0);
	SAY("done\n");
}

/* As many numbers as a program may poll at once, and nothing to be read under any of them. */
static void poll_many(void)
{
	enum { PAIRS = 24 };
	struct rlimit limit;
	struct pollfd fds[2 * PAIRS];
	int quiet, spoken;
	pid_t pid;

	for (int i = 0; i < PAIRS; i++) {
		fds[2 * i] = (struct pollfd){ .events = POLLIN };
		fds[2 * i + 1] = (struct pollfd){ .events = POLLIN };
		fds[2 * i].fd = tcp_pair(&fds[2 * i + 1].fd);
		ping_pong(fds[2 * i].fd, fds[2 * i + 1].fd, 20);
	}
	MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (limit.rlim_cur = 2 * PAIRS + 1; limit.rlim_cur >= 2 * PAIRS; limit.rlim_cur--) {
		MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		quiet = poll(fds, 2 * PAIRS, 5);
		SAY("quiet: %s\n", outcome(quiet));
		pid = fork();
		if (pid == 0) {
			MUST(send(fds[1].fd, "x", 1, 0) == 1);
			_exit(0);
		}
		spoken = poll(fds, 2 * PAIRS, -1);
		SAY("spoken: %s, %x\n", outcome(spoken), (unsigned)fds[0].revents);
		MUST(wait_for(pid) == 0 && read(fds[0].fd, &(char){ 0 }, 1) == 1);
	}
}

static void limits(void)
{
	struct rlimit limit;

	MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	SAY("limit %lu %lu %ld\n", (unsigned long)limit.rlim_cur, (unsigned long)limit.rlim_max, sysconf(_SC_OPEN_MAX));
}

/* As in a container: soft and hard limit are one. Numbers of our own are soon few, and those of the program are not. */
static void sets_of_few_numbers(void)
{
	enum { PAIRS = 8, SETS = 24 };
	struct rlimit few = { 200, 200 };
	struct epoll_event event = { .events = EPOLLIN };
	int a[PAIRS], b[PAIRS], set[SETS];

	MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
	for (int i = 0; i < PAIRS; i++) {
		a[i] = tcp_pair(&b[i]);
		ping_pong(a[i], b[i], 50);
	}
	for (int i = 0; i < SETS; i++) {
		set[i] = epoll_create1(EPOLL_CLOEXEC);
		MUST(set[i] >= 0);
		SAY("set %d: %s\n", i, outcome(epoll_ctl(set[i], EPOLL_CTL_ADD, b[i % PAIRS], &event)));
	}
	for (int i = 0; i < PAIRS; i++)
		MUST(send(a[i], "x", 1, 0) == 1);
	for (int i = 0; i < SETS; i++)
		SAY("set %d: %s\n", i, outcome(epoll_wait(set[i], &event, 1, 5000)));
	/* The program may have the number of anything that is ours. */
	for (int i = 3; i < 120; i++)
		MUST(dup2(1, i) == i);
	MUST(send(a[PAIRS - 1], "x", 1, 0) == -1);
}

int main(int argc, char **argv)
{
	int connected, accepted;

	limits();
	if (strcmp(argv[1], "closed") == 0) {
		closed_numbers();
		errno_is_kept_where_calls_succeed();
	} else if (strcmp(argv[1], "take") == 0) {
		accepted = tcp_pair(&connected);
		ping_pong(accepted, connected, 20);
		close(accepted);
		close(connected);
		take_every_number();
		accepted = tcp_pair(&connected);
		ping_pong(accepted, connected, 20);
	} else if (strcmp(argv[1], "poll") == 0) {
		poll_many();
		return 0;
	} else if (strcmp(argv[1], "sets") == 0) {
		sets_of_few_numbers();
	} else if (strcmp(argv[1], "few") == 0) {
		struct rlimit few = { 8, 8 };

		MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
		accepted = tcp_pair(&connected);
		ping_pong(accepted, connected, 50);
		for (int fd; (fd = dup(1)) >= 0;)
			SAY("got %d\n", fd);
		SAY("then %s\n", strerrorname_np(errno));
	} else {
		close_everything();
	}
	limits();
	return 0;
}
