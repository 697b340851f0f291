/* SPDX-License-Identifier: MIT */
/*
 * An end of a connection between hosts goes while its link lives: RETREAT.md section 9. Who goes has no lock over the sender's frames; both tell the other's device before
 * they look.
 *
 * Stands for: shim/retreat_far_go.c (say, note_left, await_end, retreat_far_frame_may), shim/retreat_go.c (await_switch, leave_ring_rx), shim/retreat_far.c,
 * shim/switch.c (switch_before_send), shim/conn_fin.c, and the engine's post_gone() and take_gone().
 *
 * One lane, whose receiver goes. What the sender posts to the receiver's device (a byte of the ring, the word that a frame comes) lands in order, and is known to have
 * when it has; so does the receiver's GONE at the other one. The TCP stream is an array of cells: a program byte (its number), a frame, the kernel's FIN.
 *
 * With FAMILY the ring stays readable for who has gone (a fork): what lies there is handed out, and taken away where it comes again. Else the successor has the socket alone. With
 * UNREAD a byte lies in front of the switch that the program may not have read when it forks: then the frames behind it cannot be looked for.
 *
 * What must hold: the bytes arrive in order, once each; no frame reaches the successor; a clean end comes behind the last byte; both come to an end.
 */
#ifndef BYTES
#define BYTES 3
#endif
#define CELLS 12
#ifdef UNREAD
#define FIRST 1		/* byte of the ring */
#else
#define FIRST 0
#endif
#define SWITCH 20
#define END 21
#define KFIN 22

#define STANDING 0	/* announced and acknowledged, the frame not written */
#define RING 1
#define RAW 2

byte cell[CELLS], wr, rd;
bool stopped;			/* the receiver's queue pair: nothing lands any more */

/* To the receiver's device: how many ring bytes were posted, and have landed; the word, behind those */
byte tail, landed;
byte told, told_landed;	/* frames that are written, or may be */
byte told_seen;
/* To the sender's */
bool gone, gone_landed, gone_seen;
byte gone_at;

byte s_state, sent, resent;
byte got, head;
bool succeeded, switched, fin_seen, ended;
byte twice;
bool up;

inline put(c)
{
	d_step { cell[wr] = c; wr++ }
}

/* The devices. What is under way when the receiver stops is lost, and the sender hears of GONE before it can miss that. */
active proctype device()
{
	do
	:: d_step { !stopped && landed < tail -> landed++ }
	:: d_step { !stopped && told_landed < told && landed == tail -> told_landed = told }
	:: gone && !gone_landed -> gone_landed = true
	:: ended -> break
	od
}

/* The word that a frame comes has landed; then a look. */
inline tell()
{
#ifdef MUT_NOT_TOLD
	skip
#else
	told++;
#ifdef MUT_LOOKED_BEFORE
	gone_seen = gone_landed;
	(told_landed == told || stopped)
#else
	(told_landed == told || stopped);
	gone_seen = gone_landed
#endif
#endif
}

/* From where who has gone stood, and no frame */
inline go_raw()
{
	if
	:: s_state == RING ->
#ifdef MUT_NOT_AGAIN
		resent = tail;
#else
		resent = gone_at;
#endif
		do
		:: resent < tail -> put(FIRST + resent); resent++
		:: resent == tail -> break
		od
	:: else
	fi;
	s_state = RAW
}

active proctype sender()
{
#ifdef UNREAD
	put(0);
	sent = 1;
	s_state = STANDING;
	up = true;
#else
	if
	:: s_state = STANDING
	:: s_state = RING; switched = true
	fi;
	up = true;
#endif
	do
	:: s_state != RAW && gone_landed -> gone_seen = true; go_raw()
	:: s_state == RING && sent < BYTES && !gone_seen -> tail++; sent++
	:: s_state == STANDING && sent < BYTES ->
		tell();
		if
		:: gone_seen -> s_state = RAW
		:: else -> put(SWITCH); s_state = RING
		fi
	/* By data that goes over TCP the announcement is void */
	:: s_state == STANDING && sent < BYTES -> put(sent); sent++; s_state = RAW
	:: s_state == RAW && sent < BYTES -> put(sent); sent++
	:: sent == BYTES -> break
	od;
	if
	:: s_state == RING ->
		(landed == tail || stopped);
		tell();
		if
		:: gone_seen -> go_raw()
		:: else -> put(END)
		fi
	:: else
	fi;
	put(KFIN)
}

inline hand_out(b)
{
	assert(b == got);
	got++
}

inline take_ring()
{
	hand_out(FIRST + head);
	head++
}

active proctype receiver()
{
	byte frames;
	bool left;

	up;
	/* Before it goes: some reads */
	do
	:: !switched && got < FIRST && rd < wr -> hand_out(cell[rd]); rd++
	:: switched && head < landed -> take_ring()
	:: !switched && rd < wr && cell[rd] == SWITCH -> rd++; switched = true; frames++
	:: switched && rd < wr && cell[rd] == END -> rd++; fin_seen = true
	:: break
	od;
	/* say(); a stream that has ended is left by nobody */
	if
	:: fin_seen -> goto over
	:: else
	fi;
	d_step { gone_at = head; gone = true }
#ifdef MUT_GOES_BLIND
	d_step { stopped = true; told_seen = told_landed };
	gone_landed;
#else
	gone_landed;
	d_step { stopped = true; told_seen = told_landed };
#endif
	/* note_left(): a frame of which the word has come is written, or data instead: what comes tells, once the program has read up to there */
#ifdef UNREAD
	if
	:: got < FIRST -> rd < wr; hand_out(cell[rd]); rd++
	:: else
	fi;
#endif
	left = !switched;
	if
	:: !switched && told_seen > frames ->
		rd < wr;
		if
		:: cell[rd] == SWITCH -> rd++; switched = true; frames++
		:: else
		fi
	:: else
	fi;
	/* ... and the same of the stream's end */
	if
#ifdef MUT_END_UNSEEN
	:: switched && !left && told_seen > frames ->
#else
	:: switched && told_seen > frames ->
#endif
#ifdef MUT_END_EXPECTED
		rd < wr; assert(cell[rd] == END); rd++; fin_seen = true
#else
		rd < wr;
		if
		:: cell[rd] == END -> rd++; fin_seen = true
		:: else
		fi
#endif
	:: else
	fi;
	if
	:: fin_seen -> goto over
	:: else
	fi;
#ifdef FAMILY
	twice = landed - gone_at;
#ifdef MUT_NOT_DISCARDED
	twice = 0;
#endif
	do
	:: switched && head < landed -> take_ring()
	:: else -> break
	od;
#endif
	do
	:: rd < wr && cell[rd] == KFIN -> assert(got == BYTES); break
	:: rd < wr && cell[rd] != KFIN && twice > 0 -> assert(cell[rd] < SWITCH); rd++; twice--
	:: rd < wr && cell[rd] != KFIN && twice == 0 -> assert(cell[rd] < SWITCH); hand_out(cell[rd]); rd++
	od;
	goto done;
over:
	/* All of it is in the ring, and stays readable until it was read */
	(landed == tail);
	do
	:: head < landed -> take_ring()
	:: else -> break
	od;
	assert(got == BYTES);
done:
	ended = true
}
