/* SPDX-License-Identifier: MIT */
/*
 * Handlers that run between two sleeps of one call.
 *
 * Stands for: the stubs of shim/counted.c, counted_verdict(), and the sleeps of shim/asleep.c with the loops around them (wait.c, ready_poll.c, epoll_wait.c).
 *
 * A thread is in a call that nothing but a signal will ever end. It is woken in vain, any number of times up to VAIN, and sleeps again. One signal, whose handler has
 * no SA_RESTART, comes when the call has begun; with -DTWO another one, whose handler has it, before, behind, or inside the stub of the first. Handlers
 * run on the thread itself: to it each is one step, wherever it stands. The kernel takes the time of a sleep by reference (`left`) as it enters it; a signal that comes
 * later interrupts. With -DNESTED the handler sleeps, too, and is woken. With -DTHREADS there is another thread that lets the signal in, and the kernel gives it to the first that does.
 *
 * What must hold: the call ends.
 */
#define VAIN 2
#define LONG 1
#define RESTARTS 1	/* what a handler of this kind adds to the count */
#define ENDS 16

byte handled;		/* the thread's count */
byte left;		/* its time: 0 or LONG */
byte taken;		/* by the kernel, for the sleep */
bool in_kernel, interrupted, kept_out;
bool begun, rung;
bool pending = true;	/* the signal whose handler ends */

/* What a handler does to the thread that it runs on. Nothing of that thread comes in between, but another handler. */
inline stub_count(kind)
{
#ifndef MUT_NOT_COUNTED
	handled = handled + kind
#else
	skip
#endif
}

inline stub_rest()
{
#ifndef MUT_NOT_ZEROED
	left = 0;
#endif
#ifdef NESTED
	/* A call of its own, which sleeps and is woken */
	left = LONG;
#ifndef MUT_LEFT_BEHIND
	left = 0;
#endif
#endif
	if
	:: in_kernel -> interrupted = true
	:: else
	fi
}

/* The signal is the process's: the first thread that lets it in */
active proctype ending()
{
end:	atomic {
		begun && pending;
		pending = false;
#ifdef THREADS
		if
		:: kept_out -> goto elsewhere
		:: else
		fi;
#else
		!kept_out;
#endif
		stub_count(ENDS);
		stub_rest();
	}
elsewhere:
	skip
}

#ifdef TWO
/* The other kind; the first may come while its stub counts */
active proctype restarting()
{
	atomic {
		begun;
#ifdef MUT_COUNT_SPLIT
		byte seen = handled;
		if
		:: pending -> pending = false; handled = handled + ENDS; left = 0
		:: true
		fi;
		handled = seen + RESTARTS;
#else
		stub_count(RESTARTS);
#endif
		stub_rest()
	}
}
#endif

active proctype waker()
{
	byte times;
	do
	:: times < VAIN && begun -> times++; rung = true
	:: break
	od
}

active proctype thread()
{
	byte since, now, found;
	since = handled;
	begun = true;
	do
	:: true ->
		/* A look finds nothing */
#ifdef MUT_SINCE_AT_EACH
		since = handled;
#endif
#ifdef MUT_COUNT_BEFORE_LEFT
		now = handled;
		left = LONG;
		if :: now != since -> left = 0 :: else fi;
#else
		left = LONG;
		if :: handled != since -> left = 0 :: else fi;
#endif
#ifdef MUT_BY_VALUE
		taken = left;
		atomic { in_kernel = true; kept_out = false };
#else
		atomic { taken = left; in_kernel = true; kept_out = false };
#endif
		/* Asleep */
		atomic {
			rung || interrupted || taken == 0;
			found = rung;
			rung = false;
			in_kernel = false;
			interrupted = false;
#ifdef MUT_KEPT_OUT
			kept_out = true
#endif
		};
		left = 0;
		if
		:: found	/* looked at first */
		:: else ->
#ifdef MUT_VERDICT_READS_TWICE
			if
			:: handled / ENDS != since / ENDS -> break
			:: else -> since = handled
			fi
#else
			now = handled;
			if
			:: now / ENDS != since / ENDS -> break
			:: else -> since = now
			fi
#endif
		fi
	od
}
