/* SPDX-License-Identifier: MIT */
/*
 * Threads that do not return from a call on a connection: a handler jumps out of it, or they are cancelled there. Afterwards the
 * connection serves others, and no descriptor, mask or lock is left behind.
 */
#include "probe.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/uio.h>

static int a, b, set;
static sigjmp_buf jump;
static char buf[65536];

/* Each sleeps: nothing comes to b, and a is full where it sends. */
static void sleep_in_recv(void) { recv(b, buf, 100, 0); }
static void sleep_in_read(void) { read(b, buf, 100); }
static void sleep_in_recvmsg(void)
{
	struct iovec iov = { buf, 100 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	recvmsg(b, &m, MSG_WAITALL);
}
static void sleep_in_send(void) { while (send(a, buf, sizeof(buf), 0) > 0); }
static void sleep_in_writev(void)
{
	struct iovec iov[2] = { { buf, 100 }, { buf, sizeof(buf) } };

	while (writev(a, iov, 2) > 0)
		;
}
static void sleep_in_poll(void) { poll(&(struct pollfd){ .fd = b, .events = POLLIN }, 1, -1); }
static void sleep_in_select(void)
{
	fd_set rd;

	FD_ZERO(&rd);
	FD_SET(b, &rd);
	select(b + 1, &rd, NULL, NULL, NULL);
}
static void sleep_in_epoll_wait(void) { epoll_wait(set, &(struct epoll_event){ 0 }, 1, -1); }
static void sleep_in_splice(void)
{
	static int ends[2];

	if (!ends[1])
		MUST(pipe(ends) == 0);
	splice(b, NULL, ends[1], NULL, 100, 0);
}

static const struct {
	const char *name;
	void (*call)(void);
	int fills;
} calls[] = {
	{ "recv", sleep_in_recv, 0 }, { "read", sleep_in_read, 0 }, { "recvmsg", sleep_in_recvmsg, 0 },
	{ "poll", sleep_in_poll, 0 }, { "select", sleep_in_select, 0 }, { "epoll_wait", sleep_in_epoll_wait, 0 },
	{ "splice", sleep_in_splice, 0 }, { "send", sleep_in_send, 1 }, { "writev", sleep_in_writev, 1 },
};
enum { NR_CALLS = sizeof(calls) / sizeof(calls[0]) };

static int nr_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int nr = 0;

	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

static int nr_signal_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int nr = 0;

	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		char to[64] = "";

		if (readlinkat(dirfd(dir), entry->d_name, to, sizeof(to) - 1) > 0)
			nr += strstr(to, "signalfd") != NULL;
	}
	closedir(dir);
	return nr;
}

static void start(void)
{
	struct epoll_event in = { .events = EPOLLIN };

	a = tcp_pair(&b);
	set = epoll_create1(0);
	MUST(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, b, &in) == 0);
	ping_pong(a, b, 40);
	MUST(epoll_wait(set, &in, 1, 0) == 0);
}

static void empty(int fd)
{
	while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
}

/* What `from` has sent may still be on its way when its thread is gone. */
static void empty_of(int from, int fd)
{
	int on_the_way;

	do {
		MUST(ioctl(from, SIOCOUTQ, &on_the_way) == 0);
		empty(fd);
	} while (on_the_way);
}

static void end(void)
{
	MUST(close(a) == 0 && close(b) == 0 && close(set) == 0);
}

static void come_back(int sig) {}

static void jump_away(int sig)
{
	siglongjmp(jump, 1);
}

static void jump_away_as_we_are(int sig)
{
	longjmp(jump, 1);
}

static void timer(int usec)
{
	struct itimerval every = { .it_interval.tv_usec = usec, .it_value.tv_usec = usec };

	MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
}

/* With handlers of both kinds, so that a sleep has to tell them apart. */
static void catch(void (*handler)(int), int flags)
{
	struct sigaction act = { .sa_handler = come_back, .sa_flags = SA_RESTART };

	MUST(sigaction(SIGUSR1, &act, NULL) == 0);
	act.sa_handler = handler;
	act.sa_flags = flags;
	MUST(sigaction(SIGALRM, &act, NULL) == 0);
}

static void nothing_blocked(void)
{
	sigset_t now, none;

	sigemptyset(&none);
	MUST(sigprocmask(SIG_SETMASK, NULL, &now) == 0 && memcmp(&now, &none, 8) == 0);
}

static void jump_out_of_sleeps(void)
{
	for (volatile int i = 0; i < NR_CALLS; i++) {
		volatile int before;

		start();
		empty(b);
		for (volatile int round = 0; round < 12; round++) {
			int by_mask = round & 1;

			catch(by_mask ? jump_away : jump_away_as_we_are, by_mask ? 0 : SA_NODEFER);
			if (sigsetjmp(jump, by_mask) == 0) {
				timer(3000);
				for (;;)
					calls[i].call();
			}
			timer(0);
			nothing_blocked();
			if (round == 0)
				before = nr_fds();
		}
		SAY("%s: descriptors left %d\n", calls[i].name, nr_fds() - before);
		empty(b);
		ping_pong(a, b, 20);
		end();
	}
}

/* The signal comes at any moment of a busy exchange. */
static void jump_out_of_copies(void)
{
	volatile int jumps = 0;
	pid_t pid;

	start();
	catch(jump_away, 0);
	/* From a harmless place at first: what a call has in hand is kept safe from jumps once there are any. */
	if (sigsetjmp(jump, 1) == 0)
		raise(SIGALRM);
	pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		/* Takes and sends back whatever comes, until all ends are closed. */
		alarm(60);
		signal(SIGALRM, SIG_DFL);
		close(a);
		for (ssize_t n; (n = read(b, buf, 8192)) > 0;)
			for (ssize_t done = 0, part; done < n; done += part) {
				part = send(b, buf + done, (size_t)(n - done), MSG_NOSIGNAL);
				if (part <= 0)
					_exit(0);
			}
		_exit(0);
	}
	close(b);
	sigsetjmp(jump, 1);
	while (jumps++ < 400) {
		timer(jumps % 7 ? 300 + 100 * (jumps % 5) : 1000);
		for (;;) {
			MUST(send(a, buf, 4000, 0) == 4000);
			MUST(recv(a, buf, 4000, 0) > 0);
			empty(a);
		}
	}
	timer(0);
	catch(SIG_IGN, 0);
	MUST(send(a, buf, 1, 0) == 1);
	MUST(close(a) == 0 && close(set) == 0);
	SAY("jumped out of copies, child %d\n", wait_for(pid));
	SAY("signal descriptors left %d\n", nr_signal_fds());
}

static _Atomic int cleaned;

static void clean(void *arg)
{
	atomic_fetch_add(&cleaned, 1);
}

static void *to_be_cancelled(void *call)
{
	pthread_cleanup_push(clean, NULL);
	for (;;)
		((void (*)(void))call)();
	pthread_cleanup_pop(0);
	return NULL;
}

static void never_sleeps(void)
{
	recv(b, buf, 10, MSG_DONTWAIT);
}

static void never_sleeps_sending(void)
{
	send(a, buf, 1, MSG_DONTWAIT);
	empty(b);
}

static void polls_only(void)
{
	poll(&(struct pollfd){ .fd = a, .events = POLLOUT }, 1, -1);
}

static void waits_in_vain(void)
{
	epoll_wait(set, &(struct epoll_event){ 0 }, 1, 0);
}

static int is_cancelled(void (*call)(void))
{
	pthread_t thread;
	void *result;

	MUST(pthread_create(&thread, NULL, to_be_cancelled, (void *)call) == 0);
	for (int i = 0; i < 200; i++)
		sched_yield();
	MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	return result == PTHREAD_CANCELED;
}

static void cancel(void)
{
	static void (*const busy[])(void) = { never_sleeps, never_sleeps_sending, polls_only, waits_in_vain };

	alarm(60);
	for (int i = 0; i < NR_CALLS; i++) {
		int before = 0;

		start();
		empty(b);
		for (int round = 0; round < 6; round++) {
			MUST(is_cancelled(calls[i].call));
			if (round == 0)
				before = nr_fds();
		}
		SAY("%s: cancelled, descriptors left %d\n", calls[i].name, nr_fds() - before);
		empty_of(a, b);
		ping_pong(a, b, 20);
		end();
	}
	start();
	for (int i = 0; i < 4; i++)
		MUST(is_cancelled(busy[i]));
	empty_of(a, b);
	ping_pong(a, b, 20);
	end();
	SAY("cleaned up %d\n", cleaned);
}

int main(int argc, char **argv)
{
	if (strcmp(argv[1], "jump") == 0)
		jump_out_of_sleeps();
	else if (strcmp(argv[1], "copies") == 0)
		jump_out_of_copies();
	else
		cancel();
	return 0;
}
