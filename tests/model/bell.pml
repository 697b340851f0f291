/* SPDX-License-Identifier: MIT */
/*
 * Sleep and wake on one lane: publish and look at the wake word; drain, arm, look again, sleep.
 *
 * Stands for: ring_publish() and ring_tx_notify() of ringbuf/ring.h; drain_due(), drain_unless_others(), arm(), disarm(), arm_found(), sleep_end(),
 * ring_rx_sleep_begin(), ring_rx_sleep_begin_past() and ring_rx_enter_polling() of ringbuf/wake.c, step by step; barrier_heavy(); bell_ring() and bell_drain(); and the
 * taking over of a lane lock (ring_tx_recover()). Waiting for room is the same with the roles exchanged; scene TWO_BELLS has both at one end.
 *
 * The sender's stores are buffered as on x86 (TSO): its tail becomes visible at any time after it was stored, its own later loads pass it; a
 * fence, an exchange and a system call empty the buffer, and membarrier empties everybody's. The receiver's wake word is changed by atomic
 * exchanges only. A bell is a count of datagrams that is never more than two: a full one counts as rung. A sleeper that is never
 * woken although bytes are there ends the run in an invalid end state, which is what the search looks for.
 *
 * Scenes: default, one sender and one receiver that may poll, with a stray ring;  SLEEPERS, two threads receive, one leaves early;
 * PAST, one thread receives, another waits past what is unread and takes nothing;  KILLED, two processes share the sending lane, one is killed while it holds the lane's lock;  TWO_BELLS, an end with a
 * thread that waits for bytes and one that waits for room.
 */
#ifndef MESSAGES
#define MESSAGES 3
#endif

#define AWAKE 0
#define ARMED 1
#define POLLING 2
#define NONE 9

#ifdef SLEEPERS
#define RECEIVERS 2
#else
#define RECEIVERS 1
#endif

/* As everybody sees them */
byte tail, head, wake;
byte bell;
byte nr_asleep;		/* the sleepers counted in the wake word, changed in one step with its state */
byte due;		/* bell_due: may the bell be readable? */
byte nr_threads;	/* asleep on the bell by their own count, or about to be */
#define BELL_CLEAR 0
#define BELL_MAYBE 1
/* Store buffers */
byte tail_buffered;	/* the sender's; equal to tail when empty */
byte wake_buffered[RECEIVERS] = NONE;	/* only where a mutation makes the arming a plain store */
byte taken;

/* Memory takes the buffered stores whenever it likes */
active proctype memory()
{
end:
	do
	:: atomic { tail != tail_buffered -> tail = tail_buffered }
	:: atomic { wake_buffered[0] != NONE -> wake = wake_buffered[0]; wake_buffered[0] = NONE }
#ifdef SLEEPERS
	:: atomic { wake_buffered[1] != NONE -> wake = wake_buffered[1]; wake_buffered[1] = NONE }
#endif
	od
}

inline ring_bell()
{
	d_step { bell = (bell < 2 -> bell + 1 : bell) }
}

#ifdef MUT_NO_SENDER_FENCE
#define SENDER_FENCE skip
#else
#define SENDER_FENCE tail = tail_buffered
#endif

/* `w` is the caller's */
inline publish()
{
	tail_buffered = tail_buffered + 1;
	w = wake;
	if
	:: w == POLLING	/* no fence: the receiver has promised a membarrier before it sleeps */
	:: else ->
		SENDER_FENCE;
		w = wake;
		if
		:: w == ARMED ->
#ifdef MUT_NO_EXCHANGE
			ring_bell();
			wake = AWAKE
#else
			d_step { tail = tail_buffered; w = wake; wake = (w == ARMED -> AWAKE : w) }
			if
			:: w == ARMED -> ring_bell()
			:: else
			fi
#endif
		:: else
		fi
	fi;
	w = 0
}

/* From AWAKE with nobody asleep only, in one step, so that another sleeper's ARMED is never lost */
inline enter_polling(i)
{
#ifdef MUT_POLLING_STORED
	wake = POLLING
#else
	d_step { if :: wake == AWAKE && nr_asleep == 0 -> wake = POLLING :: else fi }
#endif
}

inline drain_due()
{
	drained = false;
	if
	:: due == BELL_CLEAR
	:: else -> d_step { drained = bell > 0; bell = 0 }
	fi
}

/* Who sleeps although there is something leaves the ring to others: they may have been woken by it and not have looked yet */
#ifdef MUT_DRAIN_FROM_OTHERS
#define LEAVES_IT false
#else
#define LEAVES_IT (unread && nr_threads > 0)
#endif

inline drain_unless_others()
{
	unread = head < tail;
	if
	:: LEAVES_IT -> drained = false
	:: else -> drain_due()
	fi
}

inline arm(i)
{
#ifdef MUT_NO_RECEIVER_FENCE
	d_step { a = wake; nr_asleep++; wake_buffered[i] = ARMED }
#else
	d_step { a = wake; nr_asleep++; wake = ARMED }
#endif
	due = BELL_MAYBE;
	left_polling = (a == POLLING);
#ifndef MUT_NO_MEMBARRIER
	if
	:: a == POLLING -> d_step { tail = tail_buffered }
	:: else
	fi
#endif
}

/* Counts out, and takes the arming back if nobody else relies on it */
inline disarm()
{
	d_step {
		nr_asleep--;
		stood = (wake == ARMED);
		if
#ifdef MUT_DISARM_FOR_ALL
		:: wake == ARMED -> wake = AWAKE
#else
		:: wake == ARMED && nr_asleep == 0 -> wake = AWAKE
#endif
		:: else
		fi;
		others = nr_asleep > 0
	}
}

#if defined(MUT_NOT_PASSED_ON)
#define PASSED_ON left_polling
#elif defined(MUT_BARRIER_NOT_PASSED_ON)
#define PASSED_ON drained
#else
#define PASSED_ON (drained || left_polling)
#endif

inline arm_found()
{
	disarm();
	if
	:: stood && (was_clear || drained) && !others -> due = BELL_CLEAR
	:: else
	fi;
	/* Rings that were drained may have been another's; and who arms behind us while our membarrier is under way has none of its own */
	if
	:: PASSED_ON && others -> ring_bell()
	:: else
	fi
}

/* The lock of the rx lane is held for the taking only */
inline take_one()
{
	d_step {
		if
		:: head < tail -> head++; taken++; got = true
		:: else -> got = false
		fi
	}
}

#ifdef MUT_NO_SECOND_LOOK
#define SOMETHING_CAME false
#else
#define SOMETHING_CAME (head < tail)
#endif

/* Until there is `news`, or the bell rings. Whoever drained before we were counted has left bytes behind. */
inline sleep_counted(news, over)
{
	nr_threads++;
#ifndef MUT_COUNTED_WITHOUT_LOOK
	if
	:: news
	:: else ->
#endif
	(bell > 0 || over);
	due = (bell > 0 -> BELL_MAYBE : due);
#ifndef MUT_COUNTED_WITHOUT_LOOK
	fi;
#endif
	nr_threads--
}

/* sleep_begin(), the sleep, sleep_end(); ends when `over` holds too, which no real sleeper could know */
inline wait_for_bytes(i, over)
{
	was_clear = (due == BELL_CLEAR);
#ifdef PAST
	drain_unless_others();
#else
	drain_due();
#endif
#ifdef MUT_NO_ARM
	nr_asleep++;
#else
	arm(i);
#endif
	if
	:: SOMETHING_CAME -> arm_found()
	:: else ->
#ifdef MUT_DRAIN_AFTER_LOOK
		d_step { drained = bell > 0; bell = 0 };
#endif
#ifdef PAST
		sleep_counted(head < tail, over);
#else
		(bell > 0 || over);
		due = (bell > 0 -> BELL_MAYBE : due);
#endif
#ifdef MUT_DRAIN_ON_WAKING
		bell = 0;
#endif
		disarm()
	fi;
	#ifdef PAST
	unread = false;
#endif
	d_step { was_clear = false; drained = false; left_polling = false; stood = false; others = false; a = 0 }
}

proctype sender()
{
	byte w, n;
	do
	:: n < MESSAGES -> publish(); n++
	:: n == MESSAGES -> break
	od
}

#ifdef SLEEPERS
#define MAY_LEAVE(i) (i == 1)
#else
#define MAY_LEAVE(i) false
#endif
#define OVER (taken == MESSAGES)

proctype receiver(byte i)
{
	byte a;
	bool got, unread, was_clear, drained, left_polling, stood, others;
	do
	:: OVER -> break
	:: else ->
		take_one();
		if
		:: got ->
			if
			:: skip
			:: MAY_LEAVE(i) -> break
			:: enter_polling(i)
			fi
		:: !got -> wait_for_bytes(i, OVER)
		fi
	od
}

#ifdef PAST
/* Waits for more than what it has seen, as who waits for room only, and takes nothing */
proctype other()
{
	byte a, seen;
	bool unread, was_clear, drained, left_polling, stood, others;
	do
	:: OVER -> break
	:: else ->
		seen = tail;
		was_clear = (due == BELL_CLEAR);
		drain_unless_others();
		arm(0);
		if
		:: tail != seen -> arm_found()
		:: else ->
			sleep_counted(tail != seen, OVER);
			disarm()
		fi;
		d_step { unread = false; was_clear = false; drained = false; left_polling = false; stood = false; others = false; a = 0 }
	od
}
#endif

#ifdef STRAY
active proctype stray()
{
	if
	:: ring_bell()
	:: skip
	fi
}
#endif

#ifdef KILLED
/*
 * Two processes hold the sending end and share its lock and its private half of the ring. The first may be killed anywhere inside;
 * the second finds the lock held by the dead and takes it over, or closes: then the kernel's FIN is the bell. (A second holder
 * that neither sends nor closes is not here: what the dead one had published then waits for it.)
 */
bool locked, dead, first_over, fin, senders_over;

#define MAY_DIE if :: skip :: dead = true; goto out fi

proctype first()
{
	byte w;
	atomic { !locked -> locked = true }
	MAY_DIE;
	tail_buffered = tail_buffered + 1;
	MAY_DIE;
	d_step { tail = tail_buffered; w = wake; wake = (w == ARMED -> AWAKE : w) }
	MAY_DIE;
	if
	:: w == ARMED -> ring_bell()
	:: else
	fi;
	locked = false;
out:
	skip;
	d_step { tail = tail_buffered; first_over = true }
}

proctype second()
{
	byte w;
	bool over;
	if
	:: skip		/* closes without another call */
	:: atomic { !locked || dead && first_over -> over = locked; locked = true };
	   if
	   :: over ->
#if defined(MUT_TAKEOVER_SILENT)
		skip
#elif defined(MUT_TAKEOVER_LOOKS)
		d_step { w = wake; wake = (w == ARMED -> AWAKE : w) }
		if
		:: w == ARMED -> ring_bell()
		:: else
		fi
#else
		ring_bell()		/* whatever the wake word says: the dead may have taken ARMED away and not rung */
#endif
	   :: else
	   fi;
	   if
	   :: publish()
	   :: skip
	   fi;
	   locked = false;
	   if
	   :: over -> senders_over = true; goto open		/* lives on and says no more */
	   :: skip
	   fi
	fi;
	first_over;
	fin = true;
	senders_over = true;
open:
	skip
}

#define NOTHING_LEFT (senders_over && head == tail_buffered)

proctype heir()
{
	byte a;
	bool got, was_clear, drained, left_polling, stood, others;
	do
	:: NOTHING_LEFT -> break
	:: else ->
		take_one();
		if
		:: got
		:: !got -> wait_for_bytes(0, fin || NOTHING_LEFT)
		fi
	od
}

init {
	atomic { run first(); run second(); run heir() }
}

#elif defined(TWO_BELLS)
/* An end with a thread that waits for bytes (0) and one that waits for room (1); the peer brings both, in any order. */
byte wake_of[2], bell_of[2];
bool there[2];

#ifdef MUT_ONE_BELL
#define BELL(i) bell_of[0]
#else
#define BELL(i) bell_of[i]
#endif

proctype waiter(byte i)
{
	do
	:: there[i] -> break
	:: else ->
		BELL(i) = 0;
		wake_of[i] = ARMED;
		if
		:: there[i]
		:: else -> BELL(i) > 0
		fi
	od
}

proctype bringer(byte i)
{
	byte w;
	there[i] = true;
	d_step { w = wake_of[i]; wake_of[i] = AWAKE }
	if
	:: w == ARMED -> BELL(i) = 1
	:: else
	fi
}

init {
	atomic { run waiter(0); run waiter(1); run bringer(0); run bringer(1) }
}

#else
init {
	atomic {
		run sender();
		run receiver(0);
#ifdef SLEEPERS
		run receiver(1)
#endif
#ifdef PAST
		run other()
#endif
	}
}
#endif
