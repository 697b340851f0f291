/* SPDX-License-Identifier: MIT */
/*
 * A lane goes back to TCP: the sender leaves the ring, the receiver drains it and discards what came twice, or goes away before it has.
 *
 * Stands for: shim/retreat.c, retreat_go.c (retreat_leave, retreat_resend, cut, retreat_go, retreat_follow, retreat_end_begin), the frames that shim/switch.c and
 * conn_probe.c write under the lane's move lock, and what conn_recv.c does at a drained ring. How a lane gets on the ring is switch.pml's
 * matter; here it is one announcement an epoch, so that a retreat can meet every state of it.
 *
 * The TCP stream is an array of cells, as in switch.pml: a program byte (its number), half a SWITCH frame of an epoch, a PROBE, the kernel's FIN.
 * Ring positions are of an epoch: a new rendezvous brings a new segment, w[epoch]. A byte of the ring keeps its number.
 *
 * The sender may leave the ring by itself, be asked to, exec into an image that knows nothing of frames (PLAIN), close, or be killed between any
 * two of its steps, the move lock in hand. The receiver may ask, and may exec: then its successor takes whatever lies in the socket for data.
 * Default: one lane, a stream. With -DPAIR two single-threaded ends exchange bytes over two lanes in blocking calls, and either may exec.
 *
 * What must hold: bytes arrive in order, once each, to whichever image reads; a frame never reaches a program; the end is told after the last
 * byte; who may not go keeps the socket from the new image (reset), and only for the reasons that RETREAT.md lists; everybody comes to an end.
 */
#ifndef BYTES
#define BYTES 3
#endif
#ifdef PAIR
#define LANES 2
#else
#define LANES 1
#endif
#ifndef EPOCHS
#define EPOCHS 1
#endif
#ifndef ROOM
#define ROOM 2		/* cells that the kernel holds unread */
#endif
#define RSIZE 2		/* bytes that the ring holds unread */
#define CELLS 20

#define F1 16		/* + epoch */
#define F2 20
#define PROBE 24
#define KFIN 30
#define IS_DATA(c) ((c) < F1)

/* The sender's roads */
#define S_TCP 0
#define S_FRAME 1	/* the rest of the frame is owed */
#define S_RING 2
#define S_BACK 3	/* has left the ring; the bytes from y to the tail are to go out before anything else */
#define S_PLAIN 4	/* another image */
/* The receiver's */
#define R_TCP 0
#define R_RING 1
#define R_BACK 2	/* the ring is drained; frames, then bytes that came twice */
#define R_PLAIN 3

#define NO 0
#define BACK 1		/* asked: leave the ring, I drain it */
#define GONE 2		/* asked: I read the ring no more, what lies from the head on goes over TCP, and no frame */
#define LEFT 1		/* left: TCP has the bytes from x on, those up to the tail first */
#define CUT 2		/* left: TCP has those from x to y, then what follows the tail */

#define FREE 0
#define BY_S 1
#define BY_R 2

typedef words_t {
	bool announced;
	byte ann_at;
	bool voided;
	bool acked;
	bool owing;		/* half a frame lies in the stream */
	bool framed;		/* a whole one */
	byte probes;
	byte ring[BYTES];
	byte tail;
	byte head;
	byte asked;
	byte left;
	byte x;
	byte y;
	byte held;		/* the move lock */
	byte given;		/* bytes in front of the frame that a receiver which goes gives back, from number gave_from on */
	byte gave_from;
	byte regiven;		/* of which so many were sent again */
};

typedef lane_t {
	byte cell[CELLS];
	byte wr;
	byte rd;
	bool fin;
	bool shut;		/* the sender's end was told, not made by its death */
	bool dead;		/* the sender was killed */
	words_t w[EPOCHS + 1];	/* the last is never used */
	byte road;
	byte sent;
	byte se;		/* the sender's epoch */
	bool probed;
	bool left_once;
	byte rroad;
	byte re;
	byte got;
	byte taken;		/* probes of this epoch */
	byte discarded;
	bool ended;
};
lane_t lane[LANES];
bool was_reset;

#define L(l) lane[l]
#define S(l) lane[l].w[lane[l].se]
#define R(l) lane[l].w[lane[l].re]
#define UNREAD(l) (lane[l].wr - lane[l].rd)
#define HAS_ROOM(l) (UNREAD(l) < ROOM)
#define LINKED(l) (lane[l].se == lane[l].re && lane[l].se < EPOCHS)

inline kernel_write(l, c)
{
	d_step { L(l).cell[L(l).wr] = c; L(l).wr++ }
}

inline data_write(l)
{
	d_step { L(l).cell[L(l).wr] = L(l).sent; L(l).wr++; L(l).sent++ }
}

inline hand_out(l, b)
{
	assert(IS_DATA(b));	/* a frame never reaches a program */
	assert(b == L(l).got);	/* in order, once each */
	L(l).got++
}

/* Bounded in C: who holds it is inside a few system calls that do not block. The dead hold it no more once their stream has ended. */
#ifdef MUT_DEAD_HOLDER
#define MAY_TAKE_OVER(l) false
#else
#define MAY_TAKE_OVER(l) L(l).fin
#endif

inline lock(l, words, who)
{
	atomic { (words.held == FREE || was_reset || who == BY_R && MAY_TAKE_OVER(l)) -> words.held = who }
}

inline unlock(words)
{
	words.held = FREE
}

/* ---- The sender ---- */

#ifdef PAIR
#define MAY_DIE skip
#else
#define MAY_DIE if :: skip :: L(l).dead = true; goto dead fi
#endif

inline void_announcement(l)
{
	if
	:: S(l).announced && !S(l).voided -> S(l).voided = true
	:: else
	fi
}

#ifdef MUT_DATA_BEFORE_OWED
#define ALL_PUSHED(l) true
#else
#define ALL_PUSHED(l) ((S(l).y >= S(l).tail || S(l).left == CUT) && !HAS_GIFT(l))
#endif
#define HAS_GIFT(l) (S(l).asked == GONE && S(l).regiven < S(l).given)
#define OWES_RING(l) (L(l).road == S_BACK && S(l).y < S(l).tail && S(l).left != CUT)
#define OWES(l) (OWES_RING(l) || L(l).road == S_BACK && HAS_GIFT(l))
/* Pushing may wait for who needs it: the program's next bytes, or a receiver that has gone */
#define MUST_PUSH(l) (OWES(l) && S(l).asked == GONE && (HAS_ROOM(l) || S(l).head > S(l).y))
#define MAY_FRAME(l) (L(l).road == S_TCP && S(l).announced && !S(l).voided && S(l).acked && L(l).wr == S(l).ann_at && HAS_ROOM(l))
#define MAY_ANNOUNCE(l) (L(l).road == S_TCP && LINKED(l) && !S(l).announced && S(l).asked == NO)
/* The link is given up; a new rendezvous needs both ends to have done so */
#ifdef MUT_NEXT_TOO_SOON
#define MAY_BEGIN_ANEW(l) (L(l).road == S_BACK)
#else
#define MAY_BEGIN_ANEW(l) (L(l).road == S_BACK && !OWES(l))
#endif
/* The receiver has taken everything: nothing more has to be sent twice */
#ifdef MUT_CUT_UNTAKEN
#define MAY_CUT(l) OWES_RING(l)
#else
#define MAY_CUT(l) (OWES_RING(l) && S(l).head == S(l).tail)
#endif

/* retreat_leave(): the ring's tail is final, TCP goes on from where the receiver is */
inline leave(l)
{
	lock(l, S(l), BY_S);
#ifdef MUT_FROM_TAIL		/* nothing is sent again: a receiver that goes later has bytes in the ring before those in its socket */
	d_step { S(l).x = S(l).tail; S(l).y = S(l).tail }
#else
	d_step { S(l).x = S(l).head; S(l).y = S(l).x }
#endif
	MAY_DIE;
	S(l).left = LEFT;
	L(l).road = S_BACK;
	L(l).left_once = true;
	unlock(S(l))
}

/* retreat_push(): one piece of what is owed, in any call, and whenever the socket has room */
inline push(l)
{
#ifndef MUT_PUSH_WITHOUT_LOCK
	lock(l, S(l), BY_S);
#endif
	if
#ifndef MUT_NO_SKIP
	:: S(l).asked == GONE && S(l).head > S(l).y -> S(l).y = S(l).head
#endif
	:: S(l).asked != GONE && MAY_CUT(l) -> S(l).left = CUT
	:: else
	fi;
	if
#ifdef MUT_GIFT_LAST
	:: S(l).y >= S(l).tail && HAS_GIFT(l) && HAS_ROOM(l) ->
#else
	:: HAS_GIFT(l) && HAS_ROOM(l) ->
#endif
		MAY_DIE;
		kernel_write(l, S(l).gave_from + S(l).regiven);
		MAY_DIE;
		S(l).regiven++
#ifdef MUT_GIFT_LAST
	:: S(l).y < S(l).tail && S(l).left != CUT && HAS_ROOM(l) ->
#else
	:: !HAS_GIFT(l) && S(l).y < S(l).tail && S(l).left != CUT && HAS_ROOM(l) ->
#endif
		MAY_DIE;
		kernel_write(l, S(l).ring[S(l).y]);
		MAY_DIE;
		S(l).y++
	:: else
	fi;
#ifndef MUT_PUSH_WITHOUT_LOCK
	unlock(S(l))
#else
	skip
#endif
}

/* A frame goes out only to a receiver that is still there, and so that it cannot go meanwhile */
inline probe(l)
{
	lock(l, S(l), BY_S);
	if
#ifndef MUT_PROBE_UNASKED
	:: S(l).asked == GONE
#endif
	:: else ->
		kernel_write(l, PROBE + L(l).se);
		MAY_DIE;
		S(l).probes++
	fi;
	unlock(S(l))
}

inline frame(l)
{
	lock(l, S(l), BY_S);
	if
#ifndef MUT_FRAME_UNASKED
	:: S(l).asked == GONE -> S(l).voided = true
#endif
	:: else ->
		S(l).owing = true;
		kernel_write(l, F1 + L(l).se);
		L(l).road = S_FRAME;
		MAY_DIE
	fi;
	unlock(S(l))
}

inline frame_rest(l)
{
	lock(l, S(l), BY_S);
	kernel_write(l, F2 + L(l).se);
	MAY_DIE;
	d_step { S(l).framed = true; S(l).owing = false }
	L(l).road = S_RING;
	unlock(S(l))
}

inline ring_write(l)
{
	S(l).ring[S(l).tail] = L(l).sent;
	d_step { S(l).tail++; L(l).sent++ }
}

/* Whatever a call of the sender's end does on the way, and no call must */
inline serve(l)
{
	if
	:: MAY_ANNOUNCE(l) -> d_step { S(l).ann_at = L(l).wr; S(l).announced = true }
	:: MAY_FRAME(l) -> frame(l)
	:: L(l).road == S_FRAME && HAS_ROOM(l) -> frame_rest(l)
	:: L(l).road == S_RING && S(l).asked != NO -> leave(l)
	:: L(l).road == S_RING && !L(l).left_once -> leave(l)		/* of its own accord */
	:: L(l).road == S_RING && S(l).asked == NO && !L(l).probed && HAS_ROOM(l) -> L(l).probed = true; probe(l)
	:: OWES(l) && (HAS_ROOM(l) || MUST_PUSH(l) || MAY_CUT(l)) -> push(l)
	:: MAY_BEGIN_ANEW(l) -> d_step { L(l).se++; L(l).road = S_TCP }
#ifdef PAIR
	:: skip
#else
	:: else
#endif
	fi
}

/* What a sender that sleeps, for whatever, is woken for and has to do */
#ifdef MUT_NOT_SERVED		/* a wait for bytes of the other lane does nothing for this one */
#define CALLS_SENDER(l) false
#else
#define CALLS_SENDER(l) (L(l).road == S_RING && S(l).asked != NO || MUST_PUSH(l))
#endif

inline answer(l)
{
	if
	:: L(l).road == S_RING && S(l).asked != NO -> leave(l)
	:: MUST_PUSH(l) -> push(l)
	:: else
	fi
}

/*
 * exec, or the descriptor given away: never waits for the receiver. What does not fit stays in the ring, for a receiver that has it; one that
 * has gone needs it in the socket.
 */
inline sender_goes(l)
{
	void_announcement(l);
	if
	:: L(l).road == S_RING -> leave(l)
	:: else
	fi;
	do
	:: OWES(l) && (HAS_ROOM(l) || MUST_PUSH(l) || MAY_CUT(l)) -> push(l)
	:: else -> break
	od;
	if
#ifndef MUT_OWED_FRAME_LEFT
	:: L(l).road == S_FRAME -> was_reset = true
#endif
	:: OWES(l) ->
		lock(l, S(l), BY_S);
		if
		:: S(l).asked == GONE && S(l).head > S(l).y -> S(l).y = S(l).head
		:: else
		fi;
		if
		:: S(l).asked == GONE && (S(l).y < S(l).tail || HAS_GIFT(l)) -> was_reset = true
		:: S(l).asked != GONE && S(l).y < S(l).tail ->
#ifndef MUT_CUT_UNTOLD
			d_step { S(l).left = CUT; L(l).road = S_PLAIN }
#else
			skip
#endif
		:: else
		fi;
		unlock(S(l))
	:: else
	fi;
	L(l).road = S_PLAIN
}

/*
 * shutdown, close, exit. The ring outlives the sender; one whose reader has gone is emptied into the socket first, and of any other ring what the
 * socket takes at once, for a reader that goes later.
 */
inline sender_ends(l)
{
	do
	:: L(l).road == S_RING && S(l).head < S(l).tail -> leave(l)
	:: OWES(l) && (HAS_ROOM(l) || MAY_CUT(l)) -> push(l)
	:: OWES(l) && !HAS_ROOM(l) && S(l).asked != GONE ->
		lock(l, S(l), BY_S);
		if
		:: OWES(l) && S(l).asked != GONE -> d_step { S(l).left = CUT; L(l).road = S_PLAIN }
		:: else
		fi;
		unlock(S(l))
	:: L(l).road == S_RING && S(l).asked == GONE -> leave(l)
	:: MUST_PUSH(l) -> push(l)
	:: was_reset -> break
	:: !was_reset && !((L(l).road == S_RING || OWES(l)) && S(l).asked == GONE) ->
		/* told and ended so that nobody goes in between */
		lock(l, S(l), BY_S);
		if
		:: S(l).asked == GONE && (L(l).road == S_RING || OWES(l)) -> unlock(S(l))
		:: else -> d_step { L(l).cell[L(l).wr] = KFIN; L(l).wr++; L(l).fin = true; L(l).shut = true }; unlock(S(l)); break
		fi
	od
}

/* ---- The receiver ---- */

/*
 * With -DAT_S, what shim/switch.c does where little is unread: it acknowledges when it stands at S, and no frame ever lies behind bytes that nobody has read.
 * Elsewhere in the model it may be anywhere before.
 */
#if defined(AT_S) && !defined(MUT_ACK_EARLY)
#define STANDS(l) (L(l).rd == R(l).ann_at)
#else
#define STANDS(l) (L(l).rd <= R(l).ann_at)
#endif

inline acknowledge(l)
{
	if
	:: L(l).rroad == R_TCP && LINKED(l) && R(l).announced && !R(l).voided && !R(l).acked && STANDS(l) -> R(l).acked = true
	:: else
	fi
}

inline tell_end(l)
{
	/* A sender that was killed before it could answer one that has gone is the one loss that there is */
	assert(L(l).got == L(l).sent || L(l).dead && L(l).rroad == R_PLAIN);
	L(l).ended = true
}

/* retreat_follow(): the words are read after the cell: whoever cut has said so before it wrote on */
inline follow(l)
{
#ifdef MUT_CUT_BEFORE_CELL
	total = (R(l).left == CUT -> R(l).y : R(l).tail) - R(l).x;
#endif
	d_step { n = UNREAD(l); p1 = (n > 0 -> L(l).cell[L(l).rd] : 0) }
#ifndef MUT_CUT_BEFORE_CELL
	total = (R(l).left == CUT -> R(l).y : R(l).tail) - R(l).x;
#endif
	if
#ifdef MUT_PROBES_LEFT
	:: false
#else
	:: L(l).taken < R(l).probes && n > 0 && p1 != KFIN ->
		assert(p1 == PROBE + L(l).re);
		d_step { L(l).rd++; L(l).taken++ }
#endif
	:: L(l).taken < R(l).probes && n == 0
	:: n > 0 && p1 == KFIN && (L(l).taken < R(l).probes || L(l).discarded < total) -> tell_end(l)
#ifdef MUT_NO_DISCARD
	:: L(l).discarded < total -> L(l).discarded = total
#else
	:: L(l).taken >= R(l).probes && L(l).discarded < total && n > 0 && p1 != KFIN ->
		assert(IS_DATA(p1));
		d_step { L(l).rd++; L(l).discarded++ }
	:: L(l).taken >= R(l).probes && L(l).discarded < total && n == 0
#endif
#ifdef MUT_PROBES_LEFT
	:: L(l).discarded >= total ->
#else
	:: L(l).taken >= R(l).probes && L(l).discarded >= total ->
#endif
		d_step { L(l).rroad = R_TCP; L(l).re++; L(l).taken = 0; L(l).discarded = 0 }
	fi;
	n = 0; p1 = 0; total = 0
}

/* A peek that looks behind a ring that was left and is not drained: what is not the program's goes out of the socket in advance */
inline clear(l)
{
	d_step { n = UNREAD(l); p1 = (n > 0 -> L(l).cell[L(l).rd] : 0) }
	total = (R(l).left == CUT -> R(l).y : R(l).tail) - R(l).x;
	if
	:: L(l).taken < R(l).probes && n > 0 && p1 != KFIN ->
		assert(p1 == PROBE + L(l).re);
		d_step { L(l).rd++; L(l).taken++ }
	:: L(l).taken >= R(l).probes && L(l).discarded < total && n > 0 && p1 != KFIN ->
		assert(IS_DATA(p1));
		d_step { L(l).rd++; L(l).discarded++ }
	:: else
	fi;
	n = 0; p1 = 0; total = 0
}

inline read_ring(l)
{
	v = R(l).tail;
	if
	:: R(l).head < v ->
		hand_out(l, R(l).ring[R(l).head]);
		R(l).head++
	:: R(l).head == v ->
		/* What says that the tail is final comes before the last look at it */
		p2 = R(l).left;
		d_step { n = UNREAD(l); p1 = (n > 0 -> L(l).cell[L(l).rd] : 0) }
#ifndef MUT_LEFT_WITHOUT_DRAIN
		v = R(l).tail;
#endif
		if
		:: R(l).head < v
		:: R(l).head >= v && p2 != NO -> L(l).rroad = R_BACK
		:: R(l).head >= v && p2 == NO && n > 0 && p1 == KFIN -> tell_end(l)
		:: R(l).head >= v && p2 == NO && n > 0 && p1 == PROBE + L(l).re -> d_step { L(l).rd++; L(l).taken++ }
		/* Resent bytes that came between the two looks */
		:: R(l).head >= v && p2 == NO && n > 0 && p1 != KFIN && p1 != PROBE + L(l).re -> assert(R(l).left != NO)
		:: R(l).head >= v && p2 == NO && n == 0
		fi
	fi;
	n = 0; p1 = 0; p2 = 0; v = 0
}

/* At S: the cell, then void; see switch.pml */
inline read_tcp(l)
{
	d_step { n = UNREAD(l); p1 = (n > 0 -> L(l).cell[L(l).rd] : 0); p2 = (n > 1 -> L(l).cell[L(l).rd + 1] : 0) }
	if
	:: n == 0
	:: n > 0 && p1 == KFIN -> tell_end(l)
	:: n > 0 && IS_DATA(p1) -> L(l).rd++; hand_out(l, p1)
	:: n > 1 && p1 >= F1 && p1 != KFIN && p2 == F2 + L(l).re ->
		assert(p1 == F1 + L(l).re && R(l).acked && L(l).rd == R(l).ann_at);
		d_step { L(l).rd = L(l).rd + 2; L(l).rroad = R_RING }
	:: n > 1 && p1 >= F1 && p1 != KFIN && p2 == KFIN -> L(l).rd++; tell_end(l)	/* died, or closed, inside the frame */
	:: n == 1 && p1 >= F1 && p1 != KFIN -> assert(p1 == F1 + L(l).re && R(l).acked)
	:: n > 1 && p1 >= F1 && p1 != KFIN && p2 != KFIN && p2 != F2 + L(l).re -> assert(false)
	fi;
	n = 0; p1 = 0; p2 = 0
}

inline read_plain(l)
{
	d_step { n = UNREAD(l); p1 = (n > 0 -> L(l).cell[L(l).rd] : 0) }
	if
	:: n == 0
	:: n > 0 && p1 == KFIN -> tell_end(l)
	:: n > 0 && p1 != KFIN -> L(l).rd++; hand_out(l, p1)
	fi;
	n = 0; p1 = 0
}

inline read_any(l)
{
	if
	:: L(l).rroad == R_TCP -> read_tcp(l)
	:: L(l).rroad == R_RING -> read_ring(l)
	:: L(l).rroad == R_BACK -> follow(l)
	:: L(l).rroad == R_PLAIN -> read_plain(l)
	fi
}

#define HALF_ONLY(l) (L(l).rroad == R_TCP && UNREAD(l) == 1 && L(l).cell[L(l).rd] >= F1 && L(l).cell[L(l).rd] != KFIN)
#define MAY_ACK(l) (L(l).rroad == R_TCP && LINKED(l) && R(l).announced && !R(l).voided && !R(l).acked && STANDS(l))
#define WAKES(l) (UNREAD(l) > 0 && !HALF_ONLY(l) || L(l).rroad == R_RING && (R(l).head < R(l).tail || R(l).left != NO) || \
		  L(l).rroad == R_BACK && L(l).taken == R(l).probes && L(l).discarded >= (R(l).left == CUT -> R(l).y : R(l).tail) - R(l).x || MAY_ACK(l) || was_reset)

#define MAY_CLEAR(l) (L(l).rroad == R_RING && R(l).left != NO && UNREAD(l) > 0 && L(l).cell[L(l).rd] != KFIN && \
		      (L(l).taken < R(l).probes || L(l).discarded < (R(l).left == CUT -> R(l).y : R(l).tail) - R(l).x))

#define Y_OR_HEAD(l) (R(l).y < R(l).head -> R(l).y : R(l).head)

#ifdef MUT_GO_WITHOUT_LOCK
#define TAKE_LOCK(l) skip
#define GIVE_LOCK(l) skip
#else
#define TAKE_LOCK(l) lock(l, R(l), BY_R)
#define GIVE_LOCK(l) unlock(R(l))
#endif

/*
 * retreat_go(): the receiver's image ends, its socket goes on. Everything in the socket that is not the successor's to read is taken out,
 * and the sender is told from where to go on. `keep`: it cannot be done, the successor does not get the socket.
 */
inline receiver_goes(l)
{
	TAKE_LOCK(l);
	keep = false;
	if
	:: L(l).rroad == R_TCP && R(l).acked && R(l).owing ->
#ifdef MUT_GO_INTO_FRAME
		skip
#else
		keep = true
#endif
	:: L(l).rroad == R_TCP && R(l).acked && !R(l).owing && R(l).framed && L(l).rd < R(l).ann_at ->
#ifdef MUT_GO_BEFORE_FRAME
		skip
#else
		/* What nobody has read goes back to the sender, which can send it again as long as it has not ended */
#ifdef AT_S
		assert(false);
#endif
		if
#ifndef MUT_GIFT_TO_ENDED
		:: L(l).fin || R(l).left != NO -> keep = true
#else
		:: R(l).left != NO -> keep = true
#endif
		:: else ->
			d_step {
				R(l).gave_from = L(l).cell[L(l).rd]; R(l).given = R(l).ann_at - L(l).rd;
				L(l).rd = R(l).ann_at + 2; L(l).rroad = R_RING
			}
		fi
#endif
	/* An announced switch is carried out first */
	:: L(l).rroad == R_TCP && R(l).acked && !R(l).owing && R(l).framed && L(l).rd >= R(l).ann_at -> d_step { L(l).rd = L(l).rd + 2; L(l).rroad = R_RING }
	:: else
	fi;
	if
	:: keep || L(l).rroad == R_TCP || L(l).rroad == R_PLAIN
	/* Who has ended sends nothing any more: what is not in the socket never comes */
	:: !keep && L(l).rroad != R_TCP && L(l).fin && R(l).head < R(l).tail && (R(l).left == NO || R(l).y < R(l).tail) -> keep = true
	:: !keep && L(l).rroad != R_TCP && L(l).fin && R(l).head == R(l).tail && (R(l).left == NO || R(l).left == LEFT && R(l).y < R(l).tail) ->
		L(l).rd = L(l).wr - 1		/* killed in the middle of a frame or a piece: all of it is Ringway's */
	:: !keep && L(l).rroad != R_TCP && R(l).left == CUT && R(l).head < R(l).tail ->
		assert(L(l).road == S_PLAIN);	/* nobody else leaves it to the ring alone */
		keep = true
	:: !keep && L(l).rroad != R_TCP && R(l).left == CUT && R(l).head == R(l).tail ->
		L(l).rd = L(l).rd + (R(l).probes - L(l).taken) + (R(l).y - R(l).x - L(l).discarded)
	/* It has not read what a peek has taken out of the socket */
	:: !keep && L(l).rroad != R_TCP && !(L(l).fin && R(l).y < R(l).tail) && R(l).left == LEFT && R(l).x + L(l).discarded > Y_OR_HEAD(l) ->
#ifdef MUT_GO_AFTER_PEEK
		L(l).rd = L(l).rd + (R(l).probes - L(l).taken)
#else
		keep = true
#endif
	:: !keep && L(l).rroad != R_TCP && !(L(l).fin && R(l).y < R(l).tail) && R(l).left == LEFT && R(l).x + L(l).discarded <= Y_OR_HEAD(l) ->
		L(l).rd = L(l).rd + (R(l).probes - L(l).taken) + (Y_OR_HEAD(l) - R(l).x - L(l).discarded)
	:: !keep && L(l).rroad != R_TCP && !L(l).fin && R(l).left == NO ->
#ifndef MUT_FRAMES_LEFT
		L(l).rd = L(l).rd + (R(l).probes - L(l).taken)
#else
		skip
#endif
	fi;
	if
	:: keep -> was_reset = true
	:: else -> R(l).asked = GONE
	fi;
	L(l).rroad = R_PLAIN;
	L(l).discarded = 0; L(l).taken = 0; keep = false;
	GIVE_LOCK(l)
}

#ifndef PAIR
/* ---- one lane, a stream ---- */

#define l 0

active proctype sender()
{
	do
	:: was_reset -> goto out
	:: !was_reset && L(l).road == S_TCP && L(l).sent < BYTES && HAS_ROOM(l) -> void_announcement(l); MAY_DIE; data_write(l)
	:: !was_reset && L(l).road == S_RING && L(l).sent < BYTES && S(l).tail - S(l).head < RSIZE && S(l).asked == NO ->
		ring_write(l);
		MAY_DIE
	:: !was_reset && L(l).road == S_BACK && ALL_PUSHED(l) && L(l).sent < BYTES && HAS_ROOM(l) -> MAY_DIE; data_write(l)
	:: !was_reset && L(l).road == S_PLAIN && L(l).sent < BYTES && HAS_ROOM(l) -> data_write(l)
	:: !was_reset && (MAY_ANNOUNCE(l) || MAY_FRAME(l) || L(l).road == S_FRAME && HAS_ROOM(l) ||
	   L(l).road == S_RING && (S(l).asked != NO || !L(l).left_once || !L(l).probed && HAS_ROOM(l)) ||
	   OWES(l) && (HAS_ROOM(l) || MUST_PUSH(l) || MAY_CUT(l)) || MAY_BEGIN_ANEW(l)) -> serve(l)
	:: !was_reset && L(l).road != S_PLAIN && L(l).sent < BYTES -> sender_goes(l)
	/* The exec succeeds, and nobody has the socket: any time after the sender has gone, however long its threads sent on */
	:: !was_reset && (L(l).sent == BYTES || L(l).road == S_PLAIN) -> break
	od;
	sender_ends(l);
	goto out;
dead:
	skip;
	d_step { L(l).cell[L(l).wr] = KFIN; L(l).wr++; L(l).fin = true };
out:
	skip
}

active proctype receiver()
{
	byte n, p1, p2, v, total, early;
	bool keep;
	do
	:: was_reset || L(l).ended -> break
	:: else ->
		if
		:: acknowledge(l)
		:: L(l).rroad == R_RING && R(l).asked == NO -> R(l).asked = BACK
		:: L(l).rroad != R_PLAIN && !L(l).ended -> receiver_goes(l)
		:: skip
		fi;
		if
		:: was_reset
		:: !was_reset -> read_any(l)
#ifdef MUT_PEEKS_ON
		:: !was_reset && L(l).rroad == R_RING && R(l).left != NO -> clear(l)
#else
		:: !was_reset && MAY_CLEAR(l) -> clear(l)
#endif
		fi;
		if
		:: L(l).ended || was_reset || WAKES(l)
		:: early < 1 -> early++
		fi
	od
}
#else
/* ---- two ends that send and receive in turn, each in one thread, in blocking calls ---- */

inline send_one(l)
{
	do
	:: was_reset -> break
	:: !was_reset ->
		if
		:: L(l).road == S_RING && S(l).asked != NO -> leave(l)
		:: L(l).road == S_FRAME && HAS_ROOM(l) -> frame_rest(l)
		:: L(l).road == S_RING && S(l).asked == NO && S(l).tail - S(l).head < RSIZE -> ring_write(l); break
		:: OWES(l) && (HAS_ROOM(l) || MUST_PUSH(l) || MAY_CUT(l)) -> push(l)
		:: was_reset -> break
		:: L(l).road == S_TCP -> void_announcement(l); (HAS_ROOM(l) || was_reset); data_write(l); break
		:: (L(l).road == S_PLAIN || L(l).road == S_BACK && ALL_PUSHED(l)) && HAS_ROOM(l) -> data_write(l); break
		fi
	od
}

proctype end(byte tx; byte rx)
{
	byte n, p1, p2, v, total, turn;
	bool keep, went;
	do
	:: turn == BYTES || was_reset -> break
	:: else ->
		if
		:: !went && !was_reset ->
			went = true;
			sender_goes(tx);
			receiver_goes(rx)
		:: skip
		fi;
		if
		:: tx == 0 || lane[rx].got > turn ->
			if
			:: !went -> serve(tx)
			:: else
			fi;
			send_one(tx)
		:: else
		fi;
		do
		:: lane[rx].got > turn || was_reset -> break
		:: else ->
			if
			:: !went ->
				answer(tx);
				if
				:: serve(tx)
				:: acknowledge(rx)
				fi
			:: else
			fi;
			if
			:: lane[rx].got <= turn && !was_reset ->
				read_any(rx);
				(lane[rx].got > turn || WAKES(rx) || !went && CALLS_SENDER(tx))
			:: else
			fi
		od;
		if
		:: tx == 1 && lane[tx].sent <= turn -> send_one(tx)
		:: else
		fi;
		turn++
	od;
	if
	:: !was_reset -> sender_ends(tx)
	:: else
	fi;
	do
	:: lane[rx].ended || was_reset -> break
	:: else -> read_any(rx); (lane[rx].ended || WAKES(rx))
	od
}

init {
	atomic { run end(0, 1); run end(1, 0) }
}
#endif
