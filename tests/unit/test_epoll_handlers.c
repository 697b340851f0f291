/* SPDX-License-Identifier: MIT */
/*
 * Signal handlers that come in the middle of an epoll call, and what becomes of connections meanwhile. See pair.h.
 *
 * When they come is no accident here: the call is given an event that cannot be read, so the handler is SIGSEGV's, and comes when the call
 * reads it. The kernel by itself would see nobody but itself fault, so there it comes just before the call.
 */
#include "epoll_fixture.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define STUCK_S 20	/* what is not over by then never will be */
#define PAGE 4096

static __thread struct inside {
	struct epoll_event *event;
	void (*act)(void *arg);
	void *arg;
	int times;
} inside;

static void on_fault(int sig)
{
	int saved = errno;

	if (!inside.act || inside.times) {
		signal(SIGSEGV, SIG_DFL);
		return;
	}
	mprotect(inside.event, PAGE, PROT_READ | PROT_WRITE);
	inside.event->events = EPOLLIN;
	inside.event->data.u64 = (uint64_t)inside.times++;
	inside.act(inside.arg);
	errno = saved;
}

/* Memory for a call, inside of which `act` is done by a handler. */
static struct epoll_event *memory_with(void (*act)(void *arg), void *arg)
{
	struct sigaction catch = { .sa_handler = on_fault };
	struct epoll_event *event = mmap(NULL, PAGE, expects_ring() ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(event != MAP_FAILED);
	assert_int_equal(sigaction(SIGSEGV, &catch, NULL), 0);
	inside = (struct inside){ event, act, arg, 0 };
	if (!expects_ring())
		on_fault(0);
	return event;
}

/* Registers fd, as 0. */
static void add_with(int ep, int fd, void (*act)(void *arg), void *arg)
{
	struct epoll_event *event = memory_with(act, arg);

	assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, fd, event), 0);
	assert_int_equal(inside.times, 1);
	munmap(event, PAGE);
}

static void expect_each_way(const struct pair *p, int ep_a, uint64_t data_a, int ep_b, uint64_t data_b)
{
	for (int i = 0; i < 3; i++) {
		put(p->a, "there");
		expect_one(ep_b, EPOLLIN, data_b);
		assert_int_equal(drain(p->b), 5);
		expect_none(ep_b);
		put(p->b, "back");
		expect_one(ep_a, EPOLLIN, data_a);
		assert_int_equal(drain(p->a), 4);
		expect_none(ep_a);
	}
}

/* Enough for the two ends to find each other. */
static void talk(const struct pair *p)
{
	for (int i = 0; i < 3; i++) {
		pass(p->a, p->b, 1);
		pass(p->b, p->a, 1);
	}
}

/* ---- another thread ------------------------------------------------------------------------------------------------ */

struct other {
	struct pair p;
	pthread_t thread;
	bool stuck;
};

static void *talk_there(void *arg)
{
	struct other *o = arg;

	talk(&o->p);
	return NULL;
}

static void let_other_talk(void *arg)
{
	struct other *o = arg;
	struct timespec end;

	if (pthread_create(&o->thread, NULL, talk_there, o))
		abort();
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += STUCK_S;
	o->stuck = pthread_timedjoin_np(o->thread, NULL, &end) != 0;
}

/* Its registrations are in the set that this thread has locked, and it holds the connection while it looks for them. */
static void another_thread_finds_the_peer(void **state)
{
	struct pair q = pair_warmed();
	struct other o = { .p = pair_open() };
	int ep = ep_new();

	add(ep, o.p.a, EPOLLIN, 1);
	add(ep, o.p.b, EPOLLIN, 2);
	add_with(ep, q.b, let_other_talk, &o);
	if (o.stuck)
		pthread_join(o.thread, NULL);
	assert_false(o.stuck);
	pair_warm(&o.p);
	set_nonblock(o.p.a);
	set_nonblock(o.p.b);
	expect_each_way(&o.p, ep, 1, ep, 2);
	put(q.a, "x");
	expect_one(ep, EPOLLIN, 0);
	pair_close(&o.p);
	pair_close(&q);
	close(ep);
}

/* ---- the handler itself -------------------------------------------------------------------------------------------- */

static void talk_here(void *arg)
{
	talk(arg);
}

static void handler_finds_the_peer(void **state)
{
	struct pair p = pair_open(), q = pair_warmed();
	int ep = ep_new();

	add(ep, p.a, EPOLLIN, 1);
	add(ep, p.b, EPOLLIN, 2);
	add_with(ep, q.b, talk_here, &p);
	pair_warm(&p);
	set_nonblock(p.a);
	set_nonblock(p.b);
	expect_each_way(&p, ep, 1, ep, 2);
	pair_close(&p);
	pair_close(&q);
	close(ep);
}

struct returning {
	struct pair p;
	int ep, told;
};

static void look_beside_a_return(void *arg)
{
	struct returning *r = arg;
	struct epoll_event ev;
	int from = 0;

	/* What a ring cannot carry. */
	if (setsockopt(r->p.a, SOL_SOCKET, SO_PEEK_OFF, &from, sizeof(from)))
		abort();
	put(r->p.a, "x");
	r->told = epoll_wait(r->ep, &ev, 1, 0);
}

/* The peer's lane has come back to TCP, and bytes by that, while a receive had this one: whose they are shows behind it, and the kernel reports them but once. */
static void bytes_behind_a_ring_that_was_left_make_their_edge(void **state)
{
	struct returning r = { .p = pair_warmed(), .ep = ep_new() };
	struct epoll_event *memory;

	add(r.ep, r.p.b, EPOLLIN | EPOLLET, 1);
	expect_none(r.ep);
	put(r.p.a, "ab");
	expect_one(r.ep, EPOLLIN, 1);
	memory = memory_with(look_beside_a_return, &r);
	assert_int_equal(recv(r.p.b, memory, 2, 0), 2);
	assert_memory_equal(memory, "ab", 2);
	assert_int_equal(inside.times, 1);
	if (!r.told)
		expect_one(r.ep, EPOLLIN, 1);
	assert_int_equal(drain(r.p.b), 1);
	expect_none(r.ep);
	munmap(memory, PAGE);
	pair_close(&r.p);
	close(r.ep);
}

/* ---- a fork -------------------------------------------------------------------------------------------------------- */

struct forker {
	int number;	/* to be closed by the handler */
	pthread_t thread;
	_Atomic int tid;
	int status;
};

static void *fork_there(void *arg)
{
	struct forker *f = arg;
	pid_t child;

	f->tid = (int)syscall(SYS_gettid);
	child = fork();
	if (child == 0)
		_exit(0);
	if (child < 0 || waitpid(child, &f->status, 0) != child)
		f->status = -1;
	return NULL;
}

/* Has the kernel put that thread to sleep, or is it over? */
static bool is_asleep(int tid)
{
	char path[64], text[512];
	const char *state;
	ssize_t n;
	int stat;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	stat = open(path, O_RDONLY | O_CLOEXEC);
	if (stat < 0)
		return true;
	n = read(stat, text, sizeof(text) - 1);
	close(stat);
	if (n <= 0)
		return true;
	text[n] = 0;
	state = strrchr(text, ')');
	return state && state[2] == 'S';
}

static void close_while_another_forks(void *arg)
{
	struct forker *f = arg;

	if (pthread_create(&f->thread, NULL, fork_there, f))
		abort();
	while (!f->tid || !is_asleep(f->tid))
		sched_yield();
	close(f->number);
}

/* The fork wants the set that this thread has locked, and has locked the one in which the number is registered. */
static void handler_closes_during_a_fork(void **state)
{
	struct pair p = pair_warmed(), q = pair_warmed();
	struct forker f = { .number = p.b };
	int ep_of_closed = ep_new(), ep = ep_new();

	add(ep_of_closed, p.b, EPOLLIN, 1);
	add_with(ep, q.b, close_while_another_forks, &f);
	pthread_join(f.thread, NULL);
	assert_int_equal(f.status, 0);
	assert_int_equal(poll(&(struct pollfd){ .fd = p.a, .events = POLLIN }, 1, SOON_MS), 1);
	assert_int_equal(recv(p.a, &(char){ 0 }, 1, 0), 0);
	expect_none(ep_of_closed);
	put(q.a, "x");
	expect_one(ep, EPOLLIN, 0);
	close(p.a);
	pair_close(&q);
	close(ep_of_closed);
	close(ep);
}

/* ---- what was begun and comes to nothing --------------------------------------------------------------------------- */

struct keeper {
	int ep, fd;
	sem_t in, out;
};

static void keep(void *arg)
{
	struct keeper *k = arg;

	sem_post(&k->in);
	while (sem_wait(&k->out))
		;
}

static void *keep_there(void *arg)
{
	struct keeper *k = arg;

	add_with(k->ep, k->fd, keep, k);
	return NULL;
}

/* Is the number in the program's own set, as far as the kernel knows? */
static bool in_kernels_set(int ep, int fd)
{
	char path[64], text[4096], line[32];
	int info;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", ep);
	snprintf(line, sizeof(line), "tfd: %8d ", fd);
	info = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(info >= 0);
	n = read(info, text, sizeof(text) - 1);
	assert_true(n > 0);
	text[n] = 0;
	close(info);
	return strstr(text, line);
}

/* The acceptor has prepared its end, and is told that the other cannot be had, while its own set is not to be had, either. */
static void registration_goes_back_later(void **state)
{
	struct pair p = pair_open(), q = pair_warmed(), r = pair_warmed();
	struct keeper k = { .ep = ep_new(), .fd = q.b };
	pthread_t thread;
	int ep = ep_new();

	add(k.ep, p.a, EPOLLIN, 1);
	add(ep, p.b, EPOLLIN, 2);
	sem_init(&k.in, 0, 0);
	sem_init(&k.out, 0, 0);
	assert_int_equal(pthread_create(&thread, NULL, keep_there, &k), 0);
	while (sem_wait(&k.in))
		;
	for (int i = 0; i < 3 && in_kernels_set(ep, p.b); i++) {
		pass(p.a, p.b, 1);
		if (in_kernels_set(ep, p.b))
			pass(p.b, p.a, 1);
	}
	assert_true(in_kernels_set(ep, p.b) != expects_ring());
	add_with(ep, r.b, talk_here, &p);
	assert_true(in_kernels_set(ep, p.b) != expects_ring());
	expect_none(ep);
	assert_true(in_kernels_set(ep, p.b));
	sem_post(&k.out);
	pthread_join(thread, NULL);
	pair_warm(&p);
	set_nonblock(p.a);
	set_nonblock(p.b);
	expect_each_way(&p, k.ep, 1, ep, 2);
	pair_close(&p);
	pair_close(&q);
	pair_close(&r);
	sem_destroy(&k.in);
	sem_destroy(&k.out);
	close(k.ep);
	close(ep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_thread_finds_the_peer),
		cmocka_unit_test(handler_finds_the_peer),
		cmocka_unit_test(bytes_behind_a_ring_that_was_left_make_their_edge),
		cmocka_unit_test(handler_closes_during_a_fork),
		cmocka_unit_test(registration_goes_back_later),
	};

	alarm(50);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
