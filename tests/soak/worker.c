/* SPDX-License-Identifier: MIT */
/* A process: what it listens on, how connections begin, and how it ends. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soak.h"

enum { BACKLOG = 128 };

struct board *board;

/* Loopback, or this host's own address on a device. */
static const char *own_address(const char *name, const char *otherwise)
{
	const char *given = getenv(name);

	return given ? given : otherwise;
}

static socklen_t address_of(struct sockaddr_in6 *at, int worker, uint16_t port)
{
	const char *four = own_address("SOAK_ADDRESS", "127.0.0.1"), *six = own_address("SOAK_ADDRESS6", "::1");
	struct sockaddr_in *in = (struct sockaddr_in *)at;
	char mapped[INET6_ADDRSTRLEN];

	memset(at, 0, sizeof(*at));
	at->sin6_port = htons(port);
	at->sin6_family = worker % 3 ? AF_INET6 : AF_INET;
	if (worker % 3 == 0) {
		inet_pton(AF_INET, four, &in->sin_addr);
	} else {
		snprintf(mapped, sizeof(mapped), "::ffff:%s", four);
		inet_pton(AF_INET6, worker % 3 == 1 ? six : mapped, &at->sin6_addr);
	}
	return worker % 3 ? sizeof(*at) : sizeof(*in);
}

void inbox_address(struct sockaddr_un *at, int worker)
{
	*at = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(at->sun_path, sizeof(at->sun_path), "inbox-%d", worker);
}

void sets_open(struct worker *w)
{
	w->level = epoll_create1(EPOLL_CLOEXEC);
	w->edge = epoll_create1(EPOLL_CLOEXEC);
}

void worker_open(struct worker *w)
{
	struct worker_row *row = &board->workers[w->index];
	struct sockaddr_in6 at;
	struct sockaddr_un inbox;
	socklen_t len = address_of(&at, w->index, 0);

	sets_open(w);
	w->listener = socket(at.sin6_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	w->inbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	inbox_address(&inbox, w->index);
	unlink(inbox.sun_path);
	if (bind(w->listener, (struct sockaddr *)&at, len) || listen(w->listener, BACKLOG) ||
	    getsockname(w->listener, (struct sockaddr *)&at, &len) || bind(w->inbox, (struct sockaddr *)&inbox, sizeof(inbox)))
		abort();
	row->pid = getpid();
	atomic_store(&row->port, ntohs(at.sin6_port));
	atomic_fetch_add(&row->ready, 1);
}

static void blocking(int fd, bool on)
{
	fcntl(fd, F_SETFL, on ? 0 : O_NONBLOCK);
}

bool worker_connect(struct worker *w, struct end *e)
{
	int to = e->plan.worker[1];
	struct sockaddr_in6 own, at;
	socklen_t len = address_of(&own, to, 0);
	struct pollfd out;
	int error = 0;

	e->fd = socket(own.sin6_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (e->fd < 0 || bind(e->fd, (struct sockaddr *)&own, len) || getsockname(e->fd, (struct sockaddr *)&own, &len))
		abort();
	atomic_store(&end_row(e)->port, ntohs(own.sin6_port));
	blocking(e->fd, e->conn % 2);
	len = address_of(&at, to, (uint16_t)atomic_load(&board->workers[to].port));
	if (connect(e->fd, (struct sockaddr *)&at, len)) {
		error = errno;
		out = (struct pollfd){ e->fd, POLLOUT, 0 };
		while ((error == EINPROGRESS || error == EINTR) && poll(&out, 1, -1) <= 0)
			;
		len = sizeof(error);
		if (error == EINPROGRESS || error == EINTR)
			getsockopt(e->fd, SOL_SOCKET, SO_ERROR, &error, &len);
	}
	if (error) {
		e->cut_by = error;
		end_close(e, ROW_CUT);
		return false;
	}
	blocking(e->fd, worker_threaded(w->index));
	return true;
}

/* The latest connection from that port. */
static int64_t conn_from(uint16_t port, int worker)
{
	for (int64_t c = (int64_t)board->nr_conns - 1; c >= 0; c--) {
		struct plan p;

		if (atomic_load(&board->rows[c][0].port) != port || atomic_load(&board->rows[c][1].state) != ROW_NONE)
			continue;
		plan_make(&p, (uint32_t)c);
		if (p.worker[1] == worker)
			return c;
	}
	return -1;
}

bool worker_accept(struct worker *w, struct end *e)
{
	struct sockaddr_in6 from;
	socklen_t len = sizeof(from);
	int fd = accept4(w->listener, (struct sockaddr *)&from, &len, SOCK_CLOEXEC | (worker_threaded(w->index) ? 0 : SOCK_NONBLOCK));
	int64_t conn;

	if (fd < 0)
		return false;
	conn = conn_from(ntohs(from.sin6_port), w->index);
	if (conn < 0) {
		close(fd);
		return false;
	}
	end_init(e, (uint32_t)conn, 1, fd);
	return true;
}

static int nr_connected(const struct worker *w)
{
	int nr = 0;

	for (uint32_t c = 0; c < w->next_conn; c++)
		nr += board->rows[c][0].worker == w->index && atomic_load(&board->rows[c][0].state) == ROW_OPEN;
	return nr;
}

void worker_begin(struct worker *w)
{
	if (w->listener < 0 || !atomic_load(&board->go))
		return;
	for (int nr = nr_connected(w); nr < (int)board->at_once && w->next_conn < board->nr_conns; w->next_conn++) {
		struct end *e;
		struct plan p;

		plan_make(&p, w->next_conn);
		if (p.worker[0] != w->index || atomic_load(&board->rows[w->next_conn][0].state) != ROW_NONE)
			continue;
		e = malloc(sizeof(*e));
		board->rows[w->next_conn][1].worker = p.worker[1];
		end_init(e, w->next_conn, 0, -1);
		if (worker_connect(w, e)) {
			nr++;
			if (!worker_threaded(w->index)) {
				worker_add(w, e);
				continue;
			}
			threads_add(w, e);
		}
		free(e);
	}
}

void worker_hear(struct worker *w)
{
	struct end *e = malloc(sizeof(*e));
	int fd = inbox_receive(w->inbox, e);

	if (fd == INBOX_OVER)
		w->over = true;
	if (fd < 0) {
		free(e);
		return;
	}
	e->fd = fd;
	end_row(e)->worker = w->index;
	end_tell(e, "was passed");
	worker_add(w, e);
}

static int count_lines(const char *path, const char *with)
{
	char line[512];
	FILE *f = fopen(path, "re");
	int nr = 0;

	while (f && fgets(line, sizeof(line), f))
		nr += strstr(line, with) != NULL;
	if (f)
		fclose(f);
	return nr;
}

/* Descriptors of this process, one by one, with what they are. */
static int open_fds(FILE *list)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *one;
	int nr = 0;

	while (d && (one = readdir(d))) {
		char path[300], target[256];
		ssize_t n;

		if (one->d_name[0] == '.' || atoi(one->d_name) == dirfd(d))
			continue;
		nr++;
		snprintf(path, sizeof(path), "/proc/self/fd/%s", one->d_name);
		n = readlink(path, target, sizeof(target) - 1);
		if (n > 0 && list)
			fprintf(list, "%s %.*s\n", one->d_name, (int)n, target);
	}
	if (d)
		closedir(d);
	return nr;
}

bool worker_reap(struct worker *w, bool waits)
{
	int status = 0;
	pid_t pid = waitpid(-1, &status, waits ? 0 : WNOHANG);

	if (pid > 0 && status)
		board->workers[w->index].child_status = status;
	return pid > 0 || (pid < 0 && errno == EINTR);
}

static void interrupted(int number)
{
}

void block_signals(bool block)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static void limits(void)
{
	struct sigaction sa = { .sa_handler = interrupted };
	const char *limit = getenv("SOAK_LIMIT");

	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGUSR1, &sa, NULL);
	block_signals(false);
	alarm(limit ? (unsigned int)atoi(limit) : 600);
}

void child_limits(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	limits();
}

int main(int argc, char **argv)
{
	struct worker w = { .index = argc > 1 ? atoi(argv[1]) : 0, .listener = -1, .inbox = -1 };
	int file = open("board", O_RDWR | O_CLOEXEC);
	off_t size = lseek(file, 0, SEEK_END);

	board = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (argc < 2 || file < 0 || board == MAP_FAILED)
		return 2;
	limits();
	if (argc > 2) {
		events_resume(&w, atoi(argv[2]));
	} else {
		worker_open(&w);
		board->workers[w.index].fds_before = open_fds(NULL);
	}
	if (worker_threaded(w.index))
		threads_run(&w);
	else
		loop_run(&w);
	while (worker_reap(&w, true))
		;
	if (w.listener >= 0) {
		char name[24];
		FILE *list;

		snprintf(name, sizeof(name), "open-%d", w.index);
		list = fopen(name, "we");
		board->workers[w.index].fds_after = open_fds(list) - 1;
		if (list)
			fclose(list);
		board->workers[w.index].maps_after = count_lines("/proc/self/maps", "memfd:ringway (");
	}
	return 0;
}
