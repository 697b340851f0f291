/* SPDX-License-Identifier: MIT */
/*
 * An end of a connection between hosts goes that has told where its own stream ends: RETREAT.md section 9. One lane, whose sender goes; of the other one
 * retreat_gone.pml tells.
 *
 * Stands for: shim/conn_fin.c (conn_fin_send), shim/retreat_far_go.c (say), shim/retreat.c (follow, take_frame), the engine's publish_gone().
 *
 * The receiver may look at the ring, at the socket and at what its device has been told in any order. What must hold: it hands out all bytes, then the
 * end, and never a frame; it comes to an end.
 */
#ifndef BYTES
#define BYTES 2
#endif
#define END 21
#define KFIN 22

byte cell[4], wr, rd;
byte tail, landed;
bool gone, gone_landed, ended;
byte told;		/* frames, in GONE */

inline put(c)
{
	d_step { cell[wr] = c; wr++ }
}

active proctype device()
{
	do
	:: landed < tail -> landed++
	:: gone && !gone_landed && landed == tail -> gone_landed = true
	:: ended -> break
	od
}

active proctype sender()
{
	byte frames;

	do
	:: tail < BYTES -> tail++
	:: tail == BYTES -> break
	od;
	(landed == tail);
	put(END);
#ifndef MUT_NOT_COUNTED
	frames++;
#endif
	/* Of a process that ends the kernel's word comes later */
	if
	:: put(KFIN); d_step { told = frames; gone = true }
	:: d_step { told = frames; gone = true }; put(KFIN)
	fi
}

active proctype receiver()
{
	byte head, frames;
	bool left, fin;

	do
	:: head < landed -> head++
	:: !left && rd < wr && cell[rd] == END -> rd++; fin = true; frames++
	:: !left && fin && rd < wr && cell[rd] == KFIN && head == BYTES -> break
	:: !left && gone_landed -> left = true;
#ifdef MUT_COUNTED_ANEW
		frames = 0
#endif
#ifdef MUT_NOT_DRAINED
	:: left && frames != told && rd < wr ->
#else
	:: left && head == landed && frames != told && rd < wr ->
#endif
		assert(cell[rd] == END);
		rd++;
		frames++
#ifdef MUT_NOT_DRAINED
	:: left && frames == told && rd < wr ->
#else
	:: left && head == landed && frames == told && rd < wr ->
#endif
		assert(cell[rd] == KFIN);
		break
	od;
	assert(head == BYTES);
	ended = true
}
