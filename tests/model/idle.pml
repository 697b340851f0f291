/* SPDX-License-Identifier: MIT */
/*
 * Who notices that nothing goes over a connection, where nobody but the program's own waits can look.
 *
 * Stands for: idle_watch(), idle_look() and idle_note() of shim/idle.c and the waits that call them; begin_anew() of shim/nego.c.
 *
 * One process of two threads, each with a connection of its own. A thread makes what calls it likes on it: links it, moves bytes, leaves some unread, reads
 * them; then it arms it and sleeps for ever, or for as long as the watch allows. `word` is the watch: 0, or a time. A bounded sleep may be over at any moment, and
 * what was armed stays so for the next one. Each step is one access to memory.
 *
 * What must hold: when all sleep for ever no connection has a link that could be given back; a process that does nothing comes to sleep for ever, after few looks;
 * what has moved is never taken for quiet; and a connection that was given back is not linked again before bytes have moved.
 */
#define DEEDS (3 - 2 * me)	/* of each thread */
#define MINE 255

byte word;		/* when; odd: and there is news */
byte clock = 2;		/* two times are enough: one at most is in use beside the next */
bool linked[2];
bool unread[2];
bool fresh[2];		/* bytes have moved since a look noted where they stand */
bool aside[2];		/* the last look has left it alone, and asks for no other */
bool looked[2];		/* the last look has found it as it was */
bool moved[2] = true;	/* bytes, since the link was given up */
bool looking;		/* one looks at a time */
byte looks;		/* since anything was done */
byte asleep;

inline now(t)
{
	d_step { clock = 6 - clock; t = clock }
}

/* idle_watch() */
inline watch(w, t)
{
	w = word;
	if
	:: w == 0 ->
		now(t);
		atomic { if :: word == 0 -> word = t; w = MINE :: else fi }
	:: else
	fi;
#ifndef MUT_NO_NEWS
	if
	:: w != MINE -> d_step { word = word | 1 }
	:: else
	fi
#endif
}

/* What a look does with one connection */
inline consider(i, t, next)
{
	if
	:: linked[i] ->
#ifndef MUT_ASIDE_LATE
		d_step { if :: fresh[i] -> looked[i] = 0 :: else fi; fresh[i] = false; aside[i] = true };
#endif
		d_step {
			if
#ifdef MUT_UNREAD_HAS_DATE
			:: unread[i] -> next = t
#else
			:: unread[i] -> looked[i] = 0
#endif
			:: else ->
#ifdef MUT_TAKES_WHAT_MOVES
				linked[i] = false; assert(!fresh[i]); moved[i] = false
#else
				if
				:: fresh[i] || looked[i] == 0 -> next = t; looked[i] = !fresh[i]
				:: else -> linked[i] = false; assert(!fresh[i]); moved[i] = false
				fi;
				aside[i] = false
#endif
			fi
		}
#ifdef MUT_ASIDE_LATE
		;
		d_step { fresh[i] = false; aside[i] = (next == 0) }
#endif
	:: else
	fi
}

/* idle_look(), by a thread that finds the time over */
inline look(w, t, next)
{
	w = word;
	if
	:: w != 0 ->
		now(t);
#ifndef MUT_TWO_LOOK
		/* Who finds another at it puts the next one off, and cannot be taken for that one: the word is odd */
		atomic { if :: !looking -> looking = true :: else -> if :: word == w -> word = t | 1 :: else fi; w = 0 fi };
#endif
#ifdef MUT_NO_CLAIM
		atomic { if :: w != 0 -> t = w; w = MINE :: else fi };
#else
		atomic { if :: w != 0 && word == w -> word = t; w = MINE :: w != 0 && word != w -> looking = false :: else fi };
#endif
		if
		:: w == MINE ->
			next = 0;
			consider(0, t, next);
			consider(1, t, next);
			atomic {
				if
				:: word == t -> looks++
				:: else
				fi;
				if
#ifdef MUT_CLEARS_BLINDLY
				:: next == 0 -> word = 0
#else
				:: next == 0 && word == t -> word = 0
#endif
				:: else
				fi
			};
			looking = false
		:: else
		fi
	:: else
	fi
}

proctype thread(byte me)
{
	byte w, t, next, deeds;
	do
	:: deeds < DEEDS ->
		/* A call */
		deeds++;
		looks = 0;
		if
#ifdef MUT_ANEW_AT_ONCE
		:: !linked[me] ->
#else
		:: !linked[me] && moved[me] ->
#endif
			assert(moved[me]);
			d_step { fresh[me] = true; looked[me] = 0; linked[me] = true; aside[me] = false };
#ifndef MUT_LINKS_SILENTLY
			watch(w, t); w = 0; t = 0
#endif
		:: d_step { fresh[me] = true; moved[me] = true; unread[me] = false }
		:: linked[me] -> d_step { fresh[me] = true; unread[me] = true }
		fi
	:: true ->
		/* About to sleep: idle_note() */
#ifndef MUT_NO_NOTE
		if
#ifdef MUT_NOTES_ALL
		:: linked[me] && aside[me] ->
#else
		:: linked[me] && aside[me] && fresh[me] ->
#endif
			aside[me] = false; watch(w, t); w = 0; t = 0
		:: else
		fi;
#endif
		do
		:: word == 0 -> goto sleeps
		:: word != 0 ->
#ifdef MUT_SLEEPS_UNBOUNDED
			goto sleeps
#else
			look(w, t, next); w = 0; t = 0; next = 0
#endif
		:: deeds < DEEDS -> break
		od
	od;
sleeps:
	asleep++
}

init {
	atomic {
		run thread(0);
		run thread(1)
	}
	(asleep == 2);
	assert(!linked[0] || unread[0]);
	assert(!linked[1] || unread[1]);
	assert(word == 0)
}

/* A process that does nothing more comes to rest */
active proctype counter()
{
end:	do
	:: looks > 8 -> assert(false)
	od
}
