/* SPDX-License-Identifier: MIT */
/* Calls that sleep while their connection is closed, and calls that never come back from their sleep. */
#include "tests/unit/conn_bench.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ringbuf/barrier.h"
#include "shim/fdtab.h"
#include "shim/own_fd.h"

static struct bench b;
static sigjmp_buf out_of_it;
static pthread_t main_thread;

static void start(void)
{
	b = bench_open();
	bench_link(&b);
	bench_switch(&b);
	conn_set_nonblock(b.b, false);
}

static void until_somebody_sleeps(struct conn *c)
{
	while (!load_relaxed(&c->link.rx.bells.nr_threads))
		sched_yield();
}

static void *receive(void *arg)
{
	ssize_t *got = arg;
	char byte;

	*got = conn_recv(b.b, b.b_fd, &byte, 1, 0);
	return NULL;
}

static void assert_ended_for_the_peer(void)
{
	char byte;

	assert_int_equal(conn_recv(b.a, b.a_fd, &byte, 1, 0), 0);
}

static void a_sleeper_goes_on_after_a_close_and_ends_it(void **state)
{
	pthread_t thread;
	ssize_t got = -1;

	(void)state;
	start();
	assert_int_equal(pthread_create(&thread, NULL, receive, &got), 0);
	until_somebody_sleeps(b.b);
	bench_close_b(&b);
	assert_nothing(b.a, b.a_fd);
	assert_sends(b.a, b.a_fd, "x");
	pthread_join(thread, NULL);
	assert_int_equal(got, 1);
	assert_ended_for_the_peer();
	bench_close(&b);
}

static void one_that_was_cancelled_keeps_nothing_open(void **state)
{
	pthread_t thread;
	ssize_t got = -1;

	(void)state;
	start();
	assert_int_equal(pthread_create(&thread, NULL, receive, &got), 0);
	until_somebody_sleeps(b.b);
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	assert_int_equal(got, -1);
	bench_close_b(&b);
	assert_ended_for_the_peer();
	bench_close(&b);
}

static void one_that_is_cancelled_after_the_close_ends_it(void **state)
{
	pthread_t thread;
	ssize_t got = -1;

	(void)state;
	start();
	assert_int_equal(pthread_create(&thread, NULL, receive, &got), 0);
	until_somebody_sleeps(b.b);
	bench_close_b(&b);
	assert_nothing(b.a, b.a_fd);
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	assert_ended_for_the_peer();
	bench_close(&b);
}

static void jump(int sig)
{
	(void)sig;
	siglongjmp(out_of_it, 1);
}

static void *interrupt(void *arg)
{
	(void)arg;
	until_somebody_sleeps(b.b);
	pthread_kill(main_thread, SIGUSR1);
	return NULL;
}

static void one_that_was_jumped_out_of_keeps_nothing_open(void **state)
{
	struct sigaction action = { .sa_handler = jump };
	pthread_t thread;
	char byte;

	(void)state;
	start();
	main_thread = pthread_self();
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	assert_int_equal(pthread_create(&thread, NULL, interrupt, NULL), 0);
	if (sigsetjmp(out_of_it, 1) == 0) {
		conn_recv(b.b, b.b_fd, &byte, 1, 0);
		fail();
	}
	pthread_join(thread, NULL);
	bench_close_b(&b);
	assert_ended_for_the_peer();
	bench_close(&b);
}

/* No file of tmpfs can be read without waiting, so its bytes go by way of a buffer: not by a page of it at a time. */
static void a_file_in_memory_is_sent_in_large_pieces(void **state)
{
	static char out[48000], in[sizeof(out)];
	int file = memfd_create("file", MFD_CLOEXEC);
	uint64_t calls;
	off_t at = 0;

	(void)state;
	start();
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (char)(i * 31 + i / 251);
	assert_int_equal(write(file, out, sizeof(out)), sizeof(out));
	calls = load_relaxed(&b.a->tx.calls);
	assert_int_equal(conn_sendfile(b.a, b.a_fd, file, &at, sizeof(out)), sizeof(out));
	assert_int_equal(at, sizeof(out));
	assert_true(load_relaxed(&b.a->tx.calls) - calls <= 2);
	for (size_t got = 0; got < sizeof(in);) {
		ssize_t n = conn_recv(b.b, b.b_fd, in + got, sizeof(in) - got, 0);

		assert_true(n > 0);
		got += (size_t)n;
	}
	assert_memory_equal(in, out, sizeof(out));
	close(file);
	bench_close(&b);
}

static void overflow_and_drain(void)
{
	static char much[40000];
	size_t sent = 0;

	while (sent < sizeof(much)) {
		ssize_t n = conn_send(b.a, b.a_fd, much + sent, sizeof(much) - sent, MSG_DONTWAIT);

		assert_true(n > 0);
		sent += (size_t)n;
	}
	for (size_t got = 0; got < sizeof(much);) {
		ssize_t n = conn_recv(b.b, b.b_fd, much, sizeof(much), MSG_DONTWAIT);

		assert_true(n > 0);
		got += (size_t)n;
	}
}

static size_t pages_of_overflow(void)
{
	const struct ring_area *area = &b.b->link.rx.area[RING_OVERFLOW];
	unsigned char there[64];
	size_t nr = 0, pages = (area->mask + 1) / 4096;

	assert_true(pages <= sizeof(there));
	assert_int_equal(mincore(area->data, area->mask + 1, there), 0);
	for (size_t i = 0; i < pages; i++)
		nr += there[i] & 1;
	return nr;
}

/* The second overflow within so short a time keeps its memory at first. Nobody uses the connection any more, but for a sleeper. */
static void memory_goes_back_while_its_owner_sleeps(void **state)
{
	char byte;

	(void)state;
	if (barrier_init() < 0)
		skip();
	start();
	overflow_and_drain();
	assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, MSG_DONTWAIT), -EAGAIN);
	overflow_and_drain();
	store_relaxed(&b.b->rcv_timeout_ns, 4 * RING_TRIM_EVERY_NS);
	assert_int_equal(conn_recv(b.b, b.b_fd, &byte, 1, 0), -EAGAIN);
	barrier_disable();
	assert_int_equal(pages_of_overflow(), 0);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sleeper_goes_on_after_a_close_and_ends_it),
		cmocka_unit_test(one_that_was_cancelled_keeps_nothing_open),
		cmocka_unit_test(one_that_is_cancelled_after_the_close_ends_it),
		cmocka_unit_test(one_that_was_jumped_out_of_keeps_nothing_open),
		cmocka_unit_test(a_file_in_memory_is_sent_in_large_pieces),
		cmocka_unit_test(memory_goes_back_while_its_owner_sleeps),
	};

	return cmocka_run_group_tests(tests, bench_setup_group, NULL);
}
