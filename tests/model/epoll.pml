/* SPDX-License-Identifier: MIT */
/*
 * Threads that wait on epoll sets for one connection whose bytes come through a ring: told of each arrival, and never all asleep while
 * bytes lie there.
 *
 * Stands for: wait_entered(), sleep_on_set() and epoll_set_wait() of shim/epoll_wait.c; set_collect(), set_arm_all(), set_settle(),
 * set_drain_inner() of epoll_queue.c; reg_arm(), reg_disarm(), reg_evaluate(), reg_stir(), stir_if_behind() of epoll_reg.c; EPOLL_CTL_MOD of
 * epoll_ctl.c; and of ringbuf/wake.c what these come to. Memory is in order here: the fences are bell.pml's.
 *
 * The kernel: a ring of the bell is an edge for each inner set that has it, unless the bell is full. An edge is told only while the
 * bell is not empty, for the kernel asks again. The inner set is a level in the program's. The kick is an edge that nobody takes away.
 *
 * A set's lock is held from one wait's beginning to its sleep, and from there to its end; the program reads without it. A thread that
 * is never woken although bytes are there ends the run in an invalid end state.
 *
 * Scenes: default, two threads on one edge-triggered set;  LEVEL, where they take one at a time;  ONESHOT, where who was told reads all and then
 * says EPOLL_CTL_MOD;  in all of these the second may leave for good after any of its reads;  SETS=2, a thread on each, of which the first
 * looks on and reads nothing;  HANDLER, where no byte comes, but a rendezvous takes the registration out of the kernel's set and perhaps back
 * again, with the lanes locked, while a signal handler sends in the middle of the waiting thread's call, which has locked the set, or the
 * pool, too (pool_nth_locked(), ready_adopt(), ready_disown(), reg_go_home()).
 */
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef SETS
#define SETS 1
#endif
#define BELL_HOLDS 1	/* the fewest that any buffer holds */

byte tail, head;
bool armed_word;	/* the receiver's wake word says ARMED */
byte nr_asleep;		/* and counts so many */
byte bell;

typedef set {
	bool locked;
	byte waiters;
	bool stirred;
	/* the inner set's ready list */
	bool rung, kick;
	/* the registration */
	bool hot, dozing, queued, armed, edge, fired;
	byte seen
};
set sets[SETS];

#define OVER (head == MESSAGES)

inline ring_bell()
{
	d_step {
		if
		:: bell < BELL_HOLDS ->
			bell++;
			sets[0].rung = true;
#if SETS == 2
			sets[1].rung = true
#endif
		:: else
		fi
	}
}

proctype sender()
{
	bool owe;
	do
	:: tail < MESSAGES ->
		tail++;
		d_step { owe = armed_word; armed_word = false };
		if
		:: owe -> owe = false; ring_bell()
		:: else
		fi
	:: else -> break
	od
}

#define S sets[s]

inline lock()
{
	atomic { !S.locked -> S.locked = true }
}

inline unlock()
{
	S.locked = false
}

inline disarm_word()
{
	nr_asleep--;
	if
	:: nr_asleep == 0 -> armed_word = false
	:: else
	fi
}

/* What only this set's lock guards is changed in one step with what others see. */
inline reg_heat()
{
	d_step {
		S.hot = true;
		S.dozing = false;
		if
		:: S.armed -> S.armed = false; disarm_word()
		:: else
		fi
	}
}

/* Of another set's registration, or after EPOLL_CTL_MOD of one's own: o is its set */
inline reg_stir(o)
{
	sets[o].stirred = true;
	if
#ifdef MUT_STIR_WITHOUT_KICK
	:: false
#else
	:: sets[o].waiters > 0 -> sets[o].kick = true
#endif
	:: else
	fi
}

inline stir_if_behind()
{
#if SETS == 2 && !defined(MUT_NOT_STIRRED)
	if
	:: tail != sets[1 - s].seen -> reg_stir(1 - s)
	:: else
	fi
#endif
	skip
}

/* something: found, and then queued instead of armed */
inline reg_arm()
{
	something = false;
	if
	:: S.armed
	:: !S.armed && tail != S.seen -> something = true
	:: else ->
		/* sleep_begin_past() */
		if
#ifdef MUT_ARMED_NOT_DRAINED
		:: armed_word
#endif
		:: else -> d_step { drained = bell > 0; bell = 0 }
		fi;
		d_step { armed_word = true; nr_asleep++ };
		if
#ifdef MUT_NO_SECOND_LOOK
		:: false
#else
		:: tail != S.seen ->
			d_step { disarm_word(); something = true };
			if
			:: drained && nr_asleep > 0 -> ring_bell()
			:: else
			fi
#endif
		:: else -> S.armed = true
		fi
	fi;
	d_step { S.queued = S.queued || something; drained = false };
	stir_if_behind()
}

/* more: something was found */
inline arm_all()
{
	if
	:: S.hot ->
		reg_arm();
		d_step { S.hot = false; S.dozing = S.armed }
	:: else
	fi;
	d_step { more = something || S.stirred; something = false }
}

inline take_stirred()
{
	d_step {
		if
		:: S.stirred -> S.stirred = false; S.queued = true
		:: else
		fi
	}
}

/* tells: the registration has something for the program. The position is read before the state. */
inline evaluate()
{
#ifdef MUT_SEEN_AFTER_LOOK
	d_step { S.queued = false; tells = head < tail };
	d_step { edge = S.edge || tail != S.seen; S.seen = tail };
#else
	d_step { S.queued = false; edge = S.edge || tail != S.seen; S.seen = tail };
	tells = head < tail;
#endif
	d_step {
#ifdef LEVEL
		tells = tells && !S.fired;
#else
		tells = tells && !S.fired && edge;
#endif
		edge = false;
		if
		:: tells ->
			S.edge = false;
#ifdef ONESHOT
			S.fired = true
#endif
		:: else
		fi
	}
}

inline collect()
{
	take_stirred();
	d_step { S.queued = S.queued || S.hot && tail != S.seen; tells = false };
	if
	:: S.queued ->
		evaluate();
		if
		:: !S.hot && !S.armed && !S.fired -> reg_heat()
		:: else
		fi
	:: else
	fi
}

/* The kernel's list is taken, and what is stale in it forgotten */
inline drain_inner()
{
	d_step {
		woken = S.rung && bell > 0;
		S.rung = false;
		S.kick = false;
		S.queued = S.queued || woken
	};
	if
	:: woken -> woken = false; reg_heat()
	:: else
	fi
}

inline rouse_all()
{
	if
	:: S.dozing -> reg_heat()
	:: else
	fi
}

/* Leaves on the queue what the next wait will tell */
inline sift_queue()
{
	take_stirred();
	left = false;
	if
	:: S.queued ->
		evaluate();
		d_step {
			if
			:: tells -> S.edge = true; S.fired = false; S.queued = true; left = true
			:: else
			fi;
			tells = false
		};
		if
		:: !S.hot && !S.armed -> reg_heat()
		:: else
		fi
	:: else
	fi
}

inline settle()
{
	if
	:: S.waiters > 0 ->
		rouse_all();
		sift_queue();
		arm_all();
		if
		:: more -> sift_queue(); arm_all()
		:: else
		fi;
		if
#ifdef MUT_SETTLED_WITHOUT_KICK
		:: false
#else
		:: left || more -> S.kick = true
#endif
		:: else
		fi;
		d_step { left = false; more = false }
	:: else
	fi
}

#define READABLE (S.rung && bell > 0 || S.kick)

inline wait()
{
	lock();
again:
	collect();
	if
	:: tells -> goto told
	:: else -> drain_inner(); collect()
	fi;
	if
	:: tells -> goto told
	:: else -> arm_all()
	fi;
	if
	:: more -> more = false; unlock(); lock(); goto again
	:: else
	fi;
#ifdef MUT_COUNTED_LATE
	if
	:: S.stirred -> goto again
	:: else
	fi;
	S.waiters++;
#else
	S.waiters++;
	if
	:: S.stirred -> S.waiters--; goto again
	:: else
	fi;
#endif
	unlock();
	(READABLE || OVER);
	S.waiters--;
	if
	:: OVER -> goto end
	:: else -> lock()
	fi;
	rouse_all();
	drain_inner();
	goto again;
told:
	tells = false;
#ifdef LEVEL
	S.queued = true;
#endif
#ifndef MUT_NOT_SETTLED
	settle();
#endif
	unlock()
}

/* The lane's lock is held for the taking only */
inline take()
{
#ifdef LEVEL
	d_step {
		if
		:: head < tail -> head++
		:: else
		fi
	}
#else
	do
	:: d_step { head < tail -> head++ }
	:: head == tail -> break
	od
#endif
}

#if SETS == 2
#define LOOKS_ON (s == 0)
#else
#define LOOKS_ON false
#endif

proctype worker(byte s; bool may_leave)
{
	bool something, drained, more, edge, tells, left, woken;
	do
	:: OVER -> break
	:: else ->
		wait();
		if
		:: LOOKS_ON
		:: !LOOKS_ON -> take()
		fi;
#ifdef ONESHOT
		/* EPOLL_CTL_MOD */
		lock();
		reg_heat();
		d_step {
			S.fired = false;
#ifndef MUT_MOD_WITHOUT_EDGE
			S.edge = true;
#endif
			S.queued = true
		};
#ifndef MUT_MOD_NOT_STIRRED
		reg_stir(s);
#endif
		unlock();
#endif
		if
		:: may_leave -> break
		:: skip
		fi
	od;
end:
	skip
}

#ifdef HANDLER
bool lanes_locked, pool_locked;
bool meant;		/* pool_set_adopted() */
bool adopted;		/* the registration stands in the inner set */
bool linked, decided;
bool shaken;		/* everything_changed */

#define DERIVED (linked || meant)
/* Where the rendezvous is over, the registration is where the bytes are */
#define RIGHT (decided && adopted == linked)

inline handler_may_send()
{
	if
	:: skip ->
		atomic { !lanes_locked -> lanes_locked = true };
		lanes_locked = false
	:: skip
	fi
}

/* had: the lock could be had. It may be waited for briefly, so only for ever is wrong. */
inline lock_briefly(it)
{
	if
	:: atomic { !it -> it = true; had = true }
#ifndef MUT_WAITS_WITH_LANES
	:: it -> had = false
#endif
	fi
}

/* The registration, its set locked */
inline nth_locked()
{
	lock_briefly(pool_locked);
	if
	:: had ->
		pool_locked = false;
		lock_briefly(S.locked)
	:: else
	fi
}

/* ready_changed() */
inline changed()
{
	lock_briefly(pool_locked);
	if
	:: had -> reg_stir(s); pool_locked = false
	:: else -> shaken = true; S.kick = true
	fi
}

inline disown()
{
	meant = false;
	nth_locked();
	if
	:: had -> adopted = false; unlock()
#ifndef MUT_LEFT_BEHIND
	:: !had -> changed()
#else
	:: !had
#endif
	fi
}

proctype rendezvous(byte s)
{
	byte steps;
	bool had;
	do
	:: steps < 2 && !linked ->
		steps++;
		atomic { !lanes_locked -> lanes_locked = true };
		meant = true;
		nth_locked();
		if
		:: had -> adopted = true; reg_stir(s); unlock()
		:: else
		fi;
		if
#ifdef MUT_ADOPTED_UNFOUND
		:: linked = true
#else
		:: had -> linked = true
#endif
		/* not now, or it comes to nothing */
		:: disown()
		fi;
		lanes_locked = false
	:: else -> break
	od;
	decided = true
}

proctype waiter(byte s)
{
	do
	:: RIGHT -> break
	:: else ->
		lock();
		handler_may_send();
		/* pool_find() and others */
		atomic { !pool_locked -> pool_locked = true };
		handler_may_send();
		pool_locked = false;
again:
		skip;
		d_step {
			S.queued = S.stirred || shaken;
			S.stirred = false;
			shaken = false
		};
		if
#ifdef MUT_GOES_HOME_UNASKED
		:: S.queued && adopted && !linked -> adopted = false
#else
		:: S.queued && adopted && !DERIVED -> adopted = false
#endif
		:: else
		fi;
		S.queued = false;
		S.waiters++;
		if
		:: S.stirred -> S.waiters--; goto again
		:: else
		fi;
		unlock();
		(S.kick || RIGHT);
		d_step { S.waiters--; S.kick = false }
	od
}
#endif

init {
#ifdef HANDLER
	atomic {
		run rendezvous(0);
		run waiter(0)
	}
#else
	atomic {
		sets[0].hot = true;
#if SETS == 2
		sets[1].hot = true;
#endif
		run sender();
		run worker(0, false);
#if SETS == 2
		run worker(1, false)
#else
		run worker(0, true)
#endif
	}
#endif
}
