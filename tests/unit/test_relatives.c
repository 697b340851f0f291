/* SPDX-License-Identifier: MIT */
/*
 * One of several processes that share a connection is killed after it has taken what would have woken another. See pair.h.
 *
 * The one that is to be woken, the sleeper, is kept from running in its sleep; then what it waits for happens, and the thief silences the
 * bells, as a call that is about to look does. The sleeper goes on and finds nothing that would end its sleep; the thief is killed.
 * A stop keeps it from running, but ends an epoll_wait: there it is a bad priority on one processor for all, which may fail to, and
 * then nothing is tested.
 */
#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/wait.h>

#include "pair.h"
#include "ringbuf/doorbell.h"
#include "ringbuf/sys.h"

#define HUNG_SECONDS 40

struct relative {
	pid_t pid;
	int tell, hear;	/* pipes to it and from it */
};

static void say(int fd)
{
	assert_int_equal(write(fd, "x", 1), 1);
}

static void hear(int fd)
{
	char byte;

	assert_int_equal(read(fd, &byte, 1), 1);
}

/* Leaves the child with pid 0; it ends with us. */
static struct relative relative_born(void)
{
	int to[2], from[2];
	struct relative r;

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	r.pid = fork();
	assert_true(r.pid >= 0);
	if (r.pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	r.hear = r.pid ? from[0] : to[0];
	r.tell = r.pid ? to[1] : from[1];
	close(r.pid ? from[1] : to[1]);
	close(r.pid ? to[0] : from[0]);
	return r;
}

static void relative_gone(struct relative *r)
{
	close(r->hear);
	close(r->tell);
}

static char state_of(pid_t pid)
{
	char path[64], text[512], *at;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	assert_true(n > 0);
	text[n] = 0;
	at = strrchr(text, ')');
	assert_non_null(at);
	return at[2];
}

/* Asleep at ten looks in a row: not only between two steps of its call. */
static void until_asleep(pid_t pid)
{
	for (int looks = 0; looks < 10; looks++) {
		char state = state_of(pid);

		assert_int_not_equal(state, 'Z');
		if (state != 'S')
			looks = -1;
		poll(NULL, 0, 1);
	}
}

/* Bells are the only netlink sockets here; the shim shows them to nobody who does not go round it. */
static void silence_bells(void)
{
	struct dirent *e;
	DIR *dir = opendir("/proc/self/fd");

	assert_non_null(dir);
	while ((e = readdir(dir)) != NULL) {
		int fd = atoi(e->d_name), domain = 0;
		socklen_t len = sizeof(domain);

		if (!sys_failed(sys_call5(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len)) && domain == AF_NETLINK)
			bell_drain(fd);
	}
	closedir(dir);
}

static void be_thief(const struct relative *r)
{
	hear(r->hear);
	silence_bells();
	say(r->tell);
	for (;;)
		pause();
}

enum hindrance { STOPPED, OUTRUN };

static void sleep_idly(void)
{
	struct sched_param none = { 0 };

	(void)sched_setscheduler(0, SCHED_IDLE, &none);
}

static void one_processor(cpu_set_t *before)
{
	cpu_set_t one;
	int cpu = sched_getcpu();

	assert_true(cpu >= 0);
	assert_int_equal(sched_getaffinity(0, sizeof(*before), before), 0);
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
}

/* `sleep` returns 0 when it was woken for what it waited for; `happens` is that. */
static void wakes_after_a_theft(int (*sleep)(const struct pair *p), void (*happens)(const struct pair *p), enum hindrance how)
{
	struct pair p = pair_open();
	struct relative sleeper, thief;
	cpu_set_t processors;
	int status;

	pair_warm(&p);
	alarm(HUNG_SECONDS);
	one_processor(&processors);
	sleeper = relative_born();
	if (sleeper.pid == 0) {
		if (how == OUTRUN)
			sleep_idly();
		say(sleeper.tell);
		_exit(sleep(&p));
	}
	thief = relative_born();
	if (thief.pid == 0)
		be_thief(&thief);
	hear(sleeper.hear);
	until_asleep(sleeper.pid);
	if (how == STOPPED) {
		assert_int_equal(kill(sleeper.pid, SIGSTOP), 0);
		assert_int_equal(waitpid(sleeper.pid, &status, WUNTRACED), sleeper.pid);
		assert_true(WIFSTOPPED(status));
	}
	happens(&p);
	say(thief.tell);
	hear(thief.hear);
	if (how == STOPPED) {
		assert_int_equal(kill(sleeper.pid, SIGCONT), 0);
		if (expects_ring())
			until_asleep(sleeper.pid);
	}
	assert_int_equal(kill(thief.pid, SIGKILL), 0);
	assert_int_equal(waitpid(sleeper.pid, &status, 0), sleeper.pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(waitpid(thief.pid, &status, 0), thief.pid);
	alarm(0);
	assert_int_equal(sched_setaffinity(0, sizeof(processors), &processors), 0);
	relative_gone(&sleeper);
	relative_gone(&thief);
	pair_close(&p);
}

static void a_byte_comes(const struct pair *p)
{
	put(p->a, "x");
}

static int in_recv(const struct pair *p)
{
	char byte;

	return recv(p->b, &byte, 1, 0) != 1;
}

static int in_poll(const struct pair *p)
{
	struct pollfd f = { .fd = p->b, .events = POLLIN };

	return poll(&f, 1, -1) != 1 || in_recv(p);
}

static int in_select(const struct pair *p)
{
	fd_set set;

	FD_ZERO(&set);
	FD_SET(p->b, &set);
	return select(p->b + 1, &set, NULL, NULL, NULL) != 1 || in_recv(p);
}

static int in_epoll(const struct pair *p, uint32_t events)
{
	struct epoll_event ev = { .events = events };
	int ep = epoll_create1(EPOLL_CLOEXEC);

	if (epoll_ctl(ep, EPOLL_CTL_ADD, p->b, &ev) < 0)
		return 1;
	return epoll_wait(ep, &ev, 1, -1) != 1 || ev.events != EPOLLIN || in_recv(p);
}

static int in_epoll_level(const struct pair *p)
{
	return in_epoll(p, EPOLLIN);
}

static int in_epoll_edge(const struct pair *p)
{
	return in_epoll(p, EPOLLIN | EPOLLET);
}

static int in_send(const struct pair *p)
{
	fill(p->b);
	return send(p->b, "x", 1, MSG_NOSIGNAL) != 1;
}

static int in_poll_for_room(const struct pair *p)
{
	struct pollfd f = { .fd = p->b, .events = POLLOUT };

	fill(p->b);
	return poll(&f, 1, -1) != 1;
}

static void all_is_read(const struct pair *p)
{
	assert_true(drain(p->a) > 0);
}

#define THEFT(name, sleep, happens, how) \
	static void name(void **state) \
	{ \
		(void)state; \
		wakes_after_a_theft(sleep, happens, how); \
	}

THEFT(recv_wakes, in_recv, a_byte_comes, STOPPED)
THEFT(poll_wakes, in_poll, a_byte_comes, STOPPED)
THEFT(select_wakes, in_select, a_byte_comes, STOPPED)
THEFT(epoll_wakes, in_epoll_level, a_byte_comes, OUTRUN)
THEFT(edge_triggered_epoll_wakes, in_epoll_edge, a_byte_comes, OUTRUN)
THEFT(send_wakes, in_send, all_is_read, STOPPED)
THEFT(poll_for_room_wakes, in_poll_for_room, all_is_read, STOPPED)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(recv_wakes),
		cmocka_unit_test(poll_wakes),
		cmocka_unit_test(select_wakes),
		cmocka_unit_test(epoll_wakes),
		cmocka_unit_test(edge_triggered_epoll_wakes),
		cmocka_unit_test(send_wakes),
		cmocka_unit_test(poll_for_room_wakes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
