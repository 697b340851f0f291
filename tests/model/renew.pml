/* SPDX-License-Identifier: MIT */
/*
 * A link of which both lanes are back is given up and taken down, another is made, while threads of the process look at the connection, sleep on it, or
 * close it.
 *
 * Stands for: renew_part(), renew_is_clear() of shim/renew.c; conn_hold(), conn_drop(), conn_use_part(), take_down_left(), conn_use_close() and what conn_call_sleeps()
 * does for a link that is left of shim/conn_use.c; the loop of conn_recv_iov(); poll_arm() and poll_disarm() of shim/ready_sleep.c.
 *
 * One process. `lock` is both lane locks. Links are numbered, the record's `link` says which one c->link describes. Each step is one access to memory.
 * Bells are level: rung, they stay so. What comes on the socket wakes everybody.
 *
 * What must hold: nobody touches a link that is not mapped; what a poll takes back it has given to the same link; a link is taken down once, and before
 * another is made; it is taken down although a call sleeps on the connection for ever, or two do.
 */
#define LINKS 2
#ifndef TURNS
#define TURNS 2
#endif
#ifndef CALLS
#define CALLS 1
#endif

#define NOT 0
#define LEFT 1
#define NOW 2
#define SOON 3

byte lock;
byte link;
bool begun;
bool linked = true;
bool parted;
byte generation;
byte nr;		/* uses; of these have passed; in which era: one word */
byte passed;
byte era = 1;
byte leaving;
bool closing;
bool closed;
bool fd_there = true;
bool socket;		/* something has come: the new link is there */
bool mapped[LINKS];
byte downs[LINKS];
byte armed[LINKS];
bool rung[LINKS];
byte done;		/* processes of the model that have come to their end */
byte number;		/* how many were left: with `leaving` in one word */
byte mine;		/* which one `leaving` speaks of: private to the process */

#define touch(e) assert(mapped[e])

inline take()
{
	atomic { lock == 0 -> lock = 1 }
}

inline give()
{
	lock = 0
}

inline unmap(e)
{
	atomic { assert(mapped[e] && downs[e] == 0); mapped[e] = false; downs[e]++ }
}

/* take_down_left() */
inline down_left(was, q)
{
#ifdef MUT_TWICE
	was = leaving;
	if
	:: was == LEFT -> leaving = NOW; unmap(mine); leaving = NOT
	:: else
	fi
#else
#ifdef MUT_NO_NUMBER
	atomic { was = leaving; if :: was == LEFT -> leaving = NOW :: else fi }
#else
	atomic { was = (number == q -> leaving : NOT); if :: was == LEFT -> leaving = NOW :: else fi }
#endif
	if
	:: was == LEFT -> unmap(mine); leaving = NOT
	:: else
	fi
#endif
}

/* take_down(), at the end of the record */
inline take_down(was)
{
	if
	:: linked -> unmap(link)
	:: else
	fi;
	closed = true
}

/* settle(): the count comes behind the look at what it matters for */
inline settle(was)
{
	d_step { was = leaving; saw = number }
	if
#ifdef MUT_NO_SECOND_LOOK
	:: was == LEFT -> down_left(was, saw)
#else
	:: was == LEFT ->
		if
		:: nr == passed -> down_left(was, saw)
		:: else
		fi
#endif
	:: else
	fi;
	if
#ifdef MUT_NO_SECOND_LOOK
	:: closing ->
		atomic { was = closing; closing = false }
#else
	:: closing && nr == 0 ->
		atomic { was = closing; closing = false }
#endif
		if
		:: was -> take_down(was)
		:: else
		fi
	:: else
	fi
}

/* conn_drop(), and drop_passed(): one word, so one step */
inline drop(was, e)
{
	atomic {
		nr--;
		if
		:: e == era -> passed--
		:: else
		fi;
		was = (nr == passed)
	}
	if
	:: was -> settle(was)
	:: else
	fi
}

/* conn_hold(): counted first, then looked at */
inline hold(ok)
{
	nr++;
	ok = fd_there
}

/* renew_part(), both lanes back */
inline part(was)
{
	take();
	if
	:: linked && leaving == NOT && fd_there ->
		parted = true;
		mine = link;
		number++;
#ifdef MUT_GENERATION_FIRST
		generation++;
#endif
#ifdef MUT_LEAVING_FIRST
		leaving = LEFT;
		settle(was);
		linked = false;
		generation++
#else
#ifndef MUT_LEAVING_LATE
		leaving = SOON;
#endif
		linked = false;
#ifndef MUT_GENERATION_FIRST
		generation++;
#endif
#ifndef MUT_NOT_RUNG
		rung[link] = true;
#endif
		leaving = LEFT;
		settle(was)
#endif
	:: else
	fi;
	give()
}

/* The step of another thread that finds both lanes back; once */
active proctype parter()
{
	byte was, saw;
	begun;
	part(was);
#ifdef PARTS
	/* The next one as well */
	if
	:: link == 1 || !fd_there -> part(was)
	fi;
#endif
	done++
}

/* A rendezvous: nego_poke() with renew_is_clear(). It comes by until it is clear, or the connection is gone. */
active proctype maker()
{
	begun;
	do
#ifdef MUT_NEXT_TOO_SOON
	:: (parted || !fd_there) ->
#else
	:: (parted && leaving == NOT || !fd_there) ->
#endif
		take();
		if
		:: !fd_there -> give(); break
#ifdef MUT_NEXT_TOO_SOON
		:: fd_there && parted && !linked ->
#else
		:: fd_there && parted && leaving == NOT && !linked ->
#endif
			/* The record describes the new one from here on */
#ifdef MUT_NO_ERA
			atomic { link = 1; parted = false; mapped[1] = true };
#else
			atomic { passed = 0; era++ };
			atomic { link = 1; parted = false; mapped[1] = true };
#endif
			linked = true;
			socket = true;
			give();
			break
		:: else -> give()
		fi
	od;
	done++
}

/* A poll, or a set, on the connection: looks, arms, sleeps without a use, takes its arming back */
active proctype looker()
{
	byte was, saw, g, e;
	bool ok, in_hand;
	byte turns;
	begun;
	do
	:: turns < TURNS ->
		turns++;
		hold(ok);
		if
		:: ok ->
			g = generation;
			if
			:: linked ->
				e = link;
				touch(e);
				armed[e]++;
				touch(e);
				assert(link == e);	/* the record describes it still */
				in_hand = true
			:: else
			fi
		:: else
		fi;
		drop(was, 0);
		if
		:: in_hand -> (rung[e] || socket || !fd_there)
		:: else
		fi;
		hold(ok);
		if
		:: ok && in_hand ->
			if
#ifdef MUT_NO_GENERATION
			:: linked ->
#else
			:: g == generation && linked ->
#endif
				touch(link);
				assert(armed[link] > 0 && e == link);
				armed[link]--
			:: else
			fi
		:: else
		fi;
		drop(was, 0);
		in_hand = false
	:: turns == TURNS -> break
	od;
	done++
}

/* A blocking call: conn_recv_iov(). It has a use from its first sleep to its end, and sleeps until something comes. */
proctype call()
{
	byte was, saw, e, mark;
	bool slept, seen;
	do
	:: true ->
		take();
		if
		:: !fd_there && !slept -> give(); break
		:: else
		fi;
		if
		:: socket || !fd_there -> give(); break
		:: else
		fi;
		if
		:: linked -> e = link; touch(e)
		:: else
		fi;
		/* conn_call_sleeps() */
		if
		:: !slept -> nr++; slept = true
		:: else
		fi;
		if
		:: leaving != NOT && mark != era ->
#ifdef MUT_NO_PASS
			mark = era
#else
			atomic { passed++; mark = era };
			settle(was)
#endif
		:: else
		fi;
		give();
		/* wait_lane() */
		seen = linked;
		if
#ifndef MUT_SLEEPS_UNPASSED
		:: !seen && leaving != NOT && mark != era
#endif
		:: else ->
			if
			:: seen -> e = link; touch(e)
			:: else
			fi;
			(seen && rung[e] || socket || !fd_there);
			if
			:: seen -> touch(e); assert(link == e)
			:: else
			fi
		fi
	od;
	if
	:: slept -> drop(was, mark)
	:: else
	fi;
	done++
}

#ifdef CLOSES
/* conn_release() and conn_use_close(), by another thread, at any moment */
active proctype closer()
{
	byte was, saw;
	begun;
	fd_there = false;
	take();
	give();
	closing = true;
	settle(was);
	done++
}
#define ALL (4 + CALLS)
#else
#define ALL (3 + CALLS)
#endif

init {
	atomic {
		mapped[0] = true;
		begun = true;
		byte i;
		for (i : 1 .. CALLS) { run call() }
	}
	/* Everybody has come to an end */
	(done == ALL);
#ifdef CLOSES
	assert(closed && !mapped[0] && !mapped[1])
#else
	assert(!mapped[0] && mapped[1] == linked && nr == 0 && leaving == NOT)
#endif
}
