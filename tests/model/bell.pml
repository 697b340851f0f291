/* SPDX-License-Identifier: MIT */
/*
 * Sleep and wake on one lane: publish and look at the wake word; drain, arm, fence, look again, sleep.
 *
 * Stands for: ring_publish() and the ring_rx_arm()/enter_polling()/leave_polling() of ringbuf/ring.h, barrier_heavy() of
 * ringbuf/barrier.c, bell_ring() and bell_drain() of ringbuf/doorbell.c, wait_lane(), conn_arm() and conn_disarm() of the shim, and the taking
 * over of a lane lock (shim/lane_lock.c). Waiting for room is the same with the roles exchanged; scene TWO_BELLS has both at one end.
 *
 * Stores are buffered as on x86 (TSO): a store becomes visible at any time after it was made, the processor's own later loads pass
 * it; a fence, an exchange and a system call empty the buffer, and membarrier empties everybody's. A bell is a count of datagrams
 * that is never more than two: a full one counts as rung. A sleeper that is never woken although bytes are there ends the run in an
 * invalid end state, which is what the search looks for.
 *
 * Scenes: default, one sender and one receiver that may poll, with a stray ring;  SLEEPERS, two threads receive, one leaves early;
 * KILLED, two processes share the sending lane, one is killed while it holds the lane's lock;  TWO_BELLS, an end with a
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
byte nr_asleep;		/* threads of this end that wait, or are about to */
/* Store buffers */
byte tail_buffered;	/* the sender's; equal to tail when empty */
byte wake_buffered[RECEIVERS] = NONE;
byte taken;

#define WAIT_FLUSH_SENDER	tail = tail_buffered
#define FLUSH_RECEIVER(i)	if :: wake_buffered[i] != NONE -> wake = wake_buffered[i]; wake_buffered[i] = NONE :: else fi

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

/* What is readable by a thread of the receiver: its own buffered store of the wake word first, as a processor does */
#define MY_WAKE(i) (wake_buffered[i] != NONE -> wake_buffered[i] : wake)

#ifdef MUT_NO_SENDER_FENCE
#define SENDER_FENCE skip
#else
#define SENDER_FENCE WAIT_FLUSH_SENDER
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

/* Enter the state in which the sender may leave its fence out; only from AWAKE, so that another sleeper's ARMED is never lost */
inline enter_polling(i)
{
#ifdef MUT_POLLING_STORED
	wake_buffered[i] = POLLING
#else
	d_step { FLUSH_RECEIVER(i); if :: wake == AWAKE -> wake = POLLING :: else fi }
#endif
}

/* Arms; a lane that was polling is made safe with the heavy fence before the caller looks again */
inline arm(i)
{
#ifdef MUT_NO_RECEIVER_FENCE
	wake_buffered[i] = ARMED
#else
	d_step { FLUSH_RECEIVER(i); a = wake; wake = ARMED }
#ifndef MUT_NO_MEMBARRIER
	if
	:: a == POLLING -> d_step { tail = tail_buffered }
	:: else
	fi
#endif
#endif
}

inline drain()
{
	bell = 0
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

/* Leaves with something: those who sleep on may have been meant by the ring that this thread has drained */
inline leave(i)
{
	nr_asleep--;
#ifdef MUT_DISARM_ON_LEAVING
	wake_buffered[i] = AWAKE;
#endif
}

#ifdef MUT_NO_BATON
#define PASS_BATON(i)
#else
#define PASS_BATON(i) if :: nr_asleep > 0 && head < tail -> ring_bell() :: else fi
#endif

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
	bool got;
	do
	:: OVER -> break
	:: else ->
		take_one();
		if
		:: got ->
			PASS_BATON(i);
			if
			:: skip
			:: MAY_LEAVE(i) -> break
#ifndef NO_POLLING
			:: enter_polling(i)
#endif
			fi
		:: !got ->
			nr_asleep++;
#ifndef MUT_DRAIN_AFTER_LOOK
			drain();
#endif
#ifdef MUT_NO_ARM
#else
			arm(i);
#endif
#ifdef MUT_NO_SECOND_LOOK
			if
			:: true ->
#else
			if
			:: head < tail
			:: else ->
#endif
#ifdef MUT_DRAIN_AFTER_LOOK
				drain();
#endif
				(bell > 0 || OVER)
			fi;
			leave(i);
#ifdef MUT_DRAIN_ON_WAKING
			drain()
#endif
		fi
	od
}

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
	bool got;
	do
	:: NOTHING_LEFT -> break
	:: else ->
		take_one();
		if
		:: got
		:: else ->
			drain();
			arm(0);
			if
			:: head < tail
			:: else -> (bell > 0 || fin || NOTHING_LEFT)
			fi
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
	}
}
#endif
