/* SPDX-License-Identifier: MIT */
/*
 * Rings between hosts: what the two engines (ringbuf/verbs*.c) and the two devices do with one another.
 *
 * Devices run by themselves: a channel of work requests is executed in order, completions appear in the other end's queue at any later time,
 * and an armed queue makes one event. Engines run only while their program is in a call, so a program that leaves is a process that ends
 * while its device goes on.
 *
 * Scenes: default (HELD), a sender that publishes, holds bytes back behind a closed gate, and leaves;  -DFETCH, what lies in the rings while
 * bytes that were fetched and bytes that are posted are both under way;  -DGONE, a receiver that has taken everything, some of it fetched, and
 * calls no more;  -DSPILL, two ends that both write much before they read;  -DOWED, a close while the receiver computes;  -DSLEEPERS, two threads asleep on one
 * completion channel, the pump's lock;  -DCREDITS, two ends that stream to each other through few receive requests;  -DENDS, FIN over TCP racing
 * bytes over RDMA, with a sender killed and a queue pair lost at any moment.
 *
 * Bytes are counts but in FETCH. What must hold: nothing is taken before it was published, nothing is
 * counted twice, everything that was published is taken in the end; no sleeper is left asleep; no message finds no receive request; the end is
 * told after the last byte, or a reset is.
 */
#define BYTE 0
#define CREDIT 1
#define REOPEN 2
#define READ 3
#define ACK 4

#if !defined(SLEEPERS) && !defined(CREDITS) && !defined(ENDS) && !defined(FETCH) && !defined(GONE) && !defined(SPILL) && !defined(OWED)
/* ---- a sender that holds and leaves ---- */
#ifndef BYTES
#define BYTES 5
#endif
#define RING 4
#ifndef WINDOW
#define WINDOW 2	/* messages in a row before the gate closes */
#endif
#define LARGE 3		/* so many bytes go out all the same */

/* The sender's end */
byte tail, shown, posted, head_seen, burst;
byte shown_buffered;	/* on x86 a store waits in a buffer while later loads pass */
bool closed, armed_a, event_a;
/* The receiver's end */
byte announced, fetched, head, reported;
bool held, armed_b, event_b;

chan wire = [6] of { byte, bool };	/* sender's device: length, HELD */
chan back = [4] of { byte, byte };		/* receiver's device: kind, head */
chan cq_a = [6] of { byte, byte };
chan cq_b = [6] of { byte, byte, bool };
chan acks = [6] of { byte };

#define AVAIL ((announced > fetched -> announced : fetched) - head)

/* A store reaches memory when it likes */
active proctype memory()
{
end:
	do
	:: atomic { shown != shown_buffered -> shown = shown_buffered }
	od
}

/* The devices: in order, each message at any later time; the acknowledgement of a signalled one later still */
active proctype device_a()
{
	byte k, n;
	bool h;
end:
	do
	:: atomic { wire ? n, h -> cq_b ! BYTE, n, h; event_b = event_b || armed_b; armed_b = false;
		    if :: h -> acks ! 0 :: else fi; n = 0; h = false }
	:: atomic { acks ? _ -> cq_a ! ACK, 0; event_a = event_a || armed_a; armed_a = false }
	od
}

active proctype device_b()
{
	byte k, n;
end:
	do
	:: atomic { back ? k, n ->
		if
		:: k == READ -> cq_b ! READ, shown, false; event_b = event_b || armed_b; armed_b = false
		:: else -> cq_a ! k, n; event_a = event_a || armed_a; armed_a = false
		fi; k = 0; n = 0 }
	od
}

inline poll_a()
{
	do
	:: atomic { nempty(cq_a) -> cq_a ? k, n;
		if
		:: k == ACK -> closed = false; burst = 0
		:: k == REOPEN -> closed = false; burst = 0; head_seen = n
		:: k == CREDIT -> head_seen = n; burst = (closed -> burst : 0)
		fi; k = 0; n = 0 }
	:: empty(cq_a) -> break
	od
}

#ifdef MUT_NO_HELD
#define SAYS_HELD false
#else
#define SAYS_HELD (closed && !was)
#endif

/* Everything that may go out; `leaving`: whatever the gate says */
inline post(leaving)
{
	do
	:: atomic { posted < tail && (!closed || leaving || tail - posted >= LARGE) ->
		burst++;
		was = closed;
		closed = closed || burst >= WINDOW;
		wire ! tail - posted, SAYS_HELD;	/* once: until it is answered, or its completion is seen */
		posted = tail; was = false }
	:: else -> break
	od
}

inline publish()
{
	tail++;
	shown_buffered = tail;
#ifndef MUT_NO_FENCE_BEFORE_POLL
	shown = shown_buffered;
#endif
	poll_a();
	post(false)
}

active proctype sender()
{
	byte k, n;
	bool was;
	do
	:: tail == BYTES -> break
	:: tail < BYTES && tail - head_seen < RING -> publish()
	:: tail < BYTES && tail - head_seen == RING ->
		armed_a = true;
		poll_a();
		post(true);
		if
		:: tail - head_seen < RING
		:: else -> event_a; event_a = false
		fi
	od
	/* leaves: bytes may be held, and no call will come */
}

inline poll_b()
{
	do
	:: atomic { nempty(cq_b) -> cq_b ? k, n, h;
		if
		:: k == BYTE ->
			announced = announced + n;
			assert(announced <= tail);
			held = held || h
		:: k == READ ->
#ifdef MUT_FETCHED_IS_ANNOUNCED
			announced = (n > announced -> n : announced)
#else
			fetched = (n > fetched -> n : fetched)
#endif
		fi;
		assert(head + AVAIL <= tail && AVAIL <= RING);
		k = 0; n = 0; h = false }
	:: empty(cq_b) -> break
	od
}

/* See FETCH; while a READ is under way this receiver sleeps, so its head stands still */
#define TELL (head > announced -> announced : head)
#ifdef MUT_NO_CREDIT
#define CREDIT_DUE false
#else
#define CREDIT_DUE (TELL - reported >= RING / 2)
#endif

inline fetch()
{
	held = false;
#ifdef MUT_READ_BEFORE_REOPEN
	back ! READ, 0;
	back ! REOPEN, TELL
#else
#ifndef MUT_NO_REOPEN
	back ! REOPEN, TELL;
	reported = TELL;
#endif
	back ! READ, 0
#endif
}

active proctype receiver()
{
	byte k, n;
	bool h;
	do
	:: head == BYTES -> break
	:: head < BYTES && AVAIL > 0 ->
		head++;
		if
		:: CREDIT_DUE -> back ! CREDIT, TELL; reported = TELL
		:: else
		fi
	:: head < BYTES && AVAIL == 0 ->
#ifdef MUT_ARM_AFTER_POLL
		poll_b();
		armed_b = true;
#else
		armed_b = true;
		poll_b();
#endif
		if
		:: CREDIT_DUE -> back ! CREDIT, TELL; reported = TELL
		:: else
		fi;
		if
		:: AVAIL > 0
		:: else ->
			if
#ifndef MUT_NO_FETCH
			:: held -> fetch()
#endif
			:: else
			fi;
			event_b; event_b = false
		fi
	od
}

#elif defined(SLEEPERS)
/* ---- two threads asleep on one channel, one pump ---- */
#define MESSAGES 3
#define AWAKE 0
#define ARMED 1
#define ASKED_LOOK 1
#define ASKED_ARM 2
#define ASKED_RUNG 4

byte cq, tail, head, word, nr_asleep;
bool armed, believed, event, bell;	/* armed: the device's; believed: ours, until the channel is drained */
bool locked;
byte asked;

active proctype device()
{
	byte n;
	do
	:: n < MESSAGES -> atomic { n++; cq++; event = event || armed; armed = false }
	:: else -> break
	od
}

inline work(w)
{
	if
	:: w >= ASKED_RUNG ->
#ifdef MUT_DRAIN_WITHOUT_ARMING
		d_step { event = false; believed = false }
#else
		d_step { event = false; believed = false }
		d_step { armed = true; believed = true }
#endif
	:: w < ASKED_RUNG && w >= ASKED_ARM && !believed ->
#ifndef MUT_POLL_BEFORE_ARM
		d_step { armed = true; believed = true }
#endif
	:: else
	fi;
	d_step { tail = tail + cq; cq = 0 }
#ifdef MUT_POLL_BEFORE_ARM
	if
	:: w >= ASKED_ARM -> d_step { armed = true; believed = true }
	:: else
	fi;
#endif
	d_step { was = word; word = AWAKE }
	if
	:: was == ARMED && tail == head -> word = ARMED
	:: was == ARMED && tail > head -> bell = true
	:: else
	fi
}

#define HAS(w, bit) ((w / bit) % 2 == 1)

/* Leave the mark, then try: who holds the lock looks at the marks once more after it has let go */
inline pump(why)
{
	d_step { if :: why == ASKED_RUNG && !HAS(asked, ASKED_RUNG) -> asked = asked + ASKED_RUNG
		    :: why == ASKED_ARM && !HAS(asked, ASKED_ARM) -> asked = asked + ASKED_ARM
		    :: why == ASKED_LOOK && !HAS(asked, ASKED_LOOK) -> asked = asked + ASKED_LOOK
		    :: else fi }
	do
	:: asked == 0 -> break
	:: else ->
		if
		:: atomic { locked -> break }
		:: atomic { !locked -> locked = true }
			d_step { w = asked; asked = 0 }
			work(w);
			locked = false;
			w = 0; was = 0;
#ifdef MUT_NO_LOOK_AGAIN
			break
#endif
		fi
	od;
	skip
}

inline take()
{
	d_step { if :: head < tail -> head++; got = true :: else -> got = false fi }
}

#define OVER (head == MESSAGES)

proctype thread(byte i)
{
	byte w, was;
	bool got, drained, others;
	do
	:: OVER -> break
	:: i == 1 -> pump(ASKED_LOOK); break	/* looks once more and leaves for good */
	:: else ->
		take();
		if
		:: got
		:: !got ->
			pump(ASKED_ARM);
			d_step { drained = bell; bell = false }
			d_step { nr_asleep++; word = ARMED }
			if
			:: head < tail || OVER ->
				d_step { nr_asleep--; others = nr_asleep > 0; word = (others -> word : AWAKE) }
				if :: others && drained -> bell = true :: else fi
			:: else ->
				(bell || event || OVER);
				if :: event -> pump(ASKED_RUNG) :: else fi;
				d_step { nr_asleep--; word = (nr_asleep > 0 -> word : AWAKE) }
			fi
		fi;
		d_step { got = false; drained = false; others = false }
	od
}

init {
	atomic { run thread(0); run thread(1) }
}

#elif defined(CREDITS)
/* ---- two ends, few receive requests ---- */
#define MESSAGES 5
#define RQ 4
#define RESERVE 2
#define BATCH 2
#define RING 4

typedef side_t {
	byte sent;		/* bytes posted; each is a message here */
	byte got;
	byte messages;		/* posted, of all kinds */
	byte granted;		/* receive requests that the peer has told us of, all together */
	byte credit;		/* the peer's head, as told */
	byte taken;		/* completions taken since the last batch was posted again */
	byte receives;		/* receive requests that we have posted, all together */
	byte told_receives;
	byte told_head;
	byte rq;		/* the device's: posted and not used */
	bool armed, event;
}
side_t side[2];
chan way0 = [8] of { byte, byte, byte };	/* length, head, receives */
chan way1 = [8] of { byte, byte, byte };
chan cq0 = [8] of { byte, byte, byte };
chan cq1 = [8] of { byte, byte, byte };

proctype device(byte to; chan way; chan cq)
{
	byte a, b, c;
end:
	do
	:: atomic { way ? a, b, c ->
		assert(side[to].rq > 0);	/* never a message without a request */
		side[to].rq--;
		cq ! a, b, c;
		side[to].event = side[to].event || side[to].armed; side[to].armed = false;
		a = 0; b = 0; c = 0 }
	od
}

#ifdef MUT_NO_RESERVE
#define LEFT_TO_CREDITS 0
#else
#define LEFT_TO_CREDITS RESERVE
#endif
#define KNOWN(i) (side[i].granted - side[i].messages)
#ifdef MUT_RECEIVES_UNREPORTED
#define CREDIT_DUE(i) (side[i].got - side[i].told_head >= RING / 2)
#else
#define CREDIT_DUE(i) (side[i].got - side[i].told_head >= RING / 2 || side[i].receives - side[i].told_receives >= RQ / 2)
#endif
#define MAY_SEND(i) (side[i].sent < MESSAGES && side[i].sent - side[i].credit < RING && KNOWN(i) > LEFT_TO_CREDITS)
#define MAY_TELL(i) (CREDIT_DUE(i) && KNOWN(i) > 0)

inline message(i, way, bytes)
{
	way ! bytes, side[i].got, side[i].receives;
	side[i].messages++;
	side[i].told_head = side[i].got;
	side[i].told_receives = side[i].receives
}

inline poll(i, cq)
{
	do
	:: atomic { nempty(cq) -> cq ? a, b, c;
		side[i].got = side[i].got + a;
		side[i].credit = b;
		side[i].granted = c;
		assert(KNOWN(i) <= RQ);
		side[i].taken++;
		if
#ifdef MUT_GRANTED_BEFORE_POSTED
		:: side[i].taken == BATCH -> side[i].receives = side[i].receives + BATCH; side[i].taken = 0
#else
		:: side[i].taken == BATCH -> side[i].rq = side[i].rq + BATCH; side[i].receives = side[i].receives + BATCH; side[i].taken = 0
#endif
		:: else
		fi;
		a = 0; b = 0; c = 0 }
	:: empty(cq) -> break
	od
}

proctype end_of(byte i; chan way; chan cq)
{
	byte a, b, c;
	do
	:: side[i].sent == MESSAGES && side[i].got == MESSAGES -> break
	:: else ->
		side[i].armed = true;
		poll(i, cq);
		if
		:: atomic { MAY_SEND(i) -> message(i, way, 1); side[i].sent++ }
		:: atomic { MAY_TELL(i) && !MAY_SEND(i) -> message(i, way, 0) }
		:: else ->
			if
			:: side[i].sent == MESSAGES && side[i].got == MESSAGES
			:: else -> side[i].event; side[i].event = false
			fi
		fi
	od
	/* A credit that is due is sent before the program leaves */
	do
	:: atomic { MAY_TELL(i) -> message(i, way, 0) }
	:: else -> break
	od
}

init {
	atomic {
		side[0].rq = RQ; side[0].receives = RQ; side[0].told_receives = RQ; side[0].granted = RQ;
		side[1].rq = RQ; side[1].receives = RQ; side[1].told_receives = RQ; side[1].granted = RQ;
		run device(1, way0, cq1); run device(0, way1, cq0);
		run end_of(0, way0, cq0); run end_of(1, way1, cq1)
	}
}

#elif defined(FETCH)
/* ---- what lies in the rings: WRITEs in order, READs that land at any later time ---- */
#ifndef BYTES
#define BYTES 6
#endif
#define RING 2

byte staging[RING], ring[RING], captured[RING];	/* a byte's content is its position + 1 */
byte tail, posted, head_seen;			/* the sender's */
byte announced, fetched, head, told;		/* the receiver's */
bool held, reading;
byte from, to;
chan wire = [2] of { byte, byte, bool };	/* position, content as the device took it, HELD */

#define RX_TAIL (announced > fetched -> announced : fetched)
/*
 * Neither what is being read from the sender nor what it has still to write is told as taken, or it would be overwritten there. GONE has what may be
 * told all the same.
 */
#ifdef MUT_TOLD_WHILE_FETCHING
#define KEPT head
#else
#define KEPT (reading && head > from -> from : head)
#endif
#ifdef MUT_TOLD_BEFORE_ANNOUNCED
#define MAY_TELL KEPT
#else
#define MAY_TELL (KEPT > announced -> announced : KEPT)
#endif

active proctype sender()
{
	do
	:: posted == BYTES -> break
	:: atomic { tail < BYTES && tail - head_seen < RING -> staging[tail % RING] = tail + 1; tail++ }
	/* Whether it posts or holds does not matter here; bytes that were fetched and taken are posted all the same */
	:: atomic { posted < tail && nfull(wire) ->
		if
		:: wire ! posted, staging[posted % RING], true
		:: wire ! posted, staging[posted % RING], false
		fi;
		posted++ }
	:: head_seen != told -> head_seen = told
	od
}

active proctype receiver()
{
	byte pos, what;
	bool h;
	do
	:: head == BYTES && announced == BYTES && !reading -> break
	:: atomic { wire ? pos, what, h -> ring[pos % RING] = what; announced = pos + 1; held = held || h; pos = 0; what = 0; h = false }
	:: atomic { head < RX_TAIL -> assert(ring[head % RING] == head + 1); head++ }
	:: atomic { told != MAY_TELL -> told = MAY_TELL }
	/* The peer's device reads its memory now; the answer lands later */
	:: atomic { held && !reading && head == RX_TAIL && tail > head -> held = false; reading = true; from = head; to = tail;
		captured[0] = staging[0]; captured[1] = staging[1] }
	:: atomic { reading ->
		pos = from;
		do
		:: pos < to -> ring[pos % RING] = captured[pos % RING]; pos++
		:: else -> break
		od;
		pos = 0; reading = false; fetched = to }
	od
}

#elif defined(GONE)
/* ---- who has taken everything, some of it fetched, and never calls again, leaves no sender asleep for want of room ---- */
#ifndef BYTES
#define BYTES 4
#endif
#define RING 2
#define LOW 1			/* room that a sender waits for */

byte staging[RING], ring[RING], captured[RING];	/* a byte's content is its position + 1 */
/* The sender's. starved: it knows of no receive request; once, and any word from the receiver ends it */
byte tail, posted, acked, told_head, head_seen;
bool ahead, closed, starved, was_starved, asleep, leaves;
/* The receiver's */
byte announced, fetched, head, told, from, to;
bool held, gone;
/* The devices': what is being read is on its way as soon as it is captured, and lands at any later time */
byte landed;
bool under_way, came;

chan wire = [4] of { byte, bool };		/* up to which position, HELD; of no new bytes: only the word */
chan back = [4] of { byte, byte, bool, bool };	/* kind, head, ahead, fenced */
chan cq_a = [6] of { byte, byte, bool };
chan cq_b = [8] of { byte, byte, bool };

#define RX_TAIL (announced > fetched -> announced : fetched)
#define ROOM (RING - (tail - head_seen))
#define ANNOUNCED_HEAD (head > announced -> announced : head)

active proctype device_a()
{
	byte upto, i;
	bool h;
end:
	do
	:: atomic { wire ? upto, h ->
		i = landed;
		do
		:: i < upto ->
			assert(staging[i % RING] == i + 1);	/* nothing that is still to be written is overwritten */
			ring[i % RING] = staging[i % RING]; i++
		:: else -> break
		od;
		landed = (upto > landed -> upto : landed);
		cq_b ! BYTE, upto, h; upto = 0; h = false; i = 0 }
	od
}

active proctype device_b()
{
	byte k, n;
	bool a, f;
end:
	do
	:: atomic { nempty(back) ->
		back ? <k, n, a, f>;
		if
#ifndef MUT_NO_FENCE
		:: f && under_way -> k = 99			/* waits for the READ in front of it */
#endif
		:: else -> back ? k, n, a, f
		fi;
		if
		:: k == 99 -> skip
		:: k == READ && n == 0 -> cq_b ! READ, tail, false
		:: k == READ && n != 0 -> captured[0] = staging[0]; captured[1] = staging[1];
			under_way = true
		:: else -> cq_a ! k, n, a
		fi;
		n = 0; a = false; f = false;
		if
		:: k == 99 -> k = 0; !under_way
		:: else -> k = 0
		fi }
	od
}

/* What was read arrives */
active proctype landing()
{
	byte i;
end:
	do
	:: atomic { under_way ->
		i = from;
		do
		:: i < to -> ring[i % RING] = captured[i % RING]; i++
		:: else -> break
		od;
		i = 0; under_way = false; came = true }
	od
}

inline use_head()
{
	if
#ifdef MUT_AHEAD_AT_ONCE
	:: head_seen = told_head
#else
	:: !ahead -> head_seen = told_head
	:: ahead && acked >= told_head -> head_seen = told_head; ahead = false
	:: ahead && acked < told_head -> head_seen = (acked > head_seen -> acked : head_seen)
#endif
	fi
}

inline poll_a()
{
	atomic {
		acked = landed;
		closed = closed && posted != landed;
		do
		:: nempty(cq_a) -> cq_a ? k, n, a;
#ifndef MUT_STARVED_FOR_GOOD
			starved = false;
#endif
			if
			:: k == REOPEN || a -> closed = false
			:: else
			fi;
			if
			:: n != told_head -> assert(n > told_head && n <= tail); told_head = n; ahead = a
			:: else
			fi;
			k = 0; n = 0; a = false
		:: empty(cq_a) -> break
		od;
		use_head()
	}
}

/* All that may go out. What stays is told of once, whether it is held or lacks a receive request. */
inline post(leaving)
{
	atomic {
		if
		:: posted < tail && !starved && (!closed || leaving) ->
			if
			:: closed = true; wire ! tail, true; posted = tail
			:: wire ! tail, false; posted = tail
#ifdef MUT_STARVED_UNTOLD
			:: !was_starved -> starved = true; was_starved = true
#else
			:: !was_starved -> starved = true; was_starved = true; wire ! posted, true
#endif
			fi
		:: else
		fi
	}
}

active proctype sender()
{
	byte k, n;
	bool a;
	do
	:: tail == BYTES -> break
	:: tail < BYTES && ROOM > 0 -> atomic { staging[tail % RING] = tail + 1; tail++ }
		poll_a();
		post(false)
	:: tail < BYTES && ROOM < LOW ->
		poll_a();
		post(true);
		if
		:: ROOM >= LOW
		:: else ->
			/* The completion of what was posted is asked for where a head waits for it */
			asleep = true;
end_asleep:
#ifdef MUT_AHEAD_UNPROBED
			nempty(cq_a);
#else
			nempty(cq_a) || (ahead && acked != landed);
#endif
			asleep = false
		fi
	od
	leaves = true
}

inline poll_b()
{
	atomic {
		do
		:: nempty(cq_b) -> cq_b ? k, n, h;
			if
			:: k == BYTE -> announced = (n > announced -> n : announced); held = held || h
			:: k == READ ->
				if
				:: n > RX_TAIL -> from = RX_TAIL; to = n; back ! READ, 1, false, false
				:: else -> reading = false
				fi
			fi;
			k = 0; n = 0; h = false
		:: empty(cq_b) -> break
		od;
		if
		:: came -> came = false; reading = false; fetched = to
		:: else
		fi
	}
}

#ifdef MUT_ONLY_ANNOUNCED_IS_TOLD
#define TOLD ANNOUNCED_HEAD
#else
#define TOLD head
#endif
/* Reading bytes, and what is told reaches behind their beginning */
#define FENCED(h) (reading && to > from && h > from)

inline credit()
{
	atomic {
		if
		:: TOLD > told && TOLD - told >= RING / 2 ->
			told = TOLD;
			back ! CREDIT, told, told > announced, FENCED(told)
		:: else
		fi
	}
}

active proctype receiver()
{
	byte k, n;
	bool h, reading;
	do
	:: head == BYTES -> break
	:: RX_TAIL > head ->
		assert(ring[head % RING] == head + 1);
		atomic { head++; poll_b() }
		credit()
	:: RX_TAIL == head && head < BYTES ->
		poll_b();
		credit();
		if
		:: RX_TAIL > head
		:: RX_TAIL == head -> gone = true; break		/* and never calls again */
		:: RX_TAIL == head ->
			atomic {
				if
				:: held && !reading ->
					held = false; reading = true; from = 0; to = 0;
					told = (ANNOUNCED_HEAD > told -> ANNOUNCED_HEAD : told);
					back ! REOPEN, told, false, false;
					back ! READ, 0, false, false
				:: else
				fi
			};
			nempty(cq_b) || came
		fi
	od
}

/* Nothing moves any more */
active proctype monitor()
{
end:
	timeout ->
	assert(!asleep || head != tail);
	assert(gone || head == tail);
	assert(leaves || asleep)
}

#elif defined(SPILL)
/* ---- two ends that both write much before they read: who finds no room makes some for the other ---- */
#define RING 4
#define LOW 2			/* room that a sender waits for */
#define OVERFLOW 8
#define BYTES 9			/* each writes so many, more than a ring and its overflow's first filling, and then reads */

typedef end_t {
	byte ring[RING];	/* of what this end receives; a byte's content is its position + 1 */
	byte overflow[OVERFLOW];
	byte arrived, head, spilled, told;
	byte sent;		/* to the other */
}
end_t side[2];
chan wire0 = [2] of { byte };
chan wire1 = [2] of { byte };

#define FREED(i) (side[i].spilled > side[i].head -> side[i].spilled : side[i].head)

proctype device(byte to; chan wire)
{
	byte pos;
end:
	do
	:: atomic { wire ? pos -> side[to].ring[pos % RING] = pos + 1; side[to].arrived = pos + 1; pos = 0 }
	od
}

#ifdef MUT_SPILL_PAST_ROOM
#define FITS(i) true
#else
#define FITS(i) (side[i].arrived - side[i].head <= OVERFLOW)
#endif
#ifdef MUT_SPILL_ONCE
#define AGAIN(i) (side[i].spilled == 0)
#else
#define AGAIN(i) true
#endif
/* So much that the peer may be waiting, and room for all of it */
#ifdef MUT_NO_SPILL
#define MAY_SPILL(i) false
#else
#define MAY_SPILL(i) (side[i].arrived - FREED(i) >= RING - LOW + 1 && FITS(i) && AGAIN(i))
#endif

inline spill(i)
{
	upto = side[i].arrived;
	pos = FREED(i);
#ifdef MUT_FREED_BEFORE_COPIED
	side[i].told = upto;
#endif
	do
	:: pos < upto -> side[i].overflow[pos % OVERFLOW] = side[i].ring[pos % RING]; pos++
	:: else -> break
	od;
	atomic { side[i].spilled = upto; side[i].told = FREED(i); pos = 0; upto = 0 }
}

proctype end_of(byte i; chan wire)
{
	byte pos, upto;
	do
	:: side[i].sent == BYTES -> break
	:: side[i].sent < BYTES && side[i].sent - side[1 - i].told < RING -> atomic { wire ! side[i].sent; side[i].sent++ }
	:: side[i].sent < BYTES && side[i].sent - side[1 - i].told == RING ->
		if
		:: MAY_SPILL(i) -> spill(i)
		:: else
		fi;
		/* Asleep for room: woken by it, and by what arrives, which may have to make way, too */
		(side[i].sent - side[1 - i].told <= RING - LOW || MAY_SPILL(i))
	od;
	do
	:: side[i].head == BYTES -> break
	:: side[i].head < side[i].arrived ->
		atomic {
#ifdef MUT_SPILLED_READ_IN_PLACE
			assert(side[i].ring[side[i].head % RING] == side[i].head + 1);
#else
			assert(side[i].head >= side[i].spilled || side[i].overflow[side[i].head % OVERFLOW] == side[i].head + 1);
			assert(side[i].head < side[i].spilled || side[i].ring[side[i].head % RING] == side[i].head + 1);
#endif
			side[i].head++;
			side[i].told = FREED(i)
		}
	od
}

init {
	atomic { run device(1, wire0); run device(0, wire1); run end_of(0, wire0); run end_of(1, wire1) }
}

#elif defined(OWED)
/* ---- the receiver computes and posts no receive requests: who closes finds enough of them for all that it has to send ---- */
#define RING 6
#define PIECE 2			/* the largest message */
#define KEPT 1			/* for what is no bytes */
#define RQ 6

byte tail, posted, known = RQ;

#ifdef MUT_NOTHING_OWED
#define OWED_BY(size) 0
#else
/* As many as the rest of the ring takes in the largest messages, each of which takes its own */
#define OWED_BY(size) (size == PIECE -> 0 : KEPT + (RING - posted - size + PIECE - 1) / PIECE)
#endif

inline post(closing)
{
	do
	:: posted < tail ->
		size = (tail - posted < PIECE -> tail - posted : PIECE);
		if
		:: known > KEPT + (closing -> 0 : OWED_BY(size)) -> known--; posted = posted + size
		:: else -> break
		fi
	:: posted == tail -> break
	od
}

active proctype sender()
{
	byte size;
	do
	:: tail < RING -> tail++; post(false)
	:: tail + 1 < RING -> tail = tail + 2; post(false)
	:: break
	od;
	post(true);
	assert(posted == tail)
}

#else
/* ---- the end: FIN(X) and the kernel's end on TCP, bytes on RDMA ---- */
#define BYTES 3
#define FIN 10
#define KFIN 99

byte sent, arrived, taken;
bool killed, lost, gone;	/* lost: the queue pairs fail; gone: the sender's is destroyed */
bool told_end, told_reset;
chan tcp = [4] of { byte };
chan rdma = [4] of { byte };
byte landed;			/* executed by the device */

active proctype device()
{
	byte b;
end:
	do
	:: atomic { !lost && !gone && nempty(rdma) -> rdma ? b; landed++; b = 0 }
#ifndef CLEAN
	:: atomic { !lost && landed < BYTES -> lost = true }
#endif
	od
}

#ifdef CLEAN
#define MAY_DIE skip
#else
#define MAY_DIE if :: skip :: killed = true; goto out fi
#endif

active proctype sender()
{
	do
	:: sent < BYTES && !lost -> rdma ! sent; sent++; MAY_DIE
	:: lost -> break			/* a send call fails: the program closes */
	:: sent == BYTES -> break
	:: sent > 0 -> break			/* ends early */
	od;
	MAY_DIE;
#ifdef MUT_NO_FIN
#else
	tcp ! FIN + sent;
#endif
	MAY_DIE;
	/* the queue pair stays until the device has acknowledged everything */
#ifndef MUT_DESTROYED_AT_ONCE
	if
	:: landed == sent
	:: lost
#ifndef CLEAN
	:: killed = true			/* while it waits */
#endif
	fi;
#endif
out:
	atomic { gone = true; tcp ! KFIN }
}

#define DEAD (lost || gone)

active proctype receiver()
{
	byte x, f;
	bool have_fin, ended;
	do
	:: told_end || told_reset -> break
	:: else ->
		if
		:: landed > taken -> taken = landed
		:: atomic { nempty(tcp) -> tcp ? f;
			if
			:: f == KFIN -> ended = true
			:: else -> have_fin = true; x = f - FIN
			fi; f = 0 }
#ifdef MUT_END_AT_FIN
		:: ended && have_fin -> told_end = true
#else
		:: ended && have_fin && taken == x -> told_end = true
#endif
#ifdef MUT_END_WITHOUT_FIN
		:: ended && !have_fin && landed == taken -> told_end = true
#else
		:: ended && !have_fin -> told_reset = true
#endif
		/* A probe behind TCP's end finds out. What landed before the queue pair failed is taken first. */
#ifndef MUT_NO_PROBE
		:: ended && have_fin && DEAD && landed == taken && taken < x -> told_reset = true
#endif
		fi
	od;
	assert(!told_end || (taken == sent && have_fin));
	assert(!told_end || taken == x);
#ifdef CLEAN
	assert(told_end)		/* nobody failed: no reset either */
#endif
}
#endif
