/* SPDX-License-Identifier: MIT */
#ifndef RINGWAY_TEST_FAMILY_FORK_H
#define RINGWAY_TEST_FAMILY_FORK_H

/* Relatives for tests: forked as the shim's fork handlers see it, each waiting to be killed, none outliving the test. */

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/conn.h"
#include "shim/family.h"

struct relative {
	pid_t pid;
	uint32_t member;
	int said;	/* what it writes into `says` is read here */
	int says;	/* in the child; -1 in the parent */
};

/* The child gets pid 0. -EPERM: `own_namespace` is not for us. */
static inline int relative_fork(struct relative *r, struct conn **held, unsigned nr, bool own_namespace)
{
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	r->member = family_fork_prepare(true);
	if (nr)
		conn_fork_prepare(held, nr, r->member);
	r->pid = own_namespace ? (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL) : fork();
	r->said = ends[0];
	r->says = ends[1];
	if (r->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		family_fork_child();
		lane_lock_fork_child();
		if (nr)
			conn_fork_child();
		return 0;
	}
	close(r->says);
	r->says = -1;
	family_fork_parent();
	if (r->pid < 0) {
		int err = errno;

		close(r->said);
		if (nr)
			conn_fork_cancel(held, nr, r->member);
		return -err;
	}
	return 0;
}

/* In the child: it is there now, and stays. */
static inline void relative_stay(const struct relative *r)
{
	if (write(r->says, "x", 1) == 1)
		for (;;)
			pause();
	_exit(1);
}

/* In the parent: until it has said something. */
static inline void relative_heard(const struct relative *r)
{
	char byte;

	assert_int_equal(read(r->said, &byte, 1), 1);
}

/* Dead, not waited for yet. */
static inline void relative_kill(const struct relative *r)
{
	siginfo_t info;

	assert_int_equal(kill(r->pid, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOWAIT), 0);
}

static inline void relative_bury(const struct relative *r)
{
	assert_int_equal(waitpid(r->pid, NULL, 0), r->pid);
	close(r->said);
}

#endif
