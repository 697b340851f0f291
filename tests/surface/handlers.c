/* SPDX-License-Identifier: MIT */
/* What a program sees of its handlers: what it reads back, and what a handler is given. */
#include "probe.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

sighandler_t bsd_signal(int sig, sighandler_t handler);

static volatile sig_atomic_t first_ran, second_ran;

static void first(int sig)
{
	first_ran++;
}

static void second(int sig)
{
	second_ran++;
}

static volatile int seen_sig, seen_value, seen_pid_right, seen_mask_right, seen_above;
static uintptr_t outer_frame;

static void detailed(int sig, siginfo_t *info, void *context)
{
	const ucontext_t *c = context;

	seen_sig = sig;
	seen_value = info->si_value.sival_int;
	seen_pid_right = info->si_pid == getpid();
	seen_mask_right = !sigismember(&c->uc_sigmask, SIGUSR1) && sigismember(&c->uc_sigmask, SIGHUP);
	seen_above = (uintptr_t)context > (uintptr_t)__builtin_frame_address(0) && (uintptr_t)context < outer_frame;
}

static const char *name_of(sighandler_t handler)
{
	return handler == SIG_DFL ? "default" : handler == SIG_IGN ? "ignored" : handler == SIG_ERR ? "error" : handler == SIG_HOLD ? "held" :
	       handler == first ? "first" : handler == second ? "second" : "another";
}

static void say(int sig)
{
	struct sigaction now;

	memset(&now, 0xff, sizeof(now));
	MUST(sigaction(sig, NULL, &now) == 0);
	SAY("%d: %s, flags %x, mask %d%d\n", sig, name_of(now.sa_handler), (unsigned)now.sa_flags & ~0x04000000u, sigismember(&now.sa_mask, SIGHUP), sigismember(&now.sa_mask, SIGINT));
}

static void read_back(void)
{
	static const int sigs[] = { SIGHUP, SIGSEGV, SIGFPE, SIGCHLD, SIGUSR2, 34, 64 };
	static const int flags[] = { 0, SA_RESTART, SA_SIGINFO | SA_ONSTACK, SA_NODEFER | SA_NOCLDSTOP };
	struct sigaction act = { .sa_handler = first }, old;
	struct sigaction *volatile same;

	sigaddset(&act.sa_mask, SIGINT);
	for (size_t i = 0; i < sizeof(sigs) / sizeof(*sigs); i++)
		for (size_t f = 0; f < sizeof(flags) / sizeof(*flags); f++) {
			act.sa_handler = act.sa_handler == first ? second : first;
			act.sa_flags = flags[f];
			MUST(sigaction(sigs[i], &act, &old) == 0);
			SAY("was %s, ", name_of(old.sa_handler));
			say(sigs[i]);
		}
	/* What was read is put back, in the same struct. */
	same = &old;
	MUST(sigaction(SIGHUP, NULL, &old) == 0 && sigaction(SIGHUP, same, &old) == 0);
	say(SIGHUP);
	act.sa_handler = SIG_IGN;
	MUST(sigaction(SIGHUP, &act, &old) == 0);
	SAY("was %s, ", name_of(old.sa_handler));
	say(SIGHUP);
	act.sa_handler = SIG_DFL;
	MUST(sigaction(SIGHUP, &act, &old) == 0);
	SAY("was %s, ", name_of(old.sa_handler));
	say(SIGHUP);
	act.sa_handler = first;
	for (int sig = -1; sig <= 66; sig += sig == 0 ? SIGKILL : sig == SIGKILL ? SIGSTOP - SIGKILL : sig == SIGSTOP ? 32 - SIGSTOP : sig == 33 ? 32 : 1) {
		errno = 0;
		SAY("%d: %s", sig, outcome(sigaction(sig, &act, &old)));
		SAY(" %s", name_of(signal(sig, first)));
		SAY(" %s\n", strerrorname_np(errno));
	}
	errno = 7;
	MUST(sigaction(SIGUSR1, &act, NULL) == 0 && signal(SIGUSR1, second) == first && errno == 7);
	MUST(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
}

static void older_calls(void)
{
	SAY("signal %s", name_of(signal(SIGUSR1, first)));
	SAY(" %s", name_of(signal(SIGUSR1, second)));
	SAY(" %s", name_of(ssignal(SIGUSR1, first)));
	SAY(" %s", name_of(bsd_signal(SIGUSR1, second)));
	SAY(" %s", name_of(sysv_signal(SIGUSR1, first)));
	SAY(" %s", name_of(sigset(SIGUSR1, SIG_HOLD)));
	SAY(" %s", name_of(sigset(SIGUSR1, second)));
	SAY(" %s", name_of(sigset(SIGUSR1, first)));
	SAY(" %s\n", name_of(signal(SIGUSR1, SIG_IGN)));
	say(SIGUSR1);
	signal(SIGUSR1, first);
	siginterrupt(SIGUSR1, 1);
	say(SIGUSR1);
	siginterrupt(SIGUSR1, 0);
	say(SIGUSR1);
	MUST(raise(SIGUSR1) == 0);
	SAY("ran %d %d\n", first_ran, second_ran);
	MUST(sigignore(SIGUSR1) == 0);
	say(SIGUSR1);
}

/* The kernel's own call, by libc's road to it. */
static void bare_calls(void)
{
	struct {
		sighandler_t handler;
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} act, old;

	MUST(signal(SIGUSR1, first) != SIG_ERR && syscall(SYS_rt_sigaction, SIGUSR1, NULL, &act, 8) == 0);
	SAY("bare: %s", name_of(act.handler));
	act.handler = second;
	MUST(syscall(SYS_rt_sigaction, SIGUSR1, &act, &old, 8) == 0 && act.handler == second);
	SAY(" was %s\n", name_of(old.handler));
	say(SIGUSR1);
	MUST(raise(SIGUSR1) == 0);
	SAY("ran %d %d", first_ran, second_ran);
	SAY(" %s", outcome(syscall(SYS_rt_sigaction, SIGUSR1, &act, &old, 4)));
	SAY(" %s", outcome(syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, &old, 8)));
	SAY(" %s\n", outcome(syscall(SYS_rt_sigaction, SIGKILL, &act, &old, 8)));
}

static void reset(void)
{
	struct sigaction act = { .sa_handler = first, .sa_flags = SA_RESETHAND }, old;

	MUST(sigaction(SIGUSR1, &act, NULL) == 0);
	say(SIGUSR1);
	MUST(raise(SIGUSR1) == 0);
	say(SIGUSR1);
	MUST(sigaction(SIGUSR1, &act, &old) == 0);
	SAY("was %s, ran %d\n", name_of(old.sa_handler), first_ran);
}

static void arguments(void)
{
	struct sigaction act = { .sa_sigaction = detailed, .sa_flags = SA_SIGINFO };
	static char stack[65536];
	stack_t alternative = { .ss_sp = stack, .ss_size = sizeof(stack) };
	sigset_t blocked;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGHUP);
	MUST(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
	outer_frame = (uintptr_t)__builtin_frame_address(0);
	MUST(sigaction(SIGUSR1, &act, NULL) == 0 && sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 77 }) == 0);
	SAY("sig %d, value %d, sender %d, mask %d, stack %d\n", seen_sig == SIGUSR1, seen_value, seen_pid_right, seen_mask_right, seen_above);
	act.sa_flags |= SA_ONSTACK;
	outer_frame = (uintptr_t)(stack + sizeof(stack));
	MUST(sigaltstack(&alternative, NULL) == 0);
	MUST(sigaction(SIGUSR1, &act, NULL) == 0 && sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 78 }) == 0);
	SAY("sig %d, value %d, sender %d, mask %d, stack %d\n", seen_sig == SIGUSR1, seen_value, seen_pid_right, seen_mask_right, seen_above);
}

/* In a child that has our memory dispositions are its own. */
static void children(void)
{
	volatile int told = -1;
	pid_t pid;

	MUST(signal(SIGUSR1, first) != SIG_ERR && signal(SIGUSR2, first) != SIG_ERR);
	pid = vfork();
	if (pid == 0) {
		struct sigaction act = { .sa_handler = second }, old, now;

		told = sigaction(SIGUSR1, &act, &old) == 0 && old.sa_handler == first && sigaction(SIGUSR1, NULL, &now) == 0 && now.sa_handler == second &&
		       signal(SIGUSR2, SIG_DFL) == first;
		raise(SIGUSR1);
		_exit(3);
	}
	MUST(pid > 0);
	SAY("vfork: %d, exit %d, ran %d %d\n", told, wait_for(pid), first_ran, second_ran);
	say(SIGUSR1);
	say(SIGUSR2);
	pid = fork();
	if (pid == 0) {
		say(SIGUSR1);
		signal(SIGUSR1, second);
		raise(SIGUSR1);
		SAY("child ran %d %d\n", first_ran, second_ran);
		_exit(4);
	}
	SAY("fork: exit %d\n", wait_for(pid));
	say(SIGUSR1);
	MUST(raise(SIGUSR1) == 0 && raise(SIGUSR2) == 0);
	SAY("ran %d %d\n", first_ran, second_ran);
}

static void changes(int sig)
{
	struct sigaction act = { .sa_handler = second }, old;

	MUST(sigaction(sig, &act, &old) == 0 && old.sa_handler == changes);
	first_ran++;
}

static sigjmp_buf back;

static void jumps(int sig)
{
	siglongjmp(back, 1);
}

static void *ends_in_handler(void *arg)
{
	MUST(raise(SIGUSR1) == 0);
	return NULL;
}

static void ends(int sig)
{
	pthread_exit((void *)7);
}

static void leaves(void)
{
	pthread_t thread;
	void *result;

	signal(SIGUSR1, changes);
	MUST(raise(SIGUSR1) == 0 && raise(SIGUSR1) == 0);
	SAY("changed in a handler: ran %d %d\n", first_ran, second_ran);
	signal(SIGUSR1, jumps);
	for (int i = 0; i < 3; i++)
		if (sigsetjmp(back, 1) == 0)
			MUST(raise(SIGUSR1) != 0);
	signal(SIGUSR1, ends);
	MUST(pthread_create(&thread, NULL, ends_in_handler, NULL) == 0 && pthread_join(thread, &result) == 0);
	SAY("jumped, and ended with %d\n", (int)(intptr_t)result);
}

static volatile bool stop;

static void *raises(void *arg)
{
	while (!stop)
		MUST(raise(SIGUSR1) == 0);
	return NULL;
}

static volatile sig_atomic_t mixed;

static void with_info(int sig, siginfo_t *info, void *context)
{
	mixed |= info->si_pid != getpid();
}

/* While another thread changes it, a handler runs with the flags that it was installed with. */
static void at_once(void)
{
	struct sigaction plain = { .sa_handler = first }, info = { .sa_sigaction = with_info, .sa_flags = SA_SIGINFO };
	pthread_t thread;

	MUST(sigaction(SIGUSR1, &plain, NULL) == 0 && pthread_create(&thread, NULL, raises, NULL) == 0);
	for (int i = 0; i < 20000 || first_ran < 10; i++)
		MUST(sigaction(SIGUSR1, i % 2 ? &plain : &info, NULL) == 0);
	stop = true;
	MUST(pthread_join(thread, NULL) == 0);
	SAY("at once: mixed %d, ran %d\n", (int)mixed, first_ran > 9);
}

int main(int argc, char **argv)
{
	static void (*const parts[])(void) = { read_back, older_calls, bare_calls, reset, arguments, children, leaves, at_once };

	alarm(60);
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		first_ran = second_ran = 0;
		parts[i]();
	}
	return 0;
}
