/* SPDX-License-Identifier: MIT */
/*
 * What becomes of an announcement whose link dies: RETREAT.md section 9. The announcer does not know whether the other end has acknowledged, and so stands before
 * the frame; that one does not know whether the frame is to come. It says by its own lane which announcement it stands at, if any (HAVE), and then the frame
 * comes, or nothing does.
 *
 * Stands for: shim/retreat_far.c (what_it_has, answer_announced), shim/switch.c (switch_announce, switch_acknowledge, switch_carry_out, withdraw).
 *
 * One lane. The TCP stream is an array of cells: a program byte (its number), half a frame each; `made_for` is S of the frame. Words come as a snapshot, late
 * or never. Bytes that look like a frame are in switch_remote.pml.
 *
 * What must hold: the bytes arrive in order, once each; a frame never reaches the program, nor is one for another S taken; nobody stands before a frame for ever.
 */
#ifndef BYTES
#define BYTES 3
#endif
#define ANNOUNCEMENTS 3
#define CELLS 12
#define F1 20
#define F2 21

#define SEEK 0
#define STANDING 1	/* announced; acknowledged */
#define RING 2

byte cell[CELLS], wr, rd, made_for;
bool cut;			/* no word gets through any more */

/* The announcer's words, and what of them has come; the other's */
byte seq, at, voided;
byte see_seq, see_at, see_void;
byte acked, see_acked;

byte sent, a_state;
byte got, r_state, cap;
bool r_dead;
bool said, heard;		/* HAVE has been written, read */
bool stands;
byte stands_at;

inline put(c)
{
	d_step { cell[wr] = c; wr++ }
}

inline frame()
{
	made_for = at;
	put(F1);
	put(F2);
	a_state = RING
}

active proctype announcer()
{
	do
	:: said && !heard -> heard = true
	:: a_state == SEEK && seq < ANNOUNCEMENTS && !heard -> d_step { seq++; at = sent; a_state = STANDING }
	/* A send: acknowledged, as far as is known, and then by the ring; else by TCP, and the announcement is void */
	:: a_state == STANDING && sent < BYTES && see_acked == seq && !cut -> frame()
	:: a_state == STANDING && sent < BYTES -> d_step { voided = seq; a_state = SEEK }; put(sent); sent++
	:: a_state == SEEK && sent < BYTES -> put(sent); sent++
	/* Without data: the word is known to have come */
	:: d_step { a_state == STANDING && !cut -> voided = seq; see_seq = seq; see_at = at; see_void = voided; a_state = SEEK }
#ifndef MUT_NOT_CARRIED_OUT
#ifdef MUT_NOT_NAMED
	:: a_state == STANDING && heard && stands -> frame()
#else
	:: a_state == STANDING && heard && stands && stands_at == at -> frame()
#endif
#endif
#ifdef MUT_NOT_NAMED
	:: a_state == STANDING && heard && !stands -> a_state = SEEK
#else
	:: a_state == STANDING && heard && !(stands && stands_at == at) -> a_state = SEEK
#endif
	:: a_state == RING -> break
	:: a_state == SEEK && heard -> break
#ifdef MUT_NOT_CARRIED_OUT
	:: a_state == STANDING && heard -> break
#endif
	od
}

active proctype link()
{
	do
	:: d_step { !cut -> see_seq = seq; see_at = at; see_void = voided }
	:: d_step { !cut -> see_acked = acked }
	:: !cut -> cut = true; break
	:: cut -> break
	od
}

active proctype receiver()
{
	do
	/* switch_acknowledge() */
	:: r_state == STANDING && see_void >= acked -> r_state = SEEK
	:: !r_dead && r_state == SEEK && see_seq != acked && see_void < see_seq && see_at >= got ->
		d_step { acked = see_seq; cap = see_at; r_state = STANDING }
	/* A read, and at S a look */
	:: r_state != RING && rd < wr && (r_state == SEEK || got < cap) ->
		d_step {
			assert(cell[rd] < F1);
			assert(cell[rd] == got);
			rd++;
			got++
		}
	:: r_state == STANDING && got == cap && rd < wr && cell[rd] < F1 -> r_state = SEEK
	:: r_state == STANDING && got == cap && rd + 1 < wr && cell[rd] == F1 ->
		d_step {
			assert(made_for == cap);
			rd = rd + 2;
			r_state = RING
		}
	/* It leaves its own lane: nothing comes any more, then it says what it has */
#ifdef MUT_SAID_BEFORE_STOP
	:: !said ->
		d_step { stands = r_state == STANDING && see_void < acked; stands_at = cap; said = true };
		d_step { r_dead = true; cut = true }
#else
	:: !said && !r_dead -> d_step { r_dead = true; cut = true }
#ifdef MUT_VOID_UNSEEN
	:: !said && r_dead -> d_step { stands = r_state == STANDING; stands_at = cap; said = true }
#else
	:: !said && r_dead -> d_step { stands = r_state == STANDING && see_void < acked; stands_at = cap; said = true }
#endif
#endif
	:: r_state == RING && rd == wr && said -> break
	:: timeout ->
		/* Nobody moves any more */
		assert(r_state == SEEK && got == sent);
		break
	od
}
