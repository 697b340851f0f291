/* SPDX-License-Identifier: MIT */
/*
 * One lane leaves TCP for a ring: announce, acknowledge, SWITCH frame, ring, end.
 *
 * Stands for: shim/switch.c (switch_announce, switch_ack, switch_take, the voiding of a data call) and the frame reader and writer
 * of shim/frame.c. The bells are bell.pml's matter: here a wait is simply a wait for one of the conditions that the C code is rung for.
 *
 * The TCP stream is an array of cells with a write and a read position, so that peeking is what it is in the kernel. A cell is a
 * program byte (its number), half a SWITCH frame, a PROBE, a FIN frame, or the kernel's own FIN. A program byte may look like the
 * first half of the frame (LOOKS): only the whole frame cannot be forged, since it is mixed from both nonces.
 *
 * The sender may be killed between any two of its steps; its kernel then ends the stream (FIN) behind whatever was written.
 * Two scenes: the default is a stream with a killed sender and a reader that was already inside the kernel when the segment came;
 * with -DPAIR two single-threaded ends exchange messages over two lanes, blocking, so that a wait in one lane for the other shows.
 * With -DNOORDER the sender's words reach the receiver at any later time (another host's memory): void is then no proof of
 * anything, and the bytes alone must decide.
 *
 * What must hold: bytes arrive in order, once each; a frame never reaches the program; the program sees the end only after the last
 * byte; an honest peer is never called a liar; every run ends with both programs done.
 */
#ifndef BYTES
#define BYTES 3		/* program bytes a lane carries */
#endif
#ifndef ANNOUNCEMENTS
#define ANNOUNCEMENTS 2
#endif
#ifdef PAIR
#define LANES 2
#else
#define LANES 1
#endif
#define ROOM 2		/* cells the kernel holds unread: small, so that writes are cut short */
#define CELLS 10

#define LOOKS 16
#define F1 32
#define F2 33
#define PROBE 34
#define FINF 35
#define KFIN 36

/* Sender's road */
#define ON_TCP 0
#define IN_FRAME 1
#define ON_RING 2

/* The kernel's stream of a lane; absolute positions */
typedef lane_t {
	byte cell[CELLS];
	byte wr;
	byte rd;
	/* the segment's words: one u64 holds seq and S, so that they are read as one */
	byte ann_seq;
	byte ann_at;
	byte void_seq;
	byte ack_seq;
	/* the ring */
	byte ring[BYTES];
	byte tail;
	byte head;
	/* receiver's view of the sender's words: differs from them with -DNOORDER only */
	byte see_seq;
	byte see_at;
	byte see_void;
	/* sender's private state */
	byte road;
	byte sent;
	byte seq;
	bool standing;		/* an announcement of ours stands */
	bool probed;
	/* receiver's private state */
	byte got;		/* program bytes handed out */
	byte acked;		/* 0: nothing acknowledged that still binds us */
	byte cap;
	bool proven;
	bool ended;		/* the program has been told of the end */
};
lane_t lane[LANES];
bool killed;
bool raw_reader;		/* a thread is inside a kernel read that began before the segment was there */

#ifdef NOORDER
chan link = [4] of { byte, byte, byte };
#define SHOW_ANN(l) link ! lane[l].ann_seq, lane[l].ann_at, lane[l].void_seq
#else
#define SHOW_ANN(l) d_step { lane[l].see_seq = lane[l].ann_seq; lane[l].see_at = lane[l].ann_at; lane[l].see_void = lane[l].void_seq }
#endif

#define UNREAD(l) (lane[l].wr - lane[l].rd)
#define HAS_ROOM(l) (UNREAD(l) < ROOM)
#define AT_CAP(l) (lane[l].acked != 0 && lane[l].got == lane[l].cap && !lane[l].proven)

inline kernel_write(l, c)
{
	d_step { lane[l].cell[lane[l].wr] = c; lane[l].wr++ }
}

/* FIN needs no room */
inline kernel_fin(l)
{
	d_step { lane[l].cell[lane[l].wr] = KFIN; lane[l].wr++ }
}

inline announce(l)
{
	lane[l].seq++;
	d_step { lane[l].ann_seq = lane[l].seq; lane[l].ann_at = lane[l].sent; lane[l].standing = true }
	SHOW_ANN(l)
}

/* The first step of every data call on a lane that is still on TCP */
inline void_announcement(l)
{
	if
	:: lane[l].standing ->
		lane[l].void_seq = lane[l].seq;
		lane[l].standing = false;
		SHOW_ANN(l)
	:: else
	fi
}

/* One byte of a data call; the caller has found room (a blocking call waits for it; the voiding has been done before the wait) */
inline data_write(l)
{
	if
	:: d_step { lane[l].cell[lane[l].wr] = lane[l].sent; lane[l].wr++; lane[l].sent++ }
	:: d_step { lane[l].cell[lane[l].wr] = lane[l].sent + LOOKS; lane[l].wr++; lane[l].sent++ }
	fi
}

inline ring_write(l)
{
	lane[l].ring[lane[l].tail] = lane[l].sent;
	d_step { lane[l].tail++; lane[l].sent++ }
}

#define MAY_SWITCH(l) (lane[l].road == ON_TCP && lane[l].standing && COUNT_OK(l) && ACK_OK(l))
#ifdef MUT_NO_ACK		/* the frame is written without the receiver's word */
#define ACK_OK(l) true
#else
#define ACK_OK(l) (lane[l].ack_seq == lane[l].seq)
#endif
#define COUNT_OK(l) (lane[l].sent == lane[l].ann_at)

#define NOT_PAST(l) (lane[l].got <= a_at)
#ifdef MUT_ACK_WITH_RAW_READER
#define NO_RAW_READER true
#else
#define NO_RAW_READER (!raw_reader)
#endif

/* Receiver: look at the announcement, at a call, under the rx lane's lock. One load of {seq, S}, one of void. */
inline ack(l)
{
	d_step { a_seq = lane[l].see_seq; a_at = lane[l].see_at }
	if
	:: a_seq != 0 && a_seq != lane[l].ack_seq && lane[l].acked == 0 && !lane[l].proven && NOT_PAST(l) && NO_RAW_READER ->
		d_step { lane[l].cap = a_at; lane[l].acked = a_seq }
		lane[l].ack_seq = a_seq
	:: else
	fi;
	a_seq = 0; a_at = 0
}

inline hand_out(l, b)
{
	assert(b < LOOKS * 2);			/* a frame never reaches the program */
	assert(b % LOOKS == lane[l].got);	/* in order, once each */
	lane[l].got++
}

inline tell_end(l)
{
	assert(lane[l].got == lane[l].sent);	/* all that a call has said was sent, killed or not */
	assert(killed || lane[l].got == BYTES);
	lane[l].ended = true
}

#define IS_VOID(l, v) (v >= lane[l].acked)

/*
 * At S with an acknowledgement out: frame or data? What is there is looked at first, the words after that: the sender stores void
 * before the data's system call, so data that is seen implies a void that is seen (without NOORDER).
 */
inline read_at_cap(l)
{
#ifdef MUT_VOID_BEFORE_PEEK
	v = lane[l].see_void;
#endif
	d_step {
		n = UNREAD(l);
		p1 = lane[l].cell[lane[l].rd];
		p2 = (n > 1 -> lane[l].cell[lane[l].rd + 1] : 0)
	}
#ifndef MUT_VOID_BEFORE_PEEK
	v = lane[l].see_void;
#endif
#ifdef MUT_VOID_EQUAL
	isvoid = (v == lane[l].acked);
#else
	isvoid = IS_VOID(l, v);
#endif
	if
	:: n == 0
	:: n > 0 && p1 == KFIN ->
		tell_end(l)
	:: n > 0 && p1 < LOOKS ->		/* not the frame's first bytes: data */
#ifndef NOORDER
		assert(isvoid);			/* else an honest peer would be pinned as a liar */
#endif
		d_step { lane[l].rd++; lane[l].acked = 0 }
		hand_out(l, p1)
	:: n > 0 && p1 != KFIN && p1 >= LOOKS && n > 1 && p2 == F2 ->
		assert(p1 == F1);
		d_step { lane[l].rd = lane[l].rd + 2; lane[l].proven = true; lane[l].acked = 0 }
	:: n > 0 && p1 != KFIN && p1 >= LOOKS && n > 1 && p2 != F2 && p2 != KFIN ->	/* only looked like it */
		d_step { lane[l].rd++; lane[l].acked = 0 }
		hand_out(l, p1)
	:: n > 0 && p1 != KFIN && p1 >= LOOKS && (n == 1 || p2 == KFIN) ->
		if
#ifndef MUT_PREFIX_WAITS
		:: isvoid ->
			d_step { lane[l].rd++; lane[l].acked = 0 }
			hand_out(l, p1)
#endif
		:: !isvoid && p2 == KFIN ->	/* the sender died inside the frame: its end is the end */
#ifdef NOORDER
			/* data or a torn frame: the words come before the link's own end is told */
			(len(link) == 0);
			if
			:: IS_VOID(l, lane[l].see_void) ->
				d_step { lane[l].rd++; lane[l].acked = 0 }
				hand_out(l, p1)
			:: else ->
				lane[l].rd++;
				tell_end(l)
			fi
#else
			lane[l].rd++;
			tell_end(l)
#endif
		:: else -> skip	/* wait for the rest, or for the void */
		fi
	fi;
	n = 0; p1 = 0; p2 = 0; v = 0; isvoid = false
}

#ifdef MUT_READ_PAST_S
#define TWO_MAY_BE_READ(l) true
#else
#define TWO_MAY_BE_READ(l) (lane[l].acked == 0 || lane[l].cap - lane[l].got > 1)
#endif

/* A read of at most two bytes, capped at S */
inline read_tcp(l)
{
	d_step {
		n = UNREAD(l);
		p1 = lane[l].cell[lane[l].rd];
		p2 = (n > 1 -> lane[l].cell[lane[l].rd + 1] : 0);
		if
		:: n > 1 && p1 != KFIN && p2 != KFIN && TWO_MAY_BE_READ(l) -> n = 2
		:: n > 0 && p1 == KFIN -> n = 3
		:: n == 0 -> skip
		:: else -> n = 1
		fi;
		lane[l].rd = lane[l].rd + (n < 3 -> n : 0)
	}
	if
	:: n == 1 -> hand_out(l, p1)
	:: n == 2 -> hand_out(l, p1); hand_out(l, p2)
	:: n == 3 -> tell_end(l)
	:: else
	fi;
	n = 0; p1 = 0; p2 = 0
}

/* The proven lane: ring bytes first, then frames, then the kernel's end. The ring and the socket are looked at one after the other. */
inline read_ring(l)
{
	v = lane[l].tail;
	if
	:: lane[l].head < v ->
		hand_out(l, lane[l].ring[lane[l].head]);
		lane[l].head++
	:: lane[l].head == v && UNREAD(l) > 0 ->
		p1 = lane[l].cell[lane[l].rd];
#ifndef MUT_END_WITHOUT_DRAIN
		v = lane[l].tail;	/* again: what was published before the end was seen must come before it */
#endif
		if
		:: p1 == PROBE -> lane[l].rd++
		:: p1 == FINF || p1 == KFIN ->
			if
			:: lane[l].head < v	/* drained first, then the frame is read again */
			:: else ->
				if
				:: p1 == KFIN -> tell_end(l)
				:: else -> lane[l].rd++
				fi
			fi
		:: else -> assert(false)
		fi;
		p1 = 0
	:: else
	fi;
	v = 0
}

inline read_any(l)
{
	if
	:: lane[l].proven -> read_ring(l)
	:: !lane[l].proven && AT_CAP(l) -> read_at_cap(l)
	:: !lane[l].proven && !AT_CAP(l) -> read_tcp(l)
	fi
}

/* What a blocked reader is woken for */
#ifdef MUT_PREFIX_WAITS
#define PREFIX_BINDS(l) true
#else
#define PREFIX_BINDS(l) (lane[l].see_void < lane[l].acked)
#endif
#define PREFIX_ONLY(l) (AT_CAP(l) && UNREAD(l) == 1 && lane[l].cell[lane[l].rd] >= LOOKS && lane[l].cell[lane[l].rd] != KFIN && \
			PREFIX_BINDS(l))
#define MAY_ACK(l) (lane[l].see_seq != 0 && lane[l].see_seq != lane[l].ack_seq && lane[l].acked == 0 && !lane[l].proven && \
		    lane[l].got <= lane[l].see_at)
#define WAKES_READER(l) (lane[l].proven && lane[l].head < lane[l].tail || UNREAD(l) > 0 && !PREFIX_ONLY(l) || MAY_ACK(l))

#ifdef NOORDER
active proctype link_moves()
{
	byte a, b, c;
end:
	do
	:: atomic { link ? a, b, c; lane[0].see_seq = a; lane[0].see_at = b; lane[0].see_void = c; a = 0; b = 0; c = 0 }
	od
}
#endif

#ifndef PAIR
/* ---- one lane, a stream ---- */

#define DIE goto dead
#define MAY_DIE if :: skip :: killed = true; DIE fi

init {
	atomic {
		if
		:: raw_reader = true; run raw()
		:: skip
		fi;
		run sender();
		run receiver()
	}
}

proctype sender()
{
	do
	:: lane[0].road == ON_TCP && lane[0].sent < BYTES ->
#ifdef MUT_VOID_AFTER_SEND
		HAS_ROOM(0);
		data_write(0);
		void_announcement(0)
#else
#ifndef MUT_NO_VOID
		void_announcement(0);
#else
		lane[0].standing = false;
#endif
		MAY_DIE;
		if
		:: HAS_ROOM(0) -> data_write(0)
		:: !HAS_ROOM(0)		/* EAGAIN: the announcement is void all the same */
		fi
#endif
	:: lane[0].road == ON_TCP && !lane[0].standing && lane[0].seq < ANNOUNCEMENTS -> announce(0)
	:: MAY_SWITCH(0) && HAS_ROOM(0) ->
		lane[0].standing = false;
		kernel_write(0, F1);
		lane[0].road = IN_FRAME
	:: lane[0].road == IN_FRAME && HAS_ROOM(0) ->
		MAY_DIE;
		kernel_write(0, F2);
		lane[0].road = ON_RING
#ifdef MUT_RING_BEFORE_FRAME
	:: lane[0].road == IN_FRAME && lane[0].sent < BYTES -> ring_write(0)
#endif
#ifdef MUT_DATA_INSIDE_FRAME
	:: lane[0].road == IN_FRAME && lane[0].sent < BYTES && HAS_ROOM(0) -> data_write(0)
#endif
	:: lane[0].road == ON_RING && lane[0].sent < BYTES ->
		ring_write(0);
		MAY_DIE
	:: lane[0].road == ON_RING && !lane[0].probed && HAS_ROOM(0) -> kernel_write(0, PROBE); lane[0].probed = true
	:: lane[0].sent == BYTES && lane[0].road != IN_FRAME -> break
	:: lane[0].sent == BYTES && lane[0].road == IN_FRAME && !HAS_ROOM(0) -> break	/* closed inside the frame */
	od;
	if
	:: lane[0].road == ON_RING -> HAS_ROOM(0); kernel_write(0, FINF)
	:: else
	fi;
dead:
	kernel_fin(0)
}

proctype receiver()
{
	byte n, p1, p2, v, a_seq, a_at, early;
	bool isvoid;
	do
	:: lane[0].ended -> break
	:: !lane[0].ended ->
		if
		:: ack(0)
		:: skip
		fi;
		if
		:: !raw_reader -> read_any(0)
		:: raw_reader	/* the other thread's read stands first in the kernel */
		fi;
		if
		:: lane[0].ended || !raw_reader && WAKES_READER(0)
		:: early < 2 -> early++		/* a non-blocking call, or woken by something else */
		fi
	od
}

/* Blocked in a plain read since before the segment was there; it takes up to two cells whatever has been agreed since */
proctype raw()
{
	byte n, p1, p2;
	atomic {
		raw_reader && UNREAD(0) > 0;
		p1 = lane[0].cell[lane[0].rd];
		p2 = (UNREAD(0) > 1 -> lane[0].cell[lane[0].rd + 1] : KFIN);
		n = (p1 == KFIN -> 0 : (p2 == KFIN -> 1 : 2));
		lane[0].rd = lane[0].rd + n;
		if
		:: n > 0 -> hand_out(0, p1)
		:: else
		fi;
		if
		:: n > 1 -> hand_out(0, p2)
		:: else
		fi;
		raw_reader = false
	}
}
#else
/* ---- two ends that send and receive in turn, each in one thread, in blocking calls ---- */

/* What any call may do on the way, and no call must: nobody waits for it */
inline poke(tx, rx)
{
	if
	:: ack(rx)
	:: lane[tx].road == ON_TCP && !lane[tx].standing && lane[tx].seq < ANNOUNCEMENTS -> announce(tx)
	:: MAY_SWITCH(tx) && HAS_ROOM(tx) ->
		lane[tx].standing = false;
		kernel_write(tx, F1);
		lane[tx].road = IN_FRAME
	:: lane[tx].road == IN_FRAME && HAS_ROOM(tx) ->
		kernel_write(tx, F2);
		lane[tx].road = ON_RING
	:: skip
	fi
}

inline send_one(tx)
{
	if
	:: lane[tx].road == IN_FRAME ->
#ifdef MUT_RING_BEFORE_FRAME
		ring_write(tx)
#else
		HAS_ROOM(tx);
		kernel_write(tx, F2);
		lane[tx].road = ON_RING;
		ring_write(tx)
#endif
	:: lane[tx].road == ON_RING -> ring_write(tx)
	:: lane[tx].road == ON_TCP ->
		void_announcement(tx);
		HAS_ROOM(tx);
		data_write(tx)
	fi
}

inline recv_one(tx, rx, want)
{
	do
	:: lane[rx].got >= want -> break
	:: else ->
		poke(tx, rx);
		read_any(rx);
		(lane[rx].got >= want || WAKES_READER(rx))
	od
}

proctype end(byte tx; byte rx)
{
	byte n, p1, p2, v, a_seq, a_at, turn;
	bool isvoid;
	do
	:: turn == BYTES -> break
	:: turn < BYTES ->
		if
		:: tx == 0 -> poke(tx, rx); send_one(tx); recv_one(tx, rx, turn + 1)
		:: tx == 1 -> recv_one(tx, rx, turn + 1); poke(tx, rx); send_one(tx)
		fi;
		turn++
	od;
	if
	:: lane[tx].road == ON_RING -> HAS_ROOM(tx); kernel_write(tx, FINF)
	:: else
	fi;
	kernel_fin(tx);
	do
	:: lane[rx].ended -> break
	:: else -> read_any(rx); (lane[rx].ended || WAKES_READER(rx))
	od
}

init {
	atomic { run end(0, 1); run end(1, 0) }
}
#endif
