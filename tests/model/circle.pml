/* SPDX-License-Identifier: MIT */
/*
 * Threads that wait for each other (shim/circle.c, lane_lock.c).
 *
 * Each thread makes calls: one locks something, and perhaps a handler interrupts it there that wants another. Who waits says for whom, and
 * follows what the others say. Shown: nobody gives up but in a true circle; and no circle stays.
 *
 * A look changes nothing that others see once it has been made twice in a state of things, and is not made again until that changes: so those who
 * would look for ever end here, and a circle that nobody resolves is an end that is none. Reading a seat is one step (its number of the wait is
 * read before and after). Left out: a handler on top of a wait, see circle.h.
 */
#define THREADS 2
#define LOCKS 3
#define NOBODY 7

#ifdef MUT_BELIEVE_AT_ONCE
#define LOOKS 0
#elif defined(MUT_ONE_LOOK)
#define LOOKS 1
#else
#define LOOKS 2
#endif

byte owner[LOCKS] = NOBODY;	/* of each lock */
byte wants[THREADS] = NOBODY;	/* the lock that a thread waits for: the truth, for the assertion alone */

/* Seats. */
byte wait_of[THREADS];		/* 0: waits for nobody */
byte said[THREADS] = NOBODY;
bool soon[THREADS];
byte last_wait;

/* What each has seen: the wait of every member, and how often that one has looked since it was read in the next sight. */
typedef seen {
	byte nr, stage;
	byte wait[THREADS];
	byte looks[THREADS];	/* by thread */
}
seen sight[THREADS];

bool worth[THREADS];	/* something has changed since this one looked in vain */

inline clear(me)
{
	d_step {
		sight[me].nr = 0; sight[me].stage = 0;
		for (k : 0 .. THREADS - 1) { sight[me].wait[k] = 0; sight[me].looks[k] = 0 }
		k = 0
	}
}

inline changed()
{
	d_step {
		for (k : 0 .. THREADS - 1) { worth[k] = true }
		k = 0
	}
}

inline true_circle(t)
{
	d_step {
		at = t; nr = 0;
		do
		:: nr < THREADS && wants[at] != NOBODY && owner[wants[at]] != NOBODY -> at = owner[wants[at]]; nr++;
			if :: at == t -> break :: else fi
		:: else -> assert(false)
		od;
		at = NOBODY; nr = 0
	}
}

/* Reads the seats one after the other, into now_*; nr is 0 where they make no circle with `me` in it. */
inline follow(me)
{
	at = mine; nr = 0;
	do
	:: nr == THREADS -> nr = 0; break
	:: nr < THREADS ->
		atomic {
			if
			:: at == NOBODY || wait_of[at] == 0 -> nr = 0; break
			:: else ->
				now_who[nr] = at; now_wait[nr] = wait_of[at]; now_soon[nr] = soon[at];
				if
				:: sight[me].stage == 1 -> sight[me].looks[at] = 0
				:: else
				fi;
				now_looked[nr] = sight[me].looks[at] >= LOOKS;
				nr++;
				if :: at == me -> break :: else -> at = said[at] fi
			fi
		}
	od
}

inline same(me)
{
	ok = (nr == sight[me].nr);
#ifndef MUT_SAME_NUMBER
	k = 0;
	do
	:: k < nr && ok -> ok = (sight[me].wait[k] == now_wait[k]); k++
	:: else -> break
	od;
	k = 0
#endif
}

inline judge(me)
{
	d_step {
		gives_up = false;
		same(me);
		if
		:: nr == 0 || !ok ->
			sight[me].nr = nr; sight[me].stage = (nr > 0);
			for (k : 0 .. THREADS - 1) { sight[me].wait[k] = (k < nr -> now_wait[k] : 0) }
			ok = false
		:: nr && ok && sight[me].stage == 1 -> sight[me].stage = 2; ok = false
		:: else
		fi;
#ifdef MUT_BELIEVE_AT_ONCE
		ok = (nr > 0);
#endif
		k = 0; best = 0;
		do
		:: k < nr ->
			if :: !now_looked[k] -> ok = false :: else fi;
			if
			:: (now_soon[k] && !now_soon[best]) || (now_soon[k] == now_soon[best] && now_wait[k] > now_wait[best]) -> best = k
			:: else
			fi;
			k++
		:: else -> break
		od;
#ifdef MUT_NOBODY_GIVES_UP
		ok = false;
#endif
#ifdef MUT_HANDLERS_ONLY
		gives_up = ok && now_who[best] == me && soon[me];
#else
		gives_up = ok && now_who[best] == me;
#endif
		k = 0; best = 0; ok = false; nr = 0; at = NOBODY;
		for (k : 0 .. THREADS - 1) { now_who[k] = 0; now_wait[k] = 0; now_soon[k] = false; now_looked[k] = false }
		k = 0
	}
}

/* One more look of this thread's is seen by all who have it in a circle. */
inline count_look(me)
{
	d_step {
		any = false;
		for (k : 0 .. THREADS - 1) {
			if
			:: sight[k].nr && sight[k].looks[me] < 2 -> sight[k].looks[me]++; any = true
			:: else
			fi
		}
		k = 0;
		if :: said[me] != mine -> said[me] = mine; any = true :: else fi
	}
}

proctype thread(byte me)
{
	byte calls = 0, base = 0, target = NOBODY, mine = NOBODY, at = NOBODY, nr = 0, k = 0, best = 0, before = 0;
	byte now_who[THREADS], now_wait[THREADS];
	bool now_soon[THREADS], now_looked[THREADS];
	bool ok = false, any = false, gives_up = false;

	do
	:: calls < 1 + me -> /* the second makes two */
		calls++;
		atomic {
			if :: base = 0 :: base = 1 :: base = 2 fi;
			if :: soon[me] = true :: soon[me] = false fi;
			owner[base] == NOBODY -> owner[base] = me; changed();
			if
			:: target = (base + 1) % LOCKS
			:: target = (base + 2) % LOCKS
			:: goto unlock
			fi;
			wants[me] = target
		}
		do
		:: atomic { owner[target] == NOBODY -> owner[target] = me; wants[me] = NOBODY; changed() };
			atomic { wait_of[me] = 0; said[me] = NOBODY; clear(me); changed() }
			atomic { owner[target] = NOBODY; changed() };
			break
		:: atomic { owner[target] != NOBODY && (worth[me] || wait_of[me] == 0) -> worth[me] = false; mine = owner[target] };
			/* A lock that is handed on here is what makes the seat say what is over. */
			atomic {
				if
				:: wait_of[me] == 0 -> last_wait++; wait_of[me] = last_wait; said[me] = mine; changed()
				:: else -> count_look(me); if :: any -> changed() :: else fi
				fi
			}
			follow(me);
			atomic {
				before = sight[me].nr * 4 + sight[me].stage;
				judge(me);
				if :: sight[me].nr * 4 + sight[me].stage != before -> changed() :: else fi;
				before = 0; mine = NOBODY
			}
			if
			:: gives_up ->
				true_circle(me);
				atomic { wants[me] = NOBODY; wait_of[me] = 0; said[me] = NOBODY; clear(me); gives_up = false; changed() }
				break
			:: else
			fi
		od;
unlock:
		atomic { owner[base] = NOBODY; base = 0; target = NOBODY; soon[me] = false; changed() }
	:: else -> break
	od
}

init {
	atomic {
		byte i;
		for (i : 0 .. THREADS - 1) { run thread(i) }
	}
}
