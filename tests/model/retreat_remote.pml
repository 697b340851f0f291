/* SPDX-License-Identifier: MIT */
/*
 * A lane between hosts comes back to TCP because its link is dead: RETREAT.md section 9.
 *
 * Stands for: shim/retreat_far.c (leave, retreat_far_frames, retreat_far_take, retreat_far_settle, retreat_far_is_short, retreat_far_end), shim/conn_far.c
 * (conn_far_stop), shim/retreat.c (resend_piece, retreat_follow) and the engine's settle() (ringbuf/verbs.c): bytes travel by a device that may stop at
 * any moment, as seen from either end or from one only; what has been acknowledged has landed, but the receiver's program need not have heard of it.
 *
 * One lane. The TCP stream is an array of cells, as in switch.pml: a program byte (its number), half a frame each, the kernel's FIN. What the receiver
 * tells by its own lane, HAVE, is a variable that the sender may read late, or not at all. The frames' positions are kept beside the cells.
 *
 * The sender may end, or be killed between any two steps. What must hold: bytes arrive in order, once each; a clean end comes behind the last byte of a
 * sender that has ended, and behind nothing missing of one that was killed; no reset while the sender lives; both come to an end.
 */
#ifndef BYTES
#define BYTES 4
#endif
#ifndef ROOM
#define ROOM 3		/* cells that the kernel holds unread */
#endif
#define RSIZE 2		/* bytes that the ring holds unread */
#define CELLS 20

#define PROBE1 20
#define PROBE2 21
#define FIN1 22
#define FIN2 23
#define UPTO1 24
#define UPTO2 25
#define BACK1 26
#define BACK2 27
#define KFIN 30
#define IS_DATA(c) ((c) < PROBE1)

/* TCP */
byte cell[CELLS];
byte wr, rd;
byte fin_at, upto, back_at;	/* what the frames say */
bool fin;			/* the kernel's */

/* The device: bytes before `landed` are in the receiver's memory, and the sender's device knows it at once, or never */
byte landed;
bool cut;			/* nothing gets through any more */
bool s_dead, r_dead;		/* this end's queue pair is in error, as it knows */

/* The sender */
byte sent;			/* by the program, on whichever road */
byte tail;			/* of the ring */
byte head_told;			/* the last credit */
bool left, told_all, killed;
byte resent, probe;		/* half a probe lies in the stream */

/* The receiver */
byte got, known, head;		/* known: what its program may read from the ring */
bool has_said;			/* HAVE */
byte has;
bool following, on_tcp, ended, was_reset, fin_seen;
byte short_of;			/* bytes that are to come before any others */
byte twice;

#define UNREAD (wr - rd)
#define HAS_ROOM (UNREAD < ROOM)

inline put(c)
{
	d_step { cell[wr] = c; wr++ }
}

inline hand_out(b)
{
	assert(IS_DATA(b));
	assert(b == got);
	got++
}

#define MAY_DIE if :: skip :: killed = true; goto dead fi

/* conn_far_stop(), settle(): nothing lands any more, and what has is known */
inline stop_receiver()
{
#ifdef MUT_STOCK_BEFORE_STOP
	skip
#else
	d_step { r_dead = true; cut = true; known = landed }
#endif
}

inline frame(a, b)
{
	HAS_ROOM;
	put(a);
	MAY_DIE;
	HAS_ROOM;
	put(b)
}

inline finish_probe()
{
#ifdef MUT_FRAMES_INSIDE_PROBE
	skip
#else
	if
	:: probe == 1 -> HAS_ROOM; put(PROBE2); probe = 0
	:: else
	fi
#endif
}

/* retreat_far_leave(), retreat_far_frames() */
inline leave()
{
	d_step {
		s_dead = true;
		cut = true;
		resent = head_told;
		if
		:: has_said && has > resent -> resent = has
		:: else
		fi;
#ifdef MUT_FROM_TAIL
		resent = tail;
#endif
		back_at = resent;
		upto = tail;
		left = true
	}
	finish_probe();
#ifndef MUT_NO_UPTO
	frame(UPTO1, UPTO2);
	MAY_DIE;
#endif
	frame(BACK1, BACK2);
	MAY_DIE
}

inline resend()
{
	do
#ifndef MUT_DATA_BEFORE_RESENT
	:: resent < tail -> HAS_ROOM; put(resent); resent++; MAY_DIE
#else
	:: resent < tail && sent == BYTES -> HAS_ROOM; put(resent); resent++; MAY_DIE
	:: resent < tail && sent < BYTES -> break
#endif
	:: resent == tail -> break
	od
}

active proctype sender()
{
	do
	:: !left && !s_dead && sent < BYTES && tail - head_told < RSIZE -> tail++; sent++
	/* A send that finds the link dead, a wait that does, an answer to the peer's leaving */
	:: !left && (s_dead || cut) -> MAY_DIE; leave(); resend()
	:: left && sent < BYTES -> HAS_ROOM; put(sent); sent++; MAY_DIE
	:: !left && sent < BYTES && probe == 0 && HAS_ROOM && wr < 4 -> put(PROBE1); probe = 1
	:: !left && probe == 1 && HAS_ROOM -> put(PROBE2); probe = 0
	:: sent == BYTES -> break
#ifdef MUT_SLEEPS_ON
	:: !left && sent < BYTES && tail - head_told == RSIZE -> MAY_DIE; if :: s_dead || cut || tail - head_told < RSIZE fi
#endif
	:: !left && !s_dead && !cut && sent < BYTES && tail - head_told == RSIZE -> MAY_DIE; if :: s_dead || cut || tail - head_told < RSIZE fi
	od;
	/* The end: by FIN when the device has acknowledged all, else by leaving */
	if
#ifdef MUT_FIN_UNACKED
	:: !left -> finish_probe(); d_step { fin_at = tail }; frame(FIN1, FIN2)
#else
	:: !left && landed == tail && !s_dead -> finish_probe(); d_step { fin_at = tail }; frame(FIN1, FIN2)
	:: !left && (s_dead || cut) -> leave(); resend()
#endif
	:: left -> resend()
	fi;
	told_all = true;
dead:
	skip;
	d_step { cell[wr] = KFIN; wr++; fin = true; cut = cut || killed }
}

/* Both devices, and the path between them */
active proctype device()
{
	do
	:: landed < tail && !cut && !s_dead && !r_dead -> landed++
	:: !cut && head_told < head -> head_told = head
	:: !cut -> cut = true; break
	:: cut || ended || was_reset -> break
	od;
	if
	:: cut && !killed -> s_dead = true
	:: skip
	fi
}

inline reset()
{
	/* Only where the sender was killed */
	assert(killed);
	was_reset = true
}

inline take_ring()
{
	hand_out(head);
	head++
}

/* conn_look(): a frame is in the socket */
inline look()
{
	if
	:: cell[rd] == PROBE1 && UNREAD > 1 && cell[rd + 1] == PROBE2 -> rd = rd + 2
	:: cell[rd] == FIN1 && UNREAD > 1 && cell[rd + 1] == FIN2 -> rd = rd + 2; fin_seen = true
	:: cell[rd] == UPTO1 && UNREAD > 1 && cell[rd + 1] == UPTO2 -> rd = rd + 2
	:: cell[rd] == BACK1 && UNREAD > 1 && cell[rd + 1] == BACK2 ->
		rd = rd + 2;
		stop_receiver();
		d_step {
			following = true;
			assert(back_at <= known || back_at == upto);
			twice = known - back_at;
			short_of = upto - known
		}
	:: cell[rd] == KFIN ->
		/* What has landed before it is there; without a word of the end the last may be missing */
		known = landed;
		if
		:: head < known
#ifdef MUT_END_WITHOUT_WORD
		:: head == known -> rd++; ended = true
#else
		:: head == known && fin_seen && known == fin_at -> rd++; ended = true
		:: head == known && !(fin_seen && known == fin_at) -> reset()
#endif
		fi
	:: UNREAD > 1 && (cell[rd] == PROBE1 || cell[rd] == FIN1 || cell[rd] == UPTO1 || cell[rd] == BACK1) && cell[rd + 1] == KFIN ->
		/* the beginning of a frame, then the end: killed */
		reset()
	:: else -> assert(false)	/* no honest peer is called a liar */
	fi
}

active proctype receiver()
{
	do
	:: ended || was_reset -> break
	/* The engine: what has landed becomes known, while the link lives and as often as it is looked at */
	:: !r_dead && !on_tcp && known < landed -> known++
	:: !on_tcp && head < known -> take_ring()
	/* Its own leaving tells what it has: an end of the other lane's that it makes at any time */
	:: !has_said && (cut || s_dead || r_dead) -> stop_receiver(); d_step { has = known; has_said = true }
	:: !following && !was_reset && UNREAD > 0 && (UNREAD > 1 || cell[rd] == KFIN) && (cell[rd] != KFIN || head == known) -> look()
	/* retreat_follow(): what came twice */
	:: following && !on_tcp && head == known && twice > 0 && UNREAD > 0 && cell[rd] != KFIN ->
#ifdef MUT_NO_DISCARD
		twice--
#else
		rd++; twice--
#endif
	:: following && !was_reset && !on_tcp && twice > 0 && UNREAD > 0 && cell[rd] == KFIN && head == known -> reset()
	:: following && !on_tcp && head == known && twice == 0 -> on_tcp = true
	:: on_tcp && UNREAD > 0 && cell[rd] != KFIN ->
		hand_out(cell[rd]);
		rd++;
		if
		:: short_of > 0 -> short_of--
		:: else
		fi
	:: on_tcp && !was_reset && UNREAD > 0 && cell[rd] == KFIN ->
#ifdef MUT_NO_UPTO
		rd++; ended = true
#else
		if
		:: short_of > 0 -> reset()
		:: else -> rd++; ended = true
		fi
#endif
	od;
	if
	:: ended -> assert(got == sent || killed && got >= tail)
	:: else
	fi;
	if
	:: told_all -> assert(!was_reset)
	:: else
	fi
}
