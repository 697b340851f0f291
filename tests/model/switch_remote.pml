/* SPDX-License-Identifier: MIT */
/*
 * One lane leaves TCP for a ring of another host: the words and the ring's bytes travel on RDMA, the frames on TCP, and nothing orders the two
 * roads. The link may be lost at any moment: what it has not delivered is gone, and each end finds out at any later time.
 *
 * Stands for the switch between hosts (VERBS.md). switch.pml has the switch on one host, where the words come before the bytes.
 *
 * The TCP stream is an array of cells, as in switch.pml: a program byte (its number), half a SWITCH frame, a FIN frame with a position, the kernel's FIN or reset. A
 * program byte may look like the first half of the frame (LOOKS). What the device has delivered (inq) stays readable when the link is lost;
 * a sender may wait until the device says that it has.
 *
 * What must hold: bytes arrive in order, once each; a frame never reaches the program, data is never taken for a frame, nobody honest is called a liar; the
 * program sees the end only after the last byte, or a reset; both programs come to an end.
 */
#ifndef BYTES
#define BYTES 3
#endif
#define ANNOUNCEMENTS 2
#define ROOM 2
#define CELLS 10

#define LOOKS 16
#define F1 32
#define F2 33
#define KFIN 34
#define KRST 35
#define FINF 48		/* + the final position */

#define WORDS 0
#define RINGBYTE 1

#define ON_TCP 0
#define IN_FRAME 1
#define ON_RING 2

byte cell[CELLS], wr, rd;
chan wire = [4] of { byte, byte, byte, byte };	/* kind, announce_seq or byte, announce_at, void_seq */
chan inq = [8] of { byte, byte, byte, byte };	/* delivered */
byte posted, delivered;
byte ack_way, ack_seen;		/* the receiver's word: on its way, arrived */
bool lost, killed, failed, was_reset;	/* failed: lost by itself, not by the sender's end */

/* The sender's */
byte road, sent, seq, at, voided, on_ring;
bool standing;
/* The receiver's */
byte got, acked, cap, see_seq, see_at, see_void, last_acked, arrived, taken;
byte stored[BYTES];
bool proven, told_end, told_reset;

#define UNREAD (wr - rd)
#define HAS_ROOM (UNREAD < ROOM)

/* The link, until it is lost */
active proctype link()
{
	byte k, a, b, c;
end:
	do
	:: atomic { !lost && nempty(wire) -> wire ? k, a, b, c; inq ! k, a, b, c; delivered++; k = 0; a = 0; b = 0; c = 0 }
	:: atomic { !lost && ack_seen != ack_way -> ack_seen = ack_way }
#ifndef CLEAN
	:: atomic { !lost && posted > 0 -> lost = true; failed = true }
#endif
	od
}

inline kernel_write(c)
{
	d_step { cell[wr] = c; wr++ }
}

inline post(kind, what)
{
	atomic {
		if
		:: !lost -> wire ! kind, what, at, voided; posted++
		:: else		/* goes nowhere */
		fi
	}
}

/* A send on a lane that is on TCP */
inline send_data()
{
	if
	:: looks = true
	:: looks = false
	fi;
	if
	:: standing ->
		voided = seq;
		standing = false;
		if
		:: mark = posted + 1; post(WORDS, seq)
		:: !looks	/* the bytes say it, and it goes with the next announcement */
		fi;
#ifndef MUT_NOT_CONFIRMED
		if
		:: looks ->
			(delivered >= mark || lost);
			if
			:: delivered >= mark
#ifndef MUT_LOST_AND_SENT
			:: else -> was_reset = true; kernel_write(KRST); goto out
#else
			:: else
#endif
			fi
		:: else
		fi
#endif
	:: else
	fi;
	HAS_ROOM;
	d_step { cell[wr] = (looks -> sent + LOOKS : sent); wr++; sent++ }
	looks = false; mark = 0
}

#ifdef MUT_NO_ACK
#define ACKED true
#else
#define ACKED (ack_seen == seq)
#endif

#ifdef CLEAN
#define MAY_DIE skip
#else
#define MAY_DIE if :: skip :: killed = true; goto dead fi
#endif

proctype sender()
{
	bool looks;
	byte mark;
	do
	:: road == ON_TCP && sent < BYTES -> MAY_DIE; send_data()
	:: road == ON_TCP && !standing && seq < ANNOUNCEMENTS && !lost ->
		d_step { seq++; at = sent; standing = true }
		post(WORDS, seq)
	/* A link that is known to be lost ends the switch; the sender need not know */
	:: road == ON_TCP && standing && sent == at && ACKED && HAS_ROOM ->
		standing = false;
		kernel_write(F1);
		road = IN_FRAME
	:: road == IN_FRAME && HAS_ROOM ->
		MAY_DIE;
		kernel_write(F2);
		road = ON_RING
	:: road == IN_FRAME && lost ->
#ifdef MUT_TORN_GOES_ON
		road = ON_TCP
#else
		was_reset = true; kernel_write(KRST); goto out
#endif
	:: road == ON_RING && sent < BYTES && !lost ->
		post(RINGBYTE, sent);
		d_step { sent++; on_ring++ }
		MAY_DIE
	:: road == ON_RING && lost -> was_reset = true; kernel_write(KRST); goto out
	:: sent == BYTES && road != IN_FRAME -> break
	od;
	if
	:: road == ON_RING ->
#ifndef MUT_FIN_AND_DESTROY
		(delivered == posted || lost);
#endif
		MAY_DIE;
		HAS_ROOM;
		kernel_write(FINF + on_ring)
	:: else
	fi;
dead:
	kernel_write(KFIN);
out:
	/* the queue pair goes with the process, or with the close */
	lost = true
}

inline hand_out(b)
{
	assert(b < LOOKS * 2);
	assert(b % LOOKS == got);
	got++
}

inline tell_end()
{
	assert(got == sent);
	assert(killed || got == BYTES);
	told_end = true
}

/* Never without cause, and never while the sender thinks that the lane is on TCP: there the kernel's end is the end */
inline tell_reset()
{
	assert(was_reset || killed || failed);
	assert(was_reset || road != ON_TCP);
	told_reset = true
}

/* Everything that the link has delivered */
inline drain()
{
	do
	:: atomic { nempty(inq) -> inq ? k, a, b, c;
		if
		:: k == WORDS -> see_seq = a; see_at = b; see_void = c
		:: else -> stored[arrived] = a; arrived++
		fi; k = 0; a = 0; b = 0; c = 0 }
	:: empty(inq) -> break
	od
}

inline acknowledge()
{
	if
	:: see_seq > last_acked && see_void < see_seq && acked == 0 && !proven && got <= see_at ->
		d_step { cap = see_at; acked = see_seq; last_acked = see_seq; ack_way = see_seq }
	:: else
	fi
}

#define IS_VOID (see_void >= acked)

/* At S. The bytes decide; only a prefix needs the words. */
inline at_cap()
{
	d_step { n = UNREAD; p1 = cell[rd]; p2 = (n > 1 -> cell[rd + 1] : 0) }
	if
	:: n == 0
	:: n > 0 && p1 == KFIN -> tell_end()
	:: n > 0 && p1 == KRST -> tell_reset()
	:: n > 0 && p1 < LOOKS ->
#ifdef MUT_WORDS_DECIDE
		assert(IS_VOID);		/* an honest peer is called a liar */
#endif
		d_step { rd++; acked = 0 }
		hand_out(p1)
	:: n > 1 && p1 >= LOOKS && p1 < KFIN && p2 == F2 ->
		assert(p1 == F1);
		d_step { rd = rd + 2; proven = true; acked = 0 }
	:: n > 1 && p1 >= LOOKS && p1 < KFIN && p2 < KFIN && p2 != F2 ->
		d_step { rd++; acked = 0 }
		hand_out(p1)
	:: n > 0 && p1 >= LOOKS && p1 < KFIN && (n == 1 || p2 == KFIN || p2 == KRST) ->
#ifndef MUT_NO_DRAIN_AT_PREFIX
		drain();
#endif
		if
		:: IS_VOID -> d_step { rd++; acked = 0 }; hand_out(p1)
		:: !IS_VOID && n > 1 -> tell_reset()	/* a torn frame */
#ifdef MUT_LOST_MEANS_DATA
		:: !IS_VOID && n == 1 && lost -> d_step { rd++; acked = 0 }; hand_out(p1)
#endif
		:: else
		fi
	fi;
	n = 0; p1 = 0; p2 = 0
}

inline read_tcp()
{
	d_step { n = UNREAD; p1 = cell[rd]; rd = rd + (n > 0 && p1 != KFIN && p1 != KRST -> 1 : 0) }
	if
	:: n > 0 && p1 == KFIN -> tell_end()
	:: n > 0 && p1 == KRST -> tell_reset()
	:: n > 0 && p1 != KFIN && p1 != KRST -> hand_out(p1)
	:: else
	fi;
	n = 0; p1 = 0
}

inline read_ring()
{
	n = lost;		/* looked at before what had arrived by then */
	drain();
	p1 = (UNREAD > 0 -> cell[rd] : 0);
	if
	:: taken < arrived -> hand_out(stored[taken]); taken++
	:: taken == arrived && p1 == KRST -> tell_reset()
	:: taken == arrived && p1 == KFIN && fin == 0 ->
#ifdef MUT_END_WITHOUT_FIN
		tell_end()
#else
		tell_reset()
#endif
	:: taken == arrived && p1 >= FINF -> d_step { fin = p1; rd++ }
	:: taken == arrived && fin > 0 && fin - FINF == taken -> tell_end()
	:: taken == arrived && fin > 0 && fin - FINF > taken && n -> tell_reset()
	:: else
	fi;
	n = 0; p1 = 0
}

#define AT_CAP (acked != 0 && got == cap && !proven)
#define PREFIX (AT_CAP && UNREAD == 1 && cell[rd] >= LOOKS && cell[rd] < KFIN && see_void < acked)
#define FIN_WAITS (proven && fin > 0 && taken < fin - FINF)
#define WAKES (nempty(inq) || taken < arrived && proven || UNREAD > 0 && !PREFIX || fin > 0 && (!FIN_WAITS || lost))

proctype receiver()
{
	byte n, p1, p2, k, a, b, c, fin;
	do
	:: told_end || told_reset -> break
	:: else ->
		if
		:: drain(); acknowledge()
		:: skip
		fi;
		if
		:: proven -> read_ring()
		:: !proven && AT_CAP -> at_cap()
		:: !proven && !AT_CAP -> read_tcp()
		fi;
		(told_end || told_reset || WAKES || see_seq > last_acked && see_void < see_seq && acked == 0 && got <= see_at && !proven)
	od
}

init {
	atomic { run sender(); run receiver() }
}
