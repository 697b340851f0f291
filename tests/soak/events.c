/* SPDX-License-Identifier: MIT */
/* What befalls a process: children, new images, descriptors that travel, late options. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soak.h"

extern char **environ;

/* ---- programs and children that do not care ---- */

static void reap(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
}

static bool on_system(struct worker *w, struct end *e, struct rng *r)
{
	if (system("true"))
		end_failed(e, "system: %d", errno);
	return false;
}

static bool on_spawn(struct worker *w, struct end *e, struct rng *r)
{
	char name[] = "true", *argv[] = { name, NULL };
	pid_t pid;
	int error = posix_spawnp(&pid, "true", NULL, NULL, argv, environ);

	if (error)
		end_failed(e, "posix_spawn: %d", error);
	else
		reap(pid);
	return false;
}

static bool on_vfork(struct worker *w, struct end *e, struct rng *r)
{
	pid_t pid = vfork();

	if (pid == 0) {
		execlp("true", "true", (char *)NULL);
		_exit(127);
	}
	if (pid > 0)
		reap(pid);
	return false;
}

static bool on_fork_ends(struct worker *w, struct end *e, struct rng *r)
{
	bool by_exit = rng_one_in(r, 2) && !worker_threaded(w->index);
	pid_t pid = fork();

	if (pid == 0) {
		if (by_exit)
			exit(0);
		_exit(0);
	}
	if (pid > 0 && (rng_one_in(r, 2) || worker_threaded(w->index)))
		reap(pid);
	return false;
}

/* ---- a child that goes on with the end ---- */

/* Becomes a process with this end alone. */
static void child_only(struct worker *w, struct end *e, pid_t parent)
{
	child_limits(parent);
	for (int i = 0; i < w->nr_ends; i++) {
		struct end *other = w->ends[i];

		if (other == e)
			continue;
		close(other->fd);
		if (other->turn_sock >= 0)
			close(other->turn_sock);
	}
	close(w->listener);
	close(w->inbox);
	close(w->level);
	close(w->edge);
	*w = (struct worker){ .index = w->index, .listener = -1, .inbox = -1, .over = true };
	sets_open(w);
	worker_add(w, e);
}

/* Its own children would end with it. */
static void __attribute__((noreturn)) child_run(struct worker *w)
{
	loop_run(w);
	while (worker_reap(w, true))
		;
	exit(0);
}

static void *leave_table(void *arg)
{
	unshare(CLONE_FILES);
	return NULL;
}

static bool goes_on(struct worker *w, struct end *e, bool unshares)
{
	pid_t parent = getpid(), pid;
	pthread_t thread;

	if (e->turn_sock >= 0)
		return false;
	pid = fork();
	if (pid < 0)
		return false;
	if (pid == 0) {
		child_only(w, e, parent);
		if (unshares && !pthread_create(&thread, NULL, leave_table, NULL))
			pthread_join(thread, NULL);
		child_run(w);
	}
	worker_drop(w, e);
	close(e->fd);
	free(e);
	return true;
}

static bool on_fork_goes_on(struct worker *w, struct end *e, struct rng *r)
{
	return goes_on(w, e, false);
}

static bool on_unshare(struct worker *w, struct end *e, struct rng *r)
{
	return goes_on(w, e, true);
}

/* ---- two relatives that take turns ---- */

enum turn { TURN_YOURS, TURN_ALONE, TURN_OUT };

struct turn_message {
	enum turn turn;
	struct end end;
};

static void turn_send(const struct end *e, enum turn turn)
{
	struct turn_message m = { turn, *e };

	while (send(e->turn_sock, &m, sizeof(m), MSG_NOSIGNAL) < 0 && errno == EINTR)
		;
}

static void turn_over(struct end *e)
{
	close(e->turn_sock);
	e->turn_sock = -1;
	e->turns_left = 0;
}

void turn_end(struct end *e)
{
	if (e->turn_sock < 0)
		return;
	turn_send(e, TURN_OUT);
	turn_over(e);
}

void turn_give(struct worker *w, struct end *e)
{
	worker_drop(w, e);
	e->turn_steps = 0;
	if (e->turns_left-- == 0) {
		if (e->conn % 2) {
			turn_end(e);
			worker_add(w, e);
			return;
		}
		turn_send(e, TURN_ALONE);
		turn_over(e);
		close(e->fd);
		free(e);
		return;
	}
	end_tell(e, "the other's turn");
	turn_send(e, TURN_YOURS);
	e->waiting = true;
	worker_add(w, e);
}

void turn_take(struct worker *w, struct end *e)
{
	struct turn_message m;
	ssize_t n = recv(e->turn_sock, &m, sizeof(m), MSG_DONTWAIT);
	int sock = e->turn_sock;

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	worker_drop(w, e);
	/* A relative that was killed says nothing; this process is about to be, too. */
	if (n != sizeof(m) || m.turn == TURN_OUT) {
		turn_over(e);
		close(e->fd);
		free(e);
		return;
	}
	*e = m.end;
	e->turn_sock = sock;
	e->waiting = false;
	if (m.turn == TURN_ALONE)
		turn_over(e);
	end_tell(e, "own turn");
	worker_add(w, e);
}

static bool on_fork_turns(struct worker *w, struct end *e, struct rng *r)
{
	bool child_first = rng_one_in(r, 2);
	pid_t parent = getpid(), pid;
	int ends[2];

	if (e->turn_sock >= 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return false;
	e->turns_left = (uint32_t)rng_log(r, 12);
	pid = fork();
	if (pid < 0) {
		close(ends[0]);
		close(ends[1]);
		return false;
	}
	if (pid == 0) {
		close(ends[0]);
		e->turn_sock = ends[1];
		e->waiting = !child_first;
		child_only(w, e, parent);
		child_run(w);
	}
	close(ends[1]);
	worker_drop(w, e);
	e->turn_sock = ends[0];
	e->waiting = child_first;
	worker_add(w, e);
	return child_first;
}

/* ---- a new image that goes on with all ends ---- */

struct image {
	struct worker worker;
	struct end ends[MAX_ENDS];
};

static bool on_exec(struct worker *w, struct end *e, struct rng *r)
{
	char index[12], file[12];
	int memory = memfd_create("soak-image", 0);
	struct image *image = mmap(NULL, sizeof(*image), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);

	/* Until the new image has its handler. */
	block_signals(true);
	if (memory < 0 || image == MAP_FAILED || ftruncate(memory, sizeof(*image)))
		abort();
	if (rng_one_in(r, 4))
		execl("missing", "missing", (char *)NULL);
	image->worker = *w;
	for (int i = 0; i < w->nr_ends; i++) {
		end_row(w->ends[i])->went++;
		image->ends[i] = *w->ends[i];
		fcntl(w->ends[i]->fd, F_SETFD, 0);
		if (w->ends[i]->turn_sock >= 0)
			fcntl(w->ends[i]->turn_sock, F_SETFD, 0);
	}
	if (w->listener >= 0) {
		fcntl(w->listener, F_SETFD, 0);
		fcntl(w->inbox, F_SETFD, 0);
	}
	snprintf(index, sizeof(index), "%d", w->index);
	snprintf(file, sizeof(file), "%d", memory);
	execl("/proc/self/exe", "soak", index, file, (char *)NULL);
	abort();
}

void events_resume(struct worker *w, int fd)
{
	struct image *image = mmap(NULL, sizeof(*image), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);

	if (image == MAP_FAILED)
		abort();
	close(fd);
	*w = image->worker;
	w->nr_ends = 0;
	sets_open(w);
	if (w->listener >= 0) {
		fcntl(w->listener, F_SETFD, FD_CLOEXEC);
		fcntl(w->inbox, F_SETFD, FD_CLOEXEC);
	}
	for (int i = 0; i < image->worker.nr_ends; i++) {
		struct end *e = malloc(sizeof(*e));

		*e = image->ends[i];
		if (e->turn_sock >= 0)
			fcntl(e->turn_sock, F_SETFD, FD_CLOEXEC);
		if (fcntl(e->fd, F_SETFD, FD_CLOEXEC)) {
			if (!e->waiting)
				atomic_store(&end_row(e)->state, ROW_KEPT);
			turn_end(e);
			free(e);
			continue;
		}
		if (!e->waiting)
			end_tell(e, "executed");
		worker_add(w, e);
	}
	munmap(image, sizeof(*image));
}

/* ---- a descriptor that travels to another worker ---- */

static bool on_pass(struct worker *w, struct end *e, struct rng *r)
{
	int nr = (int)(board->nr_workers - board->nr_threaded), to = (int)rng_below(r, (uint64_t)nr);
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct sockaddr_un at;
	struct iovec part = { e, sizeof(*e) };
	struct msghdr m = { .msg_name = &at, .msg_namelen = sizeof(at), .msg_iov = &part, .msg_iovlen = 1,
			    .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	if (w->listener < 0 || to == w->index || e->turn_sock >= 0)
		return false;
	inbox_address(&at, to);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &e->fd, sizeof(int));
	worker_drop(w, e);
	end_row(e)->went++;
	end_row(e)->worker = to;
	end_tell(e, "is passed");
	if (sendmsg(w->inbox, &m, MSG_DONTWAIT) < 0) {
		end_row(e)->worker = w->index;
		worker_add(w, e);
		return false;
	}
	close(e->fd);
	free(e);
	return true;
}

int inbox_receive(int inbox, struct end *e)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = { e, sizeof(*e) };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes) };
	ssize_t n = recvmsg(inbox, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n == sizeof(*e) ? CMSG_FIRSTHDR(&m) : NULL;
	int fd;

	if (n == 1 && *(char *)e == 'o')
		return INBOX_OVER;
	if (!c)
		return INBOX_NOTHING;
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/* ---- other things ---- */

static bool on_renumber(struct worker *w, struct end *e, struct rng *r)
{
	int fd;

	if (e->turn_sock >= 0)
		return false;
	fd = fcntl(e->fd, F_DUPFD_CLOEXEC, 40 + (int)rng_below(r, 60));
	if (fd >= 0 && rng_one_in(r, 2)) {
		int other = dup3(e->fd, fd, O_CLOEXEC);

		if (other != fd)
			end_failed(e, "dup3 over itself: %d", errno);
	}
	if (fd < 0)
		return false;
	worker_drop(w, e);
	close(e->fd);
	e->fd = fd;
	worker_add(w, e);
	return false;
}

static bool on_option(struct worker *w, struct end *e, struct rng *r)
{
	static const struct {
		int level, name, value;
	} options[] = {
		{ SOL_SOCKET, SO_ZEROCOPY, 1 }, { SOL_SOCKET, SO_SNDBUF, 8192 }, { SOL_SOCKET, SO_RCVBUF, 8192 },
		{ SOL_SOCKET, SO_KEEPALIVE, 1 }, { SOL_SOCKET, SO_TIMESTAMP, 1 }, { IPPROTO_TCP, TCP_NODELAY, 1 },
		{ IPPROTO_TCP, TCP_NODELAY, 0 }, { IPPROTO_TCP, TCP_QUICKACK, 1 }, { SOL_SOCKET, SO_PEEK_OFF, -1 },
		{ SOL_SOCKET, SO_BUSY_POLL, 10 }, { IPPROTO_TCP, TCP_INQ, 1 }, { IPPROTO_TCP, TCP_USER_TIMEOUT, 60000 },
	};
	uint64_t i = rng_below(r, sizeof(options) / sizeof(options[0]) + 1);

	if (i == sizeof(options) / sizeof(options[0]))
		setsockopt(e->fd, IPPROTO_TCP, TCP_ULP, "tls", 3);
	else
		setsockopt(e->fd, options[i].level, options[i].name, &options[i].value, sizeof(options[i].value));
	return false;
}

bool event_due(struct worker *w, struct end *e)
{
	static const struct {
		const char *name;
		bool (*happens)(struct worker *w, struct end *e, struct rng *r);
	} table[] = {
#define EVENT(name, weight, threads) { #name, on_##name },
#include "events.def"
#undef EVENT
	};
	const struct plan *p = &e->plan;
	enum event kind;
	struct rng r;

	if (e->next_event == p->nr_events[e->side] || p->events[e->side][e->next_event].step > e->tx_step + e->rx_step)
		return false;
	r = (struct rng){ mix(stream_key(e->conn, e->side), 1u << 30 | (uint32_t)e->next_event) };
	kind = p->events[e->side][e->next_event++].kind;
	atomic_fetch_add(&board->thrown[kind], 1);
	end_tell(e, table[kind].name);
	return table[kind].happens(w, e, &r);
}
