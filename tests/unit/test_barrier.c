/* SPDX-License-Identifier: MIT */
#include <linux/filter.h>
#include <linux/seccomp.h>

#include "ring_fixture.h"

/* As a sandbox does: membarrier is not allowed any more. */
static void forbid_membarrier(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		_exit(77);
}

static void starts_out_unavailable(void **state)
{
	store_relaxed(&barrier_state, 0);
	assert_false(barrier_registered());
	assert_false(barrier_available());
}

static void registers_and_says_so(void **state)
{
	if (barrier_init() < 0)
		skip();
	assert_true(barrier_registered());
	assert_true(barrier_available());
	assert_int_equal(barrier_heavy(), 0);
	assert_int_equal(barrier_init(), 0);
}

static void disabling_keeps_the_registration(void **state)
{
	if (barrier_init() < 0)
		skip();
	barrier_disable();
	assert_true(barrier_registered());
	assert_false(barrier_available());
}

static void a_refusal_leaves_both_out(void **state)
{
	pid_t pid = fork_bound();

	if (!pid) {
		forbid_membarrier();
		if (barrier_init() != -EPERM || barrier_registered() || barrier_available())
			_exit(1);
		_exit(barrier_heavy() == -EPERM ? 0 : 2);
	}
	assert_int_equal(exit_status(pid), 0);
}

/* The promise was made, then the sandbox came without a word: the sleeper still sees what was sent, and polls no more. */
static void a_promise_that_cannot_be_kept_is_not_made_again(void **state)
{
	pid_t pid;

	if (barrier_init() < 0)
		skip();
	pid = fork_bound();
	if (!pid) {
		struct pair *pair = pair_open(FIXTURE_RING_BYTES);
		uint8_t byte;
		int i;

		barrier_init();
		for (i = 0; i < RING_POLLING_AFTER; i++) {
			shm_transport.send(&pair->creator, "x", 1);
			shm_transport.recv(&pair->attacher, &byte, 1);
		}
		if (peer_read_u32(&pair->attacher.rx.ctl->rx_state.wake) != WAKE_POLLING)
			_exit(1);
		forbid_membarrier();
		if (ring_rx_sleep_begin(&pair->attacher.rx))
			_exit(2);
		if (barrier_available())
			_exit(3);
		shm_transport.send(&pair->creator, "x", 1);
		_exit(readable(pair->attacher.rx.bells.bell_fd, 0) ? 0 : 4);
	}
	assert_int_equal(exit_status(pid), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(starts_out_unavailable),
		cmocka_unit_test(registers_and_says_so),
		cmocka_unit_test(disabling_keeps_the_registration),
		cmocka_unit_test(a_refusal_leaves_both_out),
		cmocka_unit_test(a_promise_that_cannot_be_kept_is_not_made_again),
	};

	alarm(50);
	return cmocka_run_group_tests_name("barrier", tests, NULL, NULL);
}
