/* SPDX-License-Identifier: MIT */
/* Resets of connections whose rings lie on two hosts, where the device is slower to tell of them than the kernel. */
#include "tests/unit/far_bench.h"

#include <errno.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "ringbuf/verbs_engine.h"
#include "shim/conn_fin.h"
#include "tests/unit/verbs_fixture.h"

/* a's close is to be a reset; what its device is given waits. */
static struct bench open_to_reset(void)
{
	struct linger zero = { .l_onoff = 1 };
	struct bench b = bench_open();

	bench_link_far(&b);
	bench_switch(&b);
	assert_int_equal(setsockopt(b.a_fd, SOL_SOCKET, SO_LINGER, &zero, sizeof(zero)), 0);
	fake.by_hand = true;
	return b;
}

static ssize_t send_one(struct bench *b)
{
	return conn_send(b->b, b->b_fd, "x", 1, MSG_NOSIGNAL);
}

/* Until it says something else than "not yet". */
static ssize_t recv_one(struct bench *b)
{
	ssize_t n = -EAGAIN;
	char byte;

	for (int i = 0; i < 100 && n == -EAGAIN; i++)
		n = conn_recv(b->b, b->b_fd, &byte, 1, 0);
	return n;
}

/* By SO_ERROR, before the device has said anything: neither a send nor a receive tells it again. */
static void one_that_was_asked_for_is_told_once(void **state)
{
	for (int sends = 0; sends < 2; sends++) {
		struct bench b = open_to_reset();
		int err = 0;
		socklen_t len = sizeof(err);

		bench_close_a(&b);
		assert_int_equal(getsockopt(b.b_fd, SOL_SOCKET, SO_ERROR, &err, &len), 0);
		assert_int_equal(err, ECONNRESET);
		conn_error_taken(b.b);
		if (sends)
			assert_int_equal(send_one(&b), -EPIPE);
		assert_int_equal(recv_one(&b), 0);
		assert_int_equal(send_one(&b), -EPIPE);
		fake.by_hand = false;
		bench_close_far(&b);
	}
}

struct ending {
	struct bench *b;
	bool exits;
	_Atomic int over;
};

static void *end_it(void *arg)
{
	struct ending *e = arg;

	if (e->exits)
		conn_exit_flush(e->b->a, e->b->a_fd);
	else
		bench_close_a(e->b);
	store_release(&e->over, 1);
	return NULL;
}

/* What b's send says behind the end of a, whose device goes on when all is said. */
static ssize_t send_behind(bool exits)
{
	struct bench b = open_to_reset();
	struct ending e = { .b = &b, .exits = exits };
	struct conn *a = b.a;
	pthread_t thread;
	ssize_t n;

	assert_int_equal(pthread_create(&thread, NULL, end_it, &e), 0);
	while (!load_relaxed(&a->tx.fin) && !load_acquire(&e.over))
		sched_yield();
	fake.by_hand = false;
	fake_settle();
	assert_int_equal(pthread_join(thread, NULL), 0);
	bench_close_a(&b);
	n = send_one(&b);
	bench_close_far(&b);
	return n;
}

/* One does not outrun what says it by the device: a peer that only sends is told. It waits for a moment only, which may pass here. */
static void one_is_heard_of_by_the_next_send(void **state)
{
	for (int exits = 0; exits < 2; exits++) {
		ssize_t n = 1;

		for (int tries = 0; tries < 50 && n == 1; tries++)
			n = send_behind(exits);
		assert_int_equal(n, -ECONNRESET);
	}
}

/* A kernel that does not disconnect a socket in which a thread waits, as often as told. */
static int refusals;

static void on_disconnect(int sig, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	regs[REG_RAX] = refusals-- > 0 ? -EBUSY : connect((int)regs[REG_RDI], &nobody, sizeof(nobody));
}

static void refuse_to_disconnect(int times)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, sizeof(sa_family_t), 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { .len = sizeof(f) / sizeof(*f), .filter = f };
	struct sigaction act = { .sa_sigaction = on_disconnect, .sa_flags = SA_SIGINFO };

	refusals = times;
	assert_int_equal(sigaction(SIGSYS, &act, NULL), 0);
	assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), 0);
}

/* What the kernel of a peer without memory of ours tells: -EAGAIN for nothing yet. */
static int kernel_reads(int fd)
{
	char byte;
	ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);

	return n < 0 ? -errno : (int)n;
}

/* 0, or the first thing that is not so. */
static int cut_where_refused(int times)
{
	struct bench b = bench_open_far();

	refuse_to_disconnect(times);
	conn_cut(b.a, b.a_fd, REASON_LINK_LOST);
	if (kernel_reads(b.b_fd) != (times > 10000 ? -EAGAIN : -ECONNRESET))
		return 1;
	bench_close_a(&b);
	return times > 10000 && kernel_reads(b.b_fd) != -ECONNRESET ? 2 : 0;
}

static void one_of_ours_is_never_an_end(void **state)
{
	static const int refused[] = { 0, 1, 100, INT_MAX };

	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
		pid_t child = fork();
		int status;

		if (!child)
			_exit(cut_where_refused(refused[i]));
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_that_was_asked_for_is_told_once),
		cmocka_unit_test(one_is_heard_of_by_the_next_send),
		cmocka_unit_test(one_of_ours_is_never_an_end),
	};

	return cmocka_run_group_tests_name("far_resets", tests, bench_setup_group, NULL);
}
